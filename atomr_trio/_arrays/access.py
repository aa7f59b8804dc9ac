"""What a kernel may do with an array that it is given: `read_only`, `overwrites`."""

from __future__ import annotations

from typing import final

from .._values.errors import InvalidArgument
from .._wire.protocol import Role
from .arrays import DeviceArray


class Marked:
    """An array and a kernel's access to it."""

    __slots__ = ("array", "role")

    array: DeviceArray
    """The array, of any shape and dtype."""
    role: Role
    """The kernel's access to it."""

    def __init__(self, array: DeviceArray, role: Role) -> None:
        if not isinstance(array, DeviceArray):
            raise InvalidArgument(f"expected a device array, not {type(array).__name__}")
        self.array = array
        self.role = role

    def __repr__(self) -> str:
        return f"<{self.role.value} {self.array!r}>"


@final
class ReadOnly(Marked):
    """An argument that a kernel only reads; returned by `read_only`."""

    __slots__ = ()


@final
class Overwrites(Marked):
    """An argument that a kernel overwrites completely; returned by `overwrites`."""

    __slots__ = ()


def read_only(array: DeviceArray) -> ReadOnly:
    """Declare that a kernel only reads `array`, an argument of its launch.

    Such an array survives a fault in the kernel, and kernels that read it may run beside copies of it. It is a promise:
    a kernel that writes the array anyway is not stopped.

    Raises `InvalidArgument` for anything but a device array.
    """
    return ReadOnly(array, Role.READ)


def overwrites(array: DeviceArray) -> Overwrites:
    """Declare that a kernel writes every element of `array`, an argument, and reads none. The array may be torn.

    Raises `InvalidArgument` for anything but a device array.
    """
    return Overwrites(array, Role.OVERWRITE)
