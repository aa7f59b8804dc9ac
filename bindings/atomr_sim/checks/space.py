"""The address space of a process whose launches are checked: it reports memory that becomes accessible or changes."""

from __future__ import annotations

from ..engine.affine import Array
from ..engine.memory import AddressSpace
from .arrays import Arrays


class CheckedSpace(AddressSpace):
    """An `AddressSpace` that keeps `Arrays` up to date."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__()
        self.arrays = arrays

    def add(self, address: int, size: int, what: str = "memory") -> None:
        """Make bytes accessible, as their own extent."""
        super().add(address, size, what)
        self.arrays.add(address, size, what)

    def remove(self, address: int) -> None:
        """Make a region inaccessible again."""
        self.arrays.remove(address)
        super().remove(address)

    def view(self, address: int, size: int) -> Array:
        """Return a writable view of bytes: its caller may write them."""
        self.written(address, size)
        return super().view(address, size)

    def written(self, address: int, size: int) -> None:
        """The host, a copy or a library uses these bytes."""
        self.arrays.written(address, size)
