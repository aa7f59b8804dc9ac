"""The architectures that CUDA code is compiled for, by name.

This file is data: it loads no library. Only `SmArch.supported` asks the compiler, which it imports when it is called.
"""

from __future__ import annotations

import difflib
import enum
import re

from atomr_trio._values.errors import InvalidArgument

__all__ = ["ARCH", "SmArch", "capability_of", "dotted", "is_compiled_by", "virtual"]

ARCH = re.compile(r"(compute|sm)_(\d{2,3})([af]?)", re.ASCII)
"""The pattern of a target's name: virtual or real, the capability's digits, the variant."""

_SPECIFIC_SINCE = 90
"""The first architecture that has an "a" variant."""
_FAMILY_SINCE = 100
"""The first architecture that has an "f" variant."""
_FAMILIES_CAME_WITH = (12, 9)
"""The first NVRTC that knows "f" variants."""


class SmArch(enum.Enum):
    """A GPU architecture that NVRTC compiles for: `SmArch.SM_90A`, or `SmArch("sm_90a")`.

    "sm_90a" is code for exactly this architecture, with instructions that only it has; "sm_100f" is code for the
    family, 10.0 and newer devices of 10.x. Both are targets of their own, and differ from "sm_90" and "sm_100". An
    architecture of a newer NVRTC that is missing in this list can be given to `NvrtcOptions.arch` as a string.
    """

    SM_50 = "sm_50"
    """Maxwell: GeForce GTX 750."""
    SM_52 = "sm_52"
    """Maxwell: GeForce GTX 900, Tesla M40."""
    SM_53 = "sm_53"
    """Maxwell: Jetson TX1, Jetson Nano."""
    SM_60 = "sm_60"
    """Pascal: Tesla P100."""
    SM_61 = "sm_61"
    """Pascal: GeForce GTX 10, Tesla P4 and P40."""
    SM_62 = "sm_62"
    """Pascal: Jetson TX2."""
    SM_70 = "sm_70"
    """Volta: V100."""
    SM_72 = "sm_72"
    """Volta: Jetson Xavier."""
    SM_75 = "sm_75"
    """Turing: GeForce RTX 20, T4."""
    SM_80 = "sm_80"
    """Ampere: A100."""
    SM_86 = "sm_86"
    """Ampere: GeForce RTX 30, A10, A40."""
    SM_87 = "sm_87"
    """Ampere: Jetson Orin."""
    SM_88 = "sm_88"
    """Ampere: capability 8.8."""
    SM_89 = "sm_89"
    """Ada: GeForce RTX 40, L4, L40."""
    SM_90 = "sm_90"
    """Hopper: H100, H200."""
    SM_90A = "sm_90a"
    """Capability 9.0 alone, with the instructions that only it has."""
    SM_100 = "sm_100"
    """Blackwell: B200."""
    SM_100A = "sm_100a"
    """Capability 10.0 alone, with the instructions that only it has."""
    SM_100F = "sm_100f"
    """The family of capability 10.0: it, and newer ones of 10.x."""
    SM_101 = "sm_101"
    """Blackwell: Jetson Thor, as CUDA 12 calls it."""
    SM_101A = "sm_101a"
    """Capability 10.1 alone, with the instructions that only it has."""
    SM_101F = "sm_101f"
    """The family of capability 10.1: it, and newer ones of 10.x."""
    SM_103 = "sm_103"
    """Blackwell: B300."""
    SM_103A = "sm_103a"
    """Capability 10.3 alone, with the instructions that only it has."""
    SM_103F = "sm_103f"
    """The family of capability 10.3: it, and newer ones of 10.x."""
    SM_107 = "sm_107"
    """Capability 10.7."""
    SM_107A = "sm_107a"
    """Capability 10.7 alone, with the instructions that only it has."""
    SM_107F = "sm_107f"
    """The family of capability 10.7: it, and newer ones of 10.x."""
    SM_110 = "sm_110"
    """Blackwell: Jetson Thor, as CUDA 13 calls it."""
    SM_110A = "sm_110a"
    """Capability 11.0 alone, with the instructions that only it has."""
    SM_110F = "sm_110f"
    """The family of capability 11.0: it, and newer ones of 11.x."""
    SM_120 = "sm_120"
    """Blackwell: GeForce RTX 50, RTX PRO 6000."""
    SM_120A = "sm_120a"
    """Capability 12.0 alone, with the instructions that only it has."""
    SM_120F = "sm_120f"
    """The family of capability 12.0: it, and newer ones of 12.x."""
    SM_121 = "sm_121"
    """Blackwell: GB10."""
    SM_121A = "sm_121a"
    """Capability 12.1 alone, with the instructions that only it has."""
    SM_121F = "sm_121f"
    """The family of capability 12.1: it, and newer ones of 12.x."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> SmArch:
        near = difflib.get_close_matches(str(value), [member.value for member in cls], n=1)
        advice = f"did you mean {near[0]!r}?" if near else 'a name is written like "sm_90" or "sm_90a".'
        raise InvalidArgument(f"SmArch: {value!r} is no architecture that is known", advice=advice)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of its devices, major and minor: (9, 0)."""
        return capability_of(self.value)

    @property
    def variant(self) -> str:
        """The variant after the number: "a" (this architecture alone), "f" (its family), or nothing."""
        return self.value.lstrip("sm_0123456789")

    @property
    def compute(self) -> str:
        """The virtual architecture of the same number and variant: "compute_90a". Compiling for it gives PTX."""
        return virtual(self.value)

    def supported(self) -> bool:
        """Tell whether the installed NVRTC compiles for it. The function is ``nvrtcGetSupportedArchs``.

        Raises `LibraryNotFound` when there is no NVRTC.
        """
        from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version, supported_architectures

        with nvrtc_errors():
            return is_compiled_by(self.value, nvrtc_version(), supported_architectures())


def capability_of(target: str) -> tuple[int, int]:
    """Return the capability in the name of a target, which has to be one: "sm_90a" says (9, 0)."""
    match = ARCH.fullmatch(target)
    assert match is not None, target
    return int(match[2][:-1]), int(match[2][-1])


def virtual(target: str) -> str:
    """Return the virtual architecture of a target: "sm_90a" is compiled by way of "compute_90a"."""
    return target.replace("sm_", "compute_")


def dotted(version: tuple[int, int]) -> str:
    """Return a capability or a version as text: "9.0"."""
    return f"{version[0]}.{version[1]}"


def is_compiled_by(target: str, version: tuple[int, int], numbers: list[int]) -> bool:
    """Tell whether an NVRTC of this version, which lists these architectures, compiles for a target.

    The list has numbers alone. The variants follow from the number and the version, as in all releases since 12.0.
    """
    match = ARCH.fullmatch(target)
    if match is None or int(match[2]) not in numbers:
        return False
    number, variant = int(match[2]), match[3]
    if variant == "a":
        return number >= _SPECIFIC_SINCE
    return not variant or (number >= _FAMILY_SINCE and version >= _FAMILIES_CAME_WITH)
