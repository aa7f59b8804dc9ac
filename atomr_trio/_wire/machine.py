"""The parts of NVIDIA's software and hardware on this machine, and the advice for a user without a GPU.

The one place that knows what to advise where a GPU or a driver is missing. It looks at files alone, except for
`lacking`, which loads libraries, and for which a process of its own is the place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

DRIVER_VARIABLE: Final = "ATOMR_TRIO_CUDA_PATH"
DEVICES_VARIABLE: Final = "ATOMR_TRIO_SIM_DEVICES"
IN_PYTHON: Final = 'open_device(0, backend="sim"), or set ATOMR_TRIO_BACKEND=sim'
"""The way in which a program asks for the simulator. Commands and the plugin put their own option in its place."""
SIMULATOR_EXTRA: Final = "sim"
_OF_SIMULATOR: Final = ("nvrtc", "nvjitlink")
"""The libraries that the simulator does not have in its own form."""
_NVIDIA_VENDOR: Final = "0x10de"


def nvidia_cards() -> list[str]:
    """Addresses of the display and compute devices of NVIDIA on the PCI bus."""
    return [
        vendor.parent.name
        for vendor in sorted(Path("/sys/bus/pci/devices").glob("*/vendor"))
        if vendor.read_text().strip() == _NVIDIA_VENDOR and (vendor.parent / "class").read_text().startswith("0x03")
    ]


def in_container() -> bool:
    """Return whether this is a container of Docker or Podman."""
    return any(Path(sign).exists() for sign in ("/.dockerenv", "/run/.containerenv"))


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f'pip install "atomr-trio[{extra}]"'


def use_simulator(lacks: Collection[str]) -> str:
    """Return the advice for a machine without a GPU. `lacks` names what the simulator needs and misses."""
    if not lacks:
        return f"the simulator works here: {IN_PYTHON}"
    missing = f"{' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'}"
    return f"the simulator works once {missing} installed: {install(SIMULATOR_EXTRA)}, then {IN_PYTHON}"


def without_driver(lacks: Collection[str]) -> str:
    """Return the advice for a machine without a driver; `lacks` as for `use_simulator`."""
    if os.environ.get(DRIVER_VARIABLE):
        return f"{DRIVER_VARIABLE} names no driver that can be loaded: mend it or unset it. Or {use_simulator(lacks)}."
    if not nvidia_cards():
        return f"no NVIDIA GPU is in this machine; {use_simulator(lacks)}."
    if in_container():
        return (
            f"a GPU is there, but the container has no driver: start it with `--gpus all`. Or {use_simulator(lacks)}."
        )
    return (
        "a GPU is there, but no driver: install your distribution's, as in `sudo apt install nvidia-driver-580`. "
        f"Or {use_simulator(lacks)}."
    )


def without_gpu(lacks: Collection[str]) -> str:
    """Return the advice for a driver that sees no GPU; `lacks` as for `use_simulator`."""
    return f"the driver sees no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES. Or {use_simulator(lacks)}."


def lacking() -> list[str]:
    """Return the libraries that the simulator needs and that are missing. It loads libraries."""
    from atomr_cuda import LibraryMissing, nvjitlink, nvrtc

    missing = []
    for library in (nvrtc.library, nvjitlink.library):
        with contextlib.suppress(OSError):  # no room to look, which says nothing about what is installed
            try:
                library.load()
            except LibraryMissing:
                missing.append(library.name)
    return lacking_of(missing)


def lacking_of(missing: Iterable[str]) -> list[str]:
    """Return the packages that the simulator needs and that are missing, given the `missing` libraries by name.

    The extra `sim` brings all of it.
    """
    return [*(name for name in missing if name in _OF_SIMULATOR), *([] if has_scipy() else ["scipy"])]


def needless(extra: str | None) -> bool:
    """Return whether the libraries of an extra have no use here, because the simulator replaces them."""
    from atomr_cuda import gpu_is_here

    return extra not in (None, SIMULATOR_EXTRA) and not gpu_is_here()


def has_scipy() -> bool:
    """Return whether scipy is installed, which the simulated libraries of linear algebra and of transforms use."""
    return importlib.util.find_spec("scipy") is not None


def of_failed_start(backend: str, device: int, error: BaseException) -> str | None:
    """The advice for a device that cannot be opened, where it depends on the machine. For the worker, which loads.

    None where the status says it all.
    """
    status = getattr(error, "status", None)
    if backend == "sim":
        numbers = {100: f"set {DEVICES_VARIABLE} to 1 or more, or unset it.", 101: _more_devices(device)}
        return numbers.get(status or 0)
    if (type(error).__name__, getattr(error, "library", None)) == ("LibraryMissing", "cuda"):
        return without_driver(lacking())
    return without_gpu(lacking()) if status == 100 else None


def _more_devices(device: int) -> str:
    return f"the simulator has 1 device unless {DEVICES_VARIABLE} says more: set it to {device + 1}, or use index 0."
