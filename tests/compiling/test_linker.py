"""Linking with the real nvJitLink, without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_cuda import SymbolMissing, nvjitlink
from atomr_trio import CompileError, InvalidArgument, LibraryNotFound, LinkInput, LinkOptions, SmArch, link
from atomr_trio._compiling import linker
from atomr_trio._compiling.images import ImageKind, read_image
from atomr_trio._compiling.linker import bridge_ptx, cubin_from_ptx, link_program
from support import child_environment, set_constant
from support.linking import HELPER, KERNEL, cubin, device_runtime, fatbin, ltoir, ptx

PARENT = """
__global__ void child(float *y) { *y = 1.0f; }
extern "C" __global__ void parent(float *y) { child<<<1, 1>>>(y); }
"""
WHOLE = 'extern "C" __global__ void whole(int *x) { *x = 1; }'

EACH_KIND: dict[str, Any] = {
    "ltoir": lambda: ltoir(HELPER),
    "ptx": lambda: ptx(HELPER),
    "cubin": lambda: cubin(HELPER),
    "fatbin": lambda: fatbin(HELPER),
}


@pytest.fixture
def linker_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the linker say that it is of another version; what it does stays that of the real one."""

    def pretend(major: int, minor: int) -> None:
        monkeypatch.setattr("atomr_trio._compiling.linker._version", lambda: (major, minor))

    return pretend


@pytest.fixture
def no_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjitlink.library, "_handle", None)
    monkeypatch.setenv("ATOMR_TRIO_NVJITLINK_PATH", "/nowhere/libnvJitLink.so")
    for function in nvjitlink.library:
        monkeypatch.setattr(function, "_bound", None)


# ---------------------------------------------------------------------------------------------------- what is linked


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("caller", [ltoir, ptx, cubin])
def test_a_kernel_calls_a_function_of_another_image_of_any_kind(caller, kind):
    image = read_image(link([caller(KERNEL), EACH_KIND[kind]()], arch="sm_90"))
    assert (image.kind, image.target, image.relocatable) == (ImageKind.CUBIN, "sm_90", False)
    assert set(image.kernels or ()) == {"apply", "other"}


def test_link_time_optimisation_inlines_across_sources():
    text = link([ltoir(KERNEL), ltoir(HELPER)], arch="compute_90").decode()
    assert "fma.rn.f32" in text
    assert "call" not in text
    assert not text.endswith("\0")
    assert read_image(text.encode()).target == "compute_90"


def test_what_is_not_used_is_left_out():
    inputs = [ltoir(KERNEL), ltoir(HELPER)]
    text = link(inputs, arch="compute_90", options=LinkOptions(kernels_used=["apply"]))
    assert read_image(text).kernels == ("apply",)
    assert set(read_image(link(inputs, arch="compute_90")).kernels or ()) == {"apply", "other"}


def test_options_reach_the_compiler():
    text = link([ltoir(KERNEL), ltoir(HELPER)], arch="compute_90", options=LinkOptions(fmad=False, ftz=True)).decode()
    assert "fma" not in text
    assert "mul.ftz.f32" in text or "mul.rn.ftz.f32" in text


def test_every_option_is_one_that_the_linker_knows():
    every = LinkOptions(
        optimization_level=3,
        lineinfo=True,
        max_registers=64,
        ftz=True,
        prec_div=False,
        prec_sqrt=False,
        fmad=True,
        kernels_used=["apply"],
        variables_used=["table"],
        optimize_unused_variables=True,
        extra_options=["-verbose"],
    )
    for options in (every, LinkOptions(debug=True, optimization_level=0)):
        for arch in ("sm_90", "compute_90"):
            assert link([ltoir(KERNEL), ltoir(HELPER)], arch=arch, options=options)


def test_a_library_gives_what_is_undefined():
    parent = cubin(PARENT)
    with pytest.raises(CompileError, match="Undefined reference to '__cudaCDP2"):
        link([parent], arch="sm_90")
    image = read_image(link([parent, device_runtime()], arch="sm_90"))
    assert "parent" in (image.kernels or ())


def test_ptx_is_taken_as_the_text_that_a_compile_gives():
    assert link([ptx(KERNEL), ptx(HELPER)], arch=SmArch.SM_90) == link(
        [LinkInput(ptx(KERNEL).encode() + b"\0", "input 1"), LinkInput(ptx(HELPER), "input 2")], arch="sm_90"
    )


def test_files_are_read_by_their_paths(tmp_path: Path):
    paths = [tmp_path / "kernel.cubin", tmp_path / "helper.ltoir"]
    paths[0].write_bytes(cubin(KERNEL))
    paths[1].write_bytes(ltoir(HELPER))
    assert link([paths[0], str(paths[1])], arch="sm_90").startswith(b"\x7fELF")
    with pytest.raises(FileNotFoundError):
        link([tmp_path / "nothing.ptx"], arch="sm_90")


def test_a_linked_program_has_both_images_and_the_parameters():
    program = link_program([ltoir(KERNEL), ltoir(HELPER)], LinkOptions(), "sm_90")
    assert program.cubin is not None
    assert program.image.startswith(b"\x7fELF")
    assert program.target == "sm_90"
    assert [p.type_name for p in program.signature("apply").parameters] == [".u64"]
    assert b"\0" not in program.ptx


def test_a_program_linked_from_cubins_has_no_ptx():
    program = link_program([cubin(KERNEL), cubin(HELPER)], LinkOptions(), "sm_90")
    assert (program.ptx, dict(program.entries)) == (b"", {})
    assert program.image == program.cubin


def test_a_program_linked_for_a_virtual_architecture_is_ptx():
    program = link_program([ltoir(KERNEL), ltoir(HELPER)], LinkOptions(), "compute_80")
    assert program.cubin is None
    assert program.image == program.ptx + b"\0"
    assert set(program.entries) == {"apply", "other"}


async def test_linked_code_runs(dev: Any):
    module = await dev.module.load(link([ltoir(KERNEL), ltoir(HELPER)], arch="compute_80"))
    y = await dev.to_device(np.arange(32, dtype=np.float32))
    await module.function("apply").launch(1, 32, y)
    assert np.array_equal(await y.to_host(), 3 * np.arange(32, dtype=np.float32) + 1)


# ---------------------------------------------------------------------------------------------------- what is refused


def pieces(*images: Any) -> list[Any]:
    return [LinkInput(image, f"piece {number}") for number, image in enumerate(images, 1)]


@pytest.mark.parametrize(
    ("inputs", "arch", "options", "words"),
    [
        (list, "sm_90", {}, "the list of inputs is empty"),
        (lambda: cubin(HELPER), "sm_90", {}, "expected a list of inputs, got bytes"),
        (lambda: [b"hello"], "sm_90", {}, "'input 1': .* neither PTX nor a cubin"),
        (lambda: [b""], "sm_90", {}, "'input 1': .* empty"),
        (lambda: [7], "sm_90", {}, "an image is bytes, or a string of PTX; got int"),
        (lambda: [cubin(HELPER)[:900]], "sm_90", {}, "'input 1': .* bytes"),
        (lambda: [cubin(HELPER)], "sm90", {}, "expected a name such as"),
        (lambda: [cubin(HELPER, "sm_80")], "sm_90", {}, "'input 1' is for sm_80, and a cubin runs on its own family"),
        (lambda: [cubin(HELPER)], "sm_80", {}, "is for sm_90, and code does not run on older architectures"),
        (lambda: [ptx(HELPER, "compute_90")], "sm_80", {}, "is for compute_90, and code does not run on older"),
        (lambda: [ptx(HELPER, "compute_90a")], "sm_90", {}, "is for compute_90a, and an 'a' variant"),
        (lambda: [cubin(HELPER)], "compute_90", {}, "only made where all inputs are LTO-IR"),
        (lambda: [ltoir(HELPER), cubin(KERNEL)], "compute_90", {}, "only made where all inputs are LTO-IR"),
        (lambda: [ltoir(HELPER)], "sm_90", {"lto": False}, "lto=False, and there is LTO-IR"),
        (lambda: [cubin(HELPER)], "sm_90", {"lto": True}, "lto=True, and there is no LTO-IR"),
        (lambda: [cubin(HELPER)], "sm_90", {"ftz": False}, "ftz: only link-time optimisation obeys this"),
        (
            lambda: pieces(cubin(HELPER), ptx(HELPER)),
            "sm_90",
            {},
            "'_Z6helperf' is defined in .*'piece 1' and .*'piece 2'",
        ),
        (lambda: pieces(ptx(HELPER), ptx(HELPER)), "sm_90", {}, "'_Z6helperf' is defined in"),
    ],
)
def test_what_can_be_known_before_is_refused_before(inputs, arch, options, words, monkeypatch):
    monkeypatch.setattr(linker, "_asked", None)  # nothing is linked
    with pytest.raises(InvalidArgument, match=words):
        link(inputs(), arch=arch, options=LinkOptions(**options))


def test_a_cubin_that_is_linked_already_is_refused():
    """nvJitLink would leave it out and report success."""
    whole = link([ptx(WHOLE)], arch="sm_90")
    with pytest.raises(InvalidArgument, match=r"'whole\.cubin' is a cubin that is linked already"):
        link([cubin(HELPER), LinkInput(whole, "whole.cubin")], arch="sm_90")


def test_code_that_several_images_may_define_is_linked():
    """Inline functions and instances of templates are in every image that uses them."""
    shared = "inline __device__ __noinline__ int shared(int x) { return x * x + 1; }\n"
    one, two = (shared + f"__device__ int use{number}(int x) {{ return shared(x); }}" for number in (1, 2))
    assert link([cubin(one), ptx(two)], arch="sm_90")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "tape"}, "there is no kind 'tape' of input"),
        ({"kind": "ptx"}, "said to be of kind 'ptx' and is of kind 'cubin'"),
        ({"name": 5}, "the name of an input has to be a string"),
        ({"name": "a\0b"}, "without NUL"),
    ],
)
def test_an_input_that_cannot_be_is_refused(values, words):
    with pytest.raises(InvalidArgument, match=words):
        LinkInput(cubin(HELPER), **values)


def test_the_kind_is_known_by_the_first_bytes():
    assert {kind: LinkInput(image()).kind for kind, image in EACH_KIND.items()} == {kind: kind for kind in EACH_KIND}
    host_object = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x01\x00" + (62).to_bytes(2, "little") + bytes(44)
    assert LinkInput(host_object).kind == "object"
    assert LinkInput.read(device_runtime()).kind == "library"
    assert LinkInput.read(device_runtime()).name == "libcudadevrt.a"


def test_an_input_is_a_value_and_does_not_show_its_bytes():
    assert LinkInput(cubin(HELPER), "a") == LinkInput(bytearray(cubin(HELPER)), "a")
    assert repr(LinkInput(ptx(HELPER), "a.ptx")).startswith(f"LinkInput(image=<{len(ptx(HELPER))} bytes>, name='a.ptx'")


# ---------------------------------------------------------------------------------------------------- options

REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"lto": 1}, "lto: expected True or False"),
    ({"debug": None}, "debug: expected True or False"),
    ({"optimization_level": 2}, "optimization_level: expected one of the levels 0 and 3"),
    ({"optimization_level": True}, "optimization_level: expected"),
    ({"max_registers": 0}, "max_registers: expected a number of registers from 1 to 255"),
    ({"max_registers": 256}, "max_registers: expected"),
    ({"kernels_used": "apply"}, "kernels_used: expected a list of strings"),
    ({"variables_used": 5}, "variables_used: expected a list of strings"),
    ({"kernels_used": [""]}, "kernels_used: expected strings that are not empty"),
    ({"extra_options": ["-a\0"]}, "have no NUL"),
    ({"extra_options": ["-arch=sm_80"]}, "'-arch=sm_80' is not accepted: use arch="),
    ({"extra_options": ["-O0"]}, "use optimization_level="),
    ({"extra_options": ["-r"]}, "its output is not loadable"),
    ({"debug": True, "lineinfo": True}, "lineinfo: debug=True includes it"),
]


@pytest.mark.parametrize(("values", "words"), REFUSED_OPTIONS)
def test_an_option_that_cannot_be_is_refused(values, words):
    with pytest.raises(InvalidArgument, match=f"LinkOptions: .*{words}|LinkOptions: {words}"):
        LinkOptions(**values)


def test_the_flags_are_those_that_nvjitlink_has():
    options = LinkOptions(optimization_level=0, debug=True, max_registers=32, prec_div=False, kernels_used=["a", "b"])
    expected = ("-arch=sm_90", "-lto", "-g", "-O0", "-maxrregcount=32", "-prec-div=0", "-kernels-used=a")
    assert options.flags("sm_90", lto=True) == (*expected, "-kernels-used=b")
    assert LinkOptions().flags("compute_80", lto=True) == ("-arch=compute_80", "-lto", "-ptx")
    assert LinkOptions(extra_options=["-verbose"]).flags("sm_90") == ("-arch=sm_90", "-verbose")


def test_options_are_values():
    assert {LinkOptions(kernels_used=["a"]), LinkOptions(kernels_used=("a",))} == {LinkOptions(kernels_used=["a"])}


# ---------------------------------------------------------------------------------------------------- what goes wrong


def failure(inputs: list[Any], arch: str = "sm_90", options: LinkOptions | None = None) -> CompileError:
    with pytest.raises(CompileError) as caught:
        link(inputs, arch=arch, options=options)
    assert caught.value.library == "nvjitlink"
    assert caught.value.operation == "link"
    return caught.value


def test_the_error_of_an_input_names_it_and_has_the_log():
    error = failure([LinkInput(ptx(KERNEL).replace("ld.global", "ld.glabal"), "kernel.ptx")])
    assert error.message.startswith("the input 'kernel.ptx': ptxas")
    assert error.status_name == "NVJITLINK_ERROR_PTX_COMPILE"
    assert ".glabal" in error.log


def test_an_undefined_name_is_an_error_with_the_name():
    assert "Undefined reference to '_Z6helperf' in 'kernel'" in failure([LinkInput(cubin(KERNEL), "kernel")]).message
    assert "_Z6helperf" in failure([ltoir(KERNEL)]).message


def test_a_name_that_two_pieces_of_ltoir_define_is_an_error():
    assert "symbol multiply defined" in failure(pieces(ltoir(HELPER), ltoir(HELPER))).message


def test_ltoir_for_a_newer_architecture_is_an_error_with_advice():
    error = failure([LinkInput(ltoir(HELPER, "compute_90"), "new")], "sm_80")
    assert error.message.startswith("the input 'new': ")
    assert error.advice == "compile inputs for an architecture no newer than the output's."


def test_an_architecture_and_an_option_that_the_linker_does_not_know_are_errors():
    assert "-arch=sm_999" in failure([ltoir(HELPER)], "sm_999").message
    assert "-no-such" in failure([ltoir(HELPER)], options=LinkOptions(extra_options=["-no-such"])).message


def test_a_link_after_a_failed_one_is_as_good_as_any():
    inputs = [cubin(KERNEL), cubin(HELPER)]
    first = link(inputs, arch="sm_90")
    for _ in range(3):
        failure([cubin(KERNEL)])
    assert link(inputs, arch="sm_90") == first


def test_damaged_ltoir_is_an_error_whatever_the_library_does_with_it():
    """It crashes nvJitLink 12.9."""
    image = bytearray(ltoir(KERNEL))
    image[len(image) // 2 :] = bytes(len(image) - len(image) // 2)
    error = failure([LinkInput(bytes(image), "damaged", "ltoir")])
    assert error.library == "nvjitlink"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process in which nvJitLink linked was ended by SIGSEGV"),
        ("sys.exit(3)", "the process in which nvJitLink linked exited with status 3"),
    ],
)
def test_a_linker_that_crashes_takes_nothing_along(end, words, monkeypatch, tmp_path):
    code = f"import os, signal, sys; print('its last words', file=sys.stderr, flush=True); {end}"
    (tmp_path / "ends_so.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    set_constant(monkeypatch, linker, "_CHILD", "ends_so")
    error = failure([cubin(HELPER)])
    assert re.search(words, error.message)
    assert "its last words" in error.log


def test_without_the_library_the_error_names_the_package(no_linker):
    with pytest.raises(LibraryNotFound, match=r'pip install "atomr-trio\[(cu13|sim)\]"') as caught:
        link([cubin(HELPER)], arch="sm_90")
    assert caught.value.library == "nvjitlink"


def test_a_function_that_the_library_lacks_is_a_missing_library(monkeypatch):
    def lacks(*arguments: object) -> None:
        raise SymbolMissing("nvjitlink", "cu13", ("/a",), "nvJitLinkVersion", "/a", (12, 4))

    monkeypatch.setattr(nvjitlink, "nvJitLinkVersion", lacks)
    with pytest.raises(LibraryNotFound, match="has no function nvJitLinkVersion"):
        link([cubin(HELPER)], arch="sm_90")


def test_importing_the_linker_loads_no_library():
    code = "import atomr_trio; atomr_trio.link; assert 'nvJitLink' not in open('/proc/self/maps').read()"
    subprocess.run([sys.executable, "-P", "-c", code], env=child_environment(), check=True)


# ---------------------------------------------------------------------------------------------------- versions


def test_ptx_newer_than_the_linker_is_refused_with_both_versions(linker_of):
    linker_of(12, 9)
    newer = ptx(HELPER).replace(".version 9.5", ".version 9.0").replace(".version 8.8", ".version 9.0")
    words = r"of version 9\.0 \(CUDA 13\.0\), too new for nvJitLink of CUDA 12\.9, which reads PTX up to 8\.8"
    with pytest.raises(InvalidArgument, match=words):
        link([newer], arch="sm_90")


def test_ltoir_of_a_newer_compiler_is_refused_with_both_versions(linker_of):
    linker_of(12, 4)
    with pytest.raises(InvalidArgument, match=r"'new' is of CUDA 12\.9, which nvJitLink 12\.4 does not read"):
        link([LinkInput(ltoir(HELPER), "new", compiler_version=(12, 9))], arch="sm_90")


def test_ltoir_that_the_linker_calls_too_new_names_its_format(monkeypatch):
    """What 12.9 says of LTO-IR of 13.5."""
    log = "ERROR 4 in nvvmAddNVVMContainerToProgram, may need newer version of nvJitLink library\n"
    answer = {"status": 6, "function": "nvJitLinkAddData", "input": 0, "log": log}
    monkeypatch.setattr(linker, "_asked", lambda request, images: (answer, b""))
    image = ltoir(HELPER)
    error = failure([LinkInput(image, "new")])
    assert (
        f"the LTO-IR 'new' is of a format {image[4]}.{image[5]}, {image[6]}.{image[7]}, which nvJitLink"
        in error.message
    )
    assert error.advice is not None
    assert error.advice.startswith("update nvJitLink")


def test_ptx_becomes_a_cubin():
    assert read_image(cubin_from_ptx(ptx(WHOLE), "sm_90")).kernels == ("whole",)


def test_ptx_that_the_driver_is_too_old_for_becomes_a_cubin_for_the_device(linker_of):
    linker_of(13, 5)
    assert read_image(bridge_ptx(ptx(WHOLE), (9, 0), (13, 0))).target == "sm_90"
    assert read_image(bridge_ptx(ptx(WHOLE, "compute_90a").encode(), (9, 0), (13, 0))).target == "sm_90"


def bridging(*arguments: Any) -> CompileError:
    with pytest.raises(CompileError, match=r"the PTX is of version \d+\.\d+") as caught:
        bridge_ptx(*arguments)
    assert (caught.value.status, caught.value.library) == (222, "cuda")
    assert "atomr-trio[cu13]" in (caught.value.advice or "")
    return caught.value


def test_ptx_that_neither_driver_nor_linker_reads_names_all_versions(linker_of):
    linker_of(12, 8)
    message = bridging(".version 8.8\n.target sm_90\n.address_size 64\n", (9, 0), (12, 4)).message
    assert "8.8 (CUDA 12.9), too new for the driver of CUDA 12.4, which reads PTX up to 8.4; " in message
    assert message.endswith("too new for nvJitLink of CUDA 12.8, which reads PTX up to 8.7")


def test_a_linker_of_the_next_major_version_is_not_asked(linker_of):
    linker_of(13, 5)
    message = bridging(ptx(WHOLE), (9, 0), (12, 8)).message
    assert message.endswith("a cubin of nvJitLink 13.5 is not for a driver of CUDA 12.8")


def test_without_a_linker_the_error_says_so(no_linker):
    assert bridging(ptx(WHOLE), (9, 0), (12, 8)).message.endswith("there is no nvJitLink to make a cubin of it")
