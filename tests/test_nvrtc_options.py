"""The options of a compile, and the architectures that it is for."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from atomr_trio._compiler import compile_program
from atomr_trio._errors import InvalidArgument
from atomr_trio._nvrtc_options import NvrtcOptions, resolve_target

# ---------------------------------------------------------------------------------------------------- options


def test_the_default_options_are_native_cplusplus_17() -> None:
    assert NvrtcOptions().arch == "native"
    assert NvrtcOptions().flags("compute_80") == (
        "--gpu-architecture=compute_80",
        "--no-source-include",
        "--modify-stack-limit=false",
        "--std=c++17",
    )


def test_flags_show_every_option(tmp_path: Path) -> None:
    options = NvrtcOptions(
        defines={"N": 4, "BARE": None, "EMPTY": "", "F(x)": "(x) + 1", "ON": True},
        include_paths=[tmp_path, "relative"],
        cpp_std=20,
        ftz=True,
        prec_div=False,
        prec_sqrt=True,
        fmad=False,
        max_registers=64,
        debug=True,
        lineinfo=True,
        extra_options=["--device-int128", "-w"],
    )
    assert options.flags("sm_90")[3:] == (
        "--std=c++20",
        "--device-debug",
        "--generate-line-info",
        "--ftz=true",
        "--prec-div=false",
        "--prec-sqrt=true",
        "--fmad=false",
        "--maxrregcount=64",
        "--define-macro=BARE",
        "--define-macro=EMPTY=",
        "--define-macro=F(x)=(x) + 1",
        "--define-macro=N=4",
        "--define-macro=ON=1",
        f"--include-path={tmp_path}",
        f"--include-path={Path.cwd() / 'relative'}",
        "--device-int128",
        "-w",
    )
    assert "--std" not in " ".join(NvrtcOptions(cpp_std=None).flags("sm_90"))
    assert "--use_fast_math" in NvrtcOptions(use_fast_math=True, ftz=True).flags("sm_90")


def test_nvrtc_takes_every_flag_that_the_fields_can_make() -> None:
    options = NvrtcOptions(
        defines={"N": 4, "BARE": None, "EMPTY": "", "F(x)": "(x) + 1", "TEXT": '"two words"'},
        cpp_std=20,
        use_fast_math=True,
        ftz=True,
        prec_div=False,
        prec_sqrt=False,
        fmad=True,
        max_registers=64,
        debug=True,
        lineinfo=True,
    )
    source = """
    static_assert(N == 4 && BARE == 1 && F(2) == 3 && sizeof(TEXT) == 10 && __cplusplus == 202002L EMPTY);
    extern "C" __global__ void k() {}
    """
    assert "k" in compile_program(source, options, "compute_80").entries


def test_options_are_values_whatever_they_were_made_of() -> None:
    one = NvrtcOptions(defines={"A": 1, "B": "2"}, include_paths=["/a"], headers={"y.h": "", "x.h": ""})
    other = NvrtcOptions(defines={"B": "2", "A": "1"}, include_paths=(Path("/a"),), headers={"x.h": "", "y.h": ""})
    assert one == other
    assert hash(one) == hash(other)
    assert attrs.evolve(one, cpp_std=20) == NvrtcOptions(
        defines={"A": 1, "B": "2"}, include_paths=["/a"], headers={"x.h": "", "y.h": ""}, cpp_std=20
    )
    assert attrs.evolve(one, cpp_std=20) != one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"defines": {"1A": "2"}}, "defines: '1A' is not the name of a macro"),
        ({"defines": {"": "2"}}, "defines: '' is not the name"),
        ({"defines": {"A=1": "2"}}, "defines: 'A=1' is not the name"),
        ({"defines": {"A": "1\n#error"}}, "defines['A']: a definition is one line"),
        ({"defines": {"A": "1\0"}}, "defines['A']: '1\\x00' contains a NUL"),
        ({"defines": {"A": 1.5}}, "defines['A']: expected a string, got float"),
        ({"defines": {"A": "1", "A(x)": "x"}}, "macro 'A' is defined twice"),
        ({"defines": ["A"]}, "defines: expected a dictionary, got list"),
        ({"include_paths": "/usr/include"}, "write include_paths=['/usr/include']"),
        ({"include_paths": [3]}, "include_paths: expected paths, got int"),
        ({"include_paths": [""]}, "include_paths: an empty string"),
        ({"arch": "sm90"}, 'arch: expected "native" or a name'),
        ({"arch": "SM_90"}, "got 'SM_90'"),
        ({"arch": 90}, "arch: expected a string, got int"),
        ({"name_expressions": "scale<float>"}, "write name_expressions=['scale<float>']"),
        ({"name_expressions": [" "]}, "name_expressions: an empty string is not a name"),
        ({"name_expressions": [None]}, "name_expressions: expected a string, got NoneType"),
        ({"cpp_std": 18}, "cpp_std: expected one of 3, 11, 14, 17, 20, 23, got 18"),
        ({"cpp_std": "c++17"}, "cpp_std: expected one of"),
        ({"use_fast_math": 1}, "use_fast_math: expected True or False, got 1"),
        ({"debug": None}, "debug: expected True or False, got None"),
        ({"ftz": "yes"}, "ftz: expected True or False, got 'yes'"),
        ({"use_fast_math": True, "ftz": False}, "ftz: False contradicts use_fast_math=True"),
        ({"use_fast_math": True, "prec_div": True}, "prec_div: True contradicts use_fast_math=True"),
        ({"use_fast_math": True, "fmad": False}, "fmad: False contradicts"),
        ({"max_registers": 0}, "max_registers: expected a number of registers from 1 to 255, got 0"),
        ({"max_registers": 256}, "got 256"),
        ({"max_registers": True}, "got True"),
        ({"headers": {"": "x"}}, "headers: a header needs a name"),
        ({"headers": {"a.h": b"x"}}, "headers['a.h']: expected a string, got bytes"),
        ({"extra_options": "-w"}, "write extra_options=['-w']"),
        ({"extra_options": ["-arch=sm_90"]}, "'-arch=sm_90' is not accepted: use arch="),
        ({"extra_options": ["--gpu-architecture", "sm_90"]}, "use arch="),
        ({"extra_options": ["--std=c++20"]}, "use cpp_std="),
        ({"extra_options": ["--ftz=true"]}, "use ftz="),
        ({"extra_options": ["-dlto"]}, "its output is neither PTX nor a cubin"),
        ({"extra_options": ["\ud800"]}, "is not valid Unicode"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_written(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        NvrtcOptions(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


# ---------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("arch", "capability", "accepts_cubin", "target"),
    [
        ("native", (9, 0), True, "sm_90"),
        ("native", (12, 0), True, "sm_120"),
        ("native", (8, 0), False, "compute_80"),
        ("compute_75", (8, 0), False, "compute_75"),
        ("compute_80", (9, 0), True, "compute_80"),
        ("sm_80", (8, 6), True, "sm_80"),
        ("sm_90a", (9, 0), True, "sm_90a"),
        ("compute_100f", (10, 3), True, "compute_100f"),
    ],
)
def test_a_target_follows_from_the_architecture_and_the_device(
    arch: str, capability: tuple[int, int], accepts_cubin: bool, target: str
) -> None:
    assert resolve_target(arch, capability, accepts_cubin) == target


@pytest.mark.parametrize(
    ("arch", "capability", "accepts_cubin", "said"),
    [
        ("sm_80", (8, 0), False, "the simulator only runs PTX"),
        ("compute_90", (8, 0), False, "does not run on this device of capability 8.0: it is code for 9.0 and newer"),
        ("sm_90", (8, 9), True, "it is code for 9.0 and newer"),
        ("sm_86", (8, 0), True, "it is code for 8.6 and newer"),
        ("sm_80", (9, 0), True, "it runs on 8.x devices only"),
        ("compute_90a", (10, 0), True, "an 'a' variant runs on 9.0 alone"),
        ("compute_100f", (12, 0), True, "it runs on 10.x devices only"),
        ("fermi", (9, 0), True, 'expected "native"'),
    ],
)
def test_code_that_the_device_cannot_run_is_refused(
    arch: str, capability: tuple[int, int], accepts_cubin: bool, said: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_target(arch, capability, accepts_cubin)
    assert said in str(caught.value)
