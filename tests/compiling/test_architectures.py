"""The names of architectures, and which of them the real NVRTC compiles for."""

from __future__ import annotations

import pytest

from atomr_trio import NvrtcOptions, SmArch
from atomr_trio._compiling import compiler
from atomr_trio._compiling.architectures import ARCH, is_compiled_by
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._compiling.nvrtc_library import nvrtc_version, supported_architectures
from atomr_trio._values.errors import CompileError, InvalidArgument

KERNEL = 'extern "C" __global__ void k() {}'


def test_an_architecture_says_what_its_name_means() -> None:
    arch = SmArch("sm_90a")
    assert arch is SmArch.SM_90A
    assert (arch.capability, arch.variant, arch.compute, str(arch)) == ((9, 0), "a", "compute_90a", "sm_90a")
    assert (SmArch.SM_121F.capability, SmArch.SM_121F.variant) == ((12, 1), "f")
    assert (SmArch.SM_90.capability, SmArch.SM_90.variant) == ((9, 0), "")


def test_every_member_is_called_as_its_value() -> None:
    assert all(arch.name == arch.value.upper() and ARCH.fullmatch(arch.value) for arch in SmArch)


@pytest.mark.parametrize(
    ("value", "advice"), [("sm_90b", "did you mean 'sm_90"), ("compute_90", "is written like"), (90, "is written like")]
)
def test_a_name_that_is_none_is_refused_with_one_that_is_near(value: object, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=f"SmArch: {value!r} is no architecture") as caught:
        SmArch(value)
    assert advice in str(caught.value)


def test_options_keep_the_name_of_an_architecture() -> None:
    options = NvrtcOptions(arch=SmArch.SM_90A)
    assert type(options.arch) is str
    assert options == NvrtcOptions(arch="sm_90a")


def compiles(target: str) -> bool:
    """Ask NVRTC itself."""
    try:
        compile_program(KERNEL, NvrtcOptions(), target)
    except CompileError as error:
        if "arch" in error.log:
            return False
        raise
    return True


@pytest.mark.long
def test_the_list_covers_what_this_nvrtc_supports_and_no_more_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that was missing here could not be named, and one that NVRTC lacks would fail in its own words."""
    monkeypatch.setattr(compiler, "is_compiled_by", lambda *arguments: True)
    names = {f"sm_{number}{variant}" for number in supported_architectures() for variant in ("", "a", "f")}
    taken = {name for name in names if compiles(name)}
    assert taken == {arch.value for arch in SmArch if arch.supported()}
    assert taken == {name for name in names if compiles(name.replace("sm_", "compute_"))}


@pytest.mark.parametrize(
    ("target", "version", "expected"),
    [
        ("sm_100f", (12, 9), True),
        ("sm_100f", (12, 8), False),
        ("compute_100a", (12, 8), True),
        ("sm_90f", (13, 5), False),
        ("sm_80a", (13, 5), False),
        ("sm_103", (13, 5), False),
        ("native", (13, 5), False),
    ],
)
def test_variants_follow_from_number_and_version(target: str, version: tuple[int, int], expected: bool) -> None:
    assert is_compiled_by(target, version, [80, 90, 100]) is expected


@pytest.mark.parametrize("target", ["sm_80a", "compute_90f"])
def test_a_variant_that_no_nvrtc_has_is_refused_before_it_runs(target: str) -> None:
    with pytest.raises(InvalidArgument, match=f"does not compile for '{target}'"):
        compile_program(KERNEL, NvrtcOptions(), target)
    assert nvrtc_version() >= (12, 0)
