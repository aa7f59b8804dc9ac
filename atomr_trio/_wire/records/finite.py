"""The two calls that look for NaN and infinities in matrices."""

from __future__ import annotations

from typing import Final

NAN, INFINITY = 1, 2
"""The findings of `look`, as bits."""

ALL, BELOW, ABOVE = 0, 1, 2
"""Which part of a matrix is looked at: all of it, or one triangle with the diagonal."""

WORDS: Final = {
    "look": ("type", "A", "rows", "columns", "lda", "distance", "part", "batch", "found", "copy"),
    "taint": ("type", "A", "rows", "columns", "lda", "distance", "batch", "found", "step", "mask"),
}
"""The words of the two calls. ``type`` is the letter of the matrices' type, by its place in `LETTERS`. Matrices lie
column by column: ``lda`` and ``distance``, from one matrix to the next, are in elements. What was found is in 32-bit
words at ``found``, and for `look` at ``copy``, if that is not 0, as well; for `taint` they are ``step`` words apart."""

LETTERS: Final = "SDCZ"
