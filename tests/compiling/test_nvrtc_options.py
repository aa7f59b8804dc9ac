"""The options of a compile, and the architectures that it is for."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import assume, given, strategies as st

from atomr_trio import SmArch
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._compiling.flags import parse_flags
from atomr_trio._compiling.options import NvrtcOptions, check_options, resolve_target
from atomr_trio._values.errors import InvalidArgument

# ---------------------------------------------------------------------------------------------------- options


def test_the_default_options_are_native_cplusplus_17() -> None:
    assert NvrtcOptions().arch == "native"
    assert NvrtcOptions().flags("compute_80") == (
        "--gpu-architecture=compute_80",
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
    assert options.flags("sm_90")[2:] == (
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
    lto = NvrtcOptions(lto=True, extra_options=["--gen-opt-lto"]).flags("sm_90a")
    assert (lto[0], lto[3:]) == ("--gpu-architecture=compute_90a", ("--dlink-time-opt", "--gen-opt-lto"))


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
        ({"arch": "sm90"}, 'arch: expected "native", an SmArch or a name'),
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
        ({"headers": {"": "x"}}, "headers: '' cannot be the name of a file"),
        ({"headers": {"a>b.h": "x"}}, "'a>b.h' cannot be the name of a file"),
        ({"name": ""}, "name: '' cannot be the name of a file"),
        ({"name": 'a".cu'}, "cannot be the name of a file"),
        ({"name": "a\nb.cu"}, "cannot be the name of a file"),
        ({"name": Path("a.cu")}, "name: expected a string, got PosixPath"),
        ({"name": "a\0"}, "contains a NUL"),
        ({"lto": True, "debug": True}, "lto: True contradicts debug=True"),
        ({"lto": True, "fmad": False}, "fmad: with lto=True this is decided when the parts are linked"),
        ({"lto": True, "max_registers": 32}, "max_registers: with lto=True this is decided"),
        ({"lto": True, "extra_options": ["-rdc=false"]}, "'-rdc=false' contradicts lto=True"),
        ({"lto": True, "extra_options": ["-dw"]}, "'-dw' contradicts lto=True"),
        ({"lto": True, "extra_options": ["-Xptxas=-v"]}, "'-Xptxas=-v' contradicts lto=True"),
        ({"extra_options": ["--gen-opt-lto"]}, "says how to make LTO-IR, which lto=True asks for"),
        ({"bundled_headers": True, "extra_options": ["--use-bundled-headers=/tmp/x"]}, "which chooses the folder"),
        ({"defines": {"N": 1}, "extra_options": ["-DN=2"]}, "'-DN=2' contradicts defines, which has 'N' too"),
        ({"defines": {"N": 1}, "extra_options": ["-U", "N"]}, "'-U' contradicts defines"),
        ({"defines": {"F(x)": "x"}, "extra_options": ["--define-macro=F(y)=y"]}, "contradicts defines"),
        ({"headers": {"a.h": b"x"}}, "headers['a.h']: expected a string, got bytes"),
        ({"extra_options": "-w"}, "write extra_options=['-w']"),
        ({"extra_options": ["-arch=sm_90"]}, "'-arch=sm_90' is not accepted: use arch="),
        ({"extra_options": ["--gpu-architecture", "sm_90"]}, "use arch="),
        ({"extra_options": ["--use-fast-math"]}, "is no option of NVRTC\nWhat to do: did you mean '--use_fast_math'?"),
        ({"extra_options": ["kernel.cu"]}, "'kernel.cu' is no option of NVRTC"),
        ({"extra_options": ["--utf-8"]}, "sources are UTF-8 already"),
        ({"extra_options": ["--modify-stack-limit=true"]}, "every compile decides that for itself"),
        ({"extra_options": ["--std=c++20"]}, "use cpp_std="),
        ({"extra_options": ["--ftz=true"]}, "use ftz="),
        ({"extra_options": ["-dlto"]}, "use lto="),
        ({"extra_options": ["--optix-ir"]}, "its output is neither PTX nor a cubin nor LTO-IR"),
        ({"extra_options": ["\ud800"]}, "is not valid Unicode"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_written(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        NvrtcOptions(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "version", "said"),
    [
        (NvrtcOptions(cpp_std=23), (13, 2), "cpp_std: C++23 came with NVRTC 13.3, and this one is 13.2"),
        (NvrtcOptions(extra_options=["--pch"]), (12, 6), "'--pch' came with NVRTC 12.8, and this one is 12.6"),
        (NvrtcOptions(extra_options=["-Werror=reorder"]), (13, 0), "'-Werror=reorder' came with NVRTC 13.1"),
    ],
)
def test_what_this_nvrtc_does_not_have_yet_is_refused_with_both_versions(
    options: NvrtcOptions, version: tuple[int, int], said: str
) -> None:
    check_options(options, (13, 5))
    with pytest.raises(InvalidArgument) as caught:
        check_options(options, version)
    assert said in str(caught.value)


# ---------------------------------------------------------------------------------------------------- properties

SWITCHES = {
    "--use_fast_math": "use_fast_math",
    "--device-debug": "debug",
    "--generate-line-info": "lineinfo",
    "--dlink-time-opt": "lto",
}
FLOATS = {f"--{name.replace('_', '-')}": name for name in ("ftz", "prec_div", "prec_sqrt", "fmad")}
EXTRAS = ("-w", "--restrict", "--device-int128", "-rdc=true", "--diag-suppress=1", "--Ofast-compile=mid", "--minimal")
"""Options that no field makes, each a different one."""

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
MAYBE = st.none() | st.booleans()
FIELDS = {
    "defines": st.dictionaries(st.sampled_from(["A", "B", "F(x)", "AB"]), st.none() | TEXTS, max_size=3),
    "include_paths": st.lists(st.sampled_from(["/a", "/b c", "/d=e", "/a/f"]), max_size=3),
    "name_expressions": st.lists(st.sampled_from(["f<1>", "f<2>", "&t", "g"]), max_size=3),
    "name": st.sampled_from(["kernel.cu", "other.cu", "a b/c.cu"]),
    "cpp_std": st.sampled_from([None, 3, 11, 14, 17, 20, 23]),
    "use_fast_math": st.booleans(),
    **dict.fromkeys(FLOATS.values(), MAYBE),
    "max_registers": st.none() | st.integers(1, 255),
    "lto": st.booleans(),
    "debug": st.booleans(),
    "lineinfo": st.booleans(),
    "headers": st.dictionaries(st.sampled_from(["x.h", "y.h"]), TEXTS, max_size=2),
    "extra_options": st.lists(st.sampled_from(EXTRAS), unique=True, max_size=2),
}
"""All fields but the architecture, which flags are given, `bundled_headers`, which asks the compiler, and `signatures`,
which is for another compile."""


def test_every_field_is_drawn() -> None:
    assert {field.name for field in attrs.fields(NvrtcOptions)} == {*FIELDS, "arch", "bundled_headers", "signatures"}


@st.composite
def option_sets(draw: st.DrawFn, **fixed: object) -> NvrtcOptions:
    """Options with a few fields set, which do not contradict each other."""
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=5)) - {*fixed}
    try:
        return NvrtcOptions(**{name: draw(FIELDS[name]) for name in names}, **fixed)  # type: ignore[arg-type]
    except InvalidArgument:
        assume(False)
        raise


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NvrtcOptions, NvrtcOptions]:
    """Two options that are often equal or nearly so."""
    one = draw(option_sets())
    name = draw(st.sampled_from(sorted(FIELDS)))
    try:
        return one, attrs.evolve(one, **{name: draw(FIELDS[name])})
    except InvalidArgument:
        return one, draw(option_sets())


def given_to_nvrtc(options: NvrtcOptions) -> tuple[object, ...]:
    return options.flags("sm_90"), options.headers, options.name_expressions, options.name


@given(pairs())
def test_different_options_never_give_nvrtc_the_same(pair: tuple[NvrtcOptions, NvrtcOptions]) -> None:
    one, other = pair
    assert (given_to_nvrtc(one) == given_to_nvrtc(other)) is (one == other)


@given(pairs())
def test_the_identity_is_equal_exactly_when_the_options_are(pair: tuple[NvrtcOptions, NvrtcOptions]) -> None:
    one, other = pair
    assert (one.identity() == other.identity()) is (one == other)
    assert (hash(one.identity()) == hash(other.identity())) or one != other


def test_the_identity_tells_every_field_and_holds_plain_values_alone() -> None:
    options = NvrtcOptions(arch=SmArch.SM_90A, bundled_headers=True, defines={"A": 1}, include_paths=[Path("/a")])

    def plain(value: object) -> bool:
        return all(map(plain, value)) if type(value) is tuple else type(value) in (str, int, bool, type(None))

    assert dict(options.identity()) == attrs.asdict(options, recurse=False)
    assert plain(options.identity())
    assert options.identity() != attrs.evolve(options, arch="sm_90").identity()
    assert options.identity() != attrs.evolve(options, bundled_headers=False).identity()


def fields_of(flags: tuple[str, ...]) -> dict[str, object]:
    """The fields that make these flags, read from what NVRTC gets."""
    fields: dict[str, object] = {"cpp_std": None}
    defines, paths, extras = dict[str, str | None](), list[str](), list[str]()
    for each in parse_flags(flags[2:]):
        name, value = each.flag.name, each.value or ""
        if name in SWITCHES:
            fields[SWITCHES[name]] = True
        elif name in FLOATS:
            fields[FLOATS[name]] = value == "true"
        elif name == "--std":
            fields["cpp_std"] = int(value.removeprefix("c++"))
        elif name == "--maxrregcount":
            fields["max_registers"] = int(value)
        elif name == "--define-macro":
            macro, equals, text = value.partition("=")
            defines[macro] = text if equals else None
        elif name == "--include-path":
            paths.append(value)
        else:
            extras.append(each.text)
    return {**fields, "defines": defines, "include_paths": paths, "extra_options": extras}


@given(option_sets(name="kernel.cu", name_expressions=(), headers=()))
def test_flags_lead_back_to_the_options(options: NvrtcOptions) -> None:
    assert NvrtcOptions(**fields_of(options.flags("sm_90"))) == options  # type: ignore[arg-type]


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
        ("fermi", (9, 0), True, 'expected "native", an SmArch'),
    ],
)
def test_code_that_the_device_cannot_run_is_refused(
    arch: str, capability: tuple[int, int], accepts_cubin: bool, said: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_target(arch, capability, accepts_cubin)
    assert said in str(caught.value)
