"""What a kernel may do with an array that it is given: `read_only`, `writes`, `overwrites`; and `strided`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, final

import attrs
import numpy as np
import numpy.typing as npt

from .._values.dtypes import check_dtype
from .._values.errors import InvalidArgument
from .._wire.protocol import Role
from .arrays import DeviceArray

if TYPE_CHECKING:
    from typing_extensions import TypeVar as Defaulting

    Element = Defaulting("Element", default=Any)
else:
    Element = TypeVar("Element")


@attrs.frozen
class DeclaredArray:
    """The annotation of an array in the signature of a kernel: ``ReadOnly[np.float32]``."""

    role: Role
    """The kernel's access to it."""
    dtype: np.dtype[Any]
    """The type of its elements."""


class ArrayForm(Protocol):
    """An array of the blocking face (`atomr_trio.plain`), which stands for the one that it holds."""

    @property
    def awaited(self) -> DeviceArray:
        """The array."""


class Marked:
    """An array, a kernel's access to it, and whether its elements may lie apart."""

    __slots__ = ("array", "role", "strided")

    array: DeviceArray
    """The array, of any shape and dtype."""
    role: Role | None
    """The kernel's access to it; None for what is known of the kernel."""
    strided: bool
    """True if the kernel knows that the array is not C-contiguous."""
    _plain: ClassVar[None] = None
    """What a launch looks at in each argument: an array without a mark has its dtype there."""

    def __init__(self, array: DeviceArray | ArrayForm | Marked, role: Role | None, *, strided: bool = False) -> None:
        inner = array if isinstance(array, Marked) else None
        if inner is not None and role is not None and inner.role not in (None, role):
            raise InvalidArgument(f"the array has another mark already: {array!r}", advice="give it one of them.")
        bare: object = getattr(array, "awaited", array) if inner is None else inner.array
        if not isinstance(bare, DeviceArray):
            raise InvalidArgument(f"expected a device array, not {type(bare).__name__}")
        self.array = bare
        self.role = role if inner is None else role or inner.role
        self.strided = strided or (inner is not None and inner.strided)

    def __repr__(self) -> str:
        words = [*(["strided"] if self.strided else []), *([] if self.role is None else [self.role.value])]
        return f"<{' '.join(words)} {self.array!r}>"


@final
class ReadOnly(Marked, Generic[Element]):
    """An argument that a kernel only reads; returned by `read_only`.

    ``ReadOnly[np.float32]`` is the annotation of such an array in the signature of a `kernel`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, dtype: npt.DTypeLike) -> DeclaredArray:
            return DeclaredArray(Role.READ, check_dtype(dtype))


@final
class Writes(Marked, Generic[Element]):
    """An argument that a kernel reads and writes; returned by `writes`.

    ``Writes[np.float32]`` is the annotation of such an array in the signature of a `kernel`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, dtype: npt.DTypeLike) -> DeclaredArray:
            return DeclaredArray(Role.WRITE, check_dtype(dtype))


@final
class Overwrites(Marked, Generic[Element]):
    """An argument that a kernel overwrites completely; returned by `overwrites`.

    ``Overwrites[np.float32]`` is the annotation of such an array in the signature of a `kernel`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, dtype: npt.DTypeLike) -> DeclaredArray:
            return DeclaredArray(Role.OVERWRITE, check_dtype(dtype))


@final
class Strided(Marked):
    """An argument whose elements may lie apart; returned by `strided`."""

    __slots__ = ()


def read_only(array: DeviceArray | ArrayForm | Strided) -> ReadOnly:
    """Declare that a kernel only reads `array`, an argument of its launch of any shape and dtype.

    Such an array survives a fault in the kernel, and kernels that read it may run beside copies of it. It is a promise:
    a kernel that writes the array anyway is not stopped. Where the kernel's PTX proves it (`Parameter.reads`), it needs
    no promise.

    Raises `InvalidArgument` for anything but a device array, and for one with another mark.
    """
    return ReadOnly(array, Role.READ)


def writes(array: DeviceArray | ArrayForm | Strided) -> Writes:
    """Declare that a kernel reads and writes `array`, an argument of its launch of any shape and dtype.

    That is what is assumed of every array, except where the kernel's PTX proves that it is only read
    (`Parameter.reads`). Then this counts: for a kernel that reaches the array by another way as well.

    Raises `InvalidArgument` for anything but a device array, and for one with another mark.
    """
    return Writes(array, Role.WRITE)


def overwrites(array: DeviceArray | ArrayForm | Strided) -> Overwrites:
    """Declare that a kernel writes every element of `array`, an argument, and reads none. The array may be torn.

    Raises `InvalidArgument` for anything but a device array, and for one with another mark.
    """
    return Overwrites(array, Role.OVERWRITE)


def strided(array: DeviceArray | ArrayForm | ReadOnly | Writes | Overwrites) -> Marked:
    """Declare that a kernel knows the strides of `array`, an argument, for example of a transposed view or a column.

    A pointer leads to the first element, and C++ takes the next ones to lie right behind it. So an array of any shape
    and dtype that is not C-contiguous is refused as an argument, unless it is marked by this. `array` may have one of
    the other marks, and keeps it.

    Raises `InvalidArgument` for anything else.
    """
    kind = type(array) if isinstance(array, Marked) else Strided
    return kind(array, None, strided=True)


MARKS: Final = (ReadOnly, Writes, Overwrites, Strided)
"""The classes of marked arguments."""
