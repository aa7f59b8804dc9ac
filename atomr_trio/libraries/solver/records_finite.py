"""The calls of our own among those of the solver, for matrices with NaN and infinities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NAN, INFINITY = 1, 2
"""The findings of `look`, as bits."""

ALL, BELOW, ABOVE = 0, 1, 2
"""Which part of a matrix is looked at: all of it, or one triangle with the diagonal."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "look": ("type", "A", "rows", "columns", "lda", "distance", "part", "batch", "found", "copy", "source"),
    "taint": ("type", "A", "rows", "columns", "lda", "distance", "batch", "found", "step", "mask"),
    "turn": ("type", "A", "rows", "columns", "lda", "B", "ldb"),
    "stop": ("found", "count", "mask"),
    "clear": ("type", "A", "rows", "columns", "lda", "distance", "batch", "part", "found", "step", "mask"),
    "keep": ("A", "B", "bytes"),
    "restore": ("A", "B", "count", "info", "found", "mask"),
}
"""The words of these calls. ``type`` is the letter of the matrices' type, by its place in `LETTERS`. Matrices lie
column by column: ``lda`` and ``distance``, from one matrix to the next, are in elements. What was found is in 32-bit
words at ``found``, and for `look` at ``copy``, if that is not 0, as well; for `taint` they are ``step`` words apart.
With a ``source``, of the same layout, `look` looks at that and copies to A what it has looked at.
`turn` writes the transpose of A to B. `stop` leaves the rest of its record out if one of ``count`` words has a bit of
``mask``. `clear` writes zeros below the diagonal, or above it, and does
for the rest what `taint` does, if ``found`` is not 0.
`keep` copies bytes from A to B. `restore` copies ``count`` 32-bit words from A to B if the info at ``info`` is not 0,
unless what was ``found`` has a bit of ``mask``."""

TAKEN: Final = 1 << 14
"""The most numbers of a matrix that one block of threads looks at: sixteen for each thread."""
LETTERS: Final = "SDCZ"
