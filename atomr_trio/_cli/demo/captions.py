"""The captions of the demo's panels, in letters of nine by five points: there need be no font on the machine.

It does not depend on devices; a picture is a numpy array of bytes, height by width by three.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .png import Picture

_WIDTH = 6
"""A letter's points from left to right, with the gap to the next."""

# The letters of each line of names lie side by side in the rows below it.
_DIGITS = "0123456789"
_DIGIT_ROWS = (
    ".###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.",
    "#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#",
    "#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#",
    "#.#.# ..#.. ..##. ..##. #..#. ....# ####. ..#.. .###. .####",
    "##..# ..#.. .#... ....# ##### ....# #...# .#... #...# ....#",
    "#...# ..#.. #.... #...# ...#. #...# #...# .#... #...# ...#.",
    ".###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..",
    "..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
    "..... ..... ..... ..... ..... ..... ..... ..... ..... .....",
)
_LETTERS = "aeflnoprstuy,"
_LETTER_ROWS = (
    "..... ..... ..##. .##.. ..... ..... ..... ..... ..... .#... ..... ..... .....",
    "..... ..... .#..# ..#.. ..... ..... ..... ..... ..... .#... ..... ..... .....",
    ".###. .###. .#... ..#.. #.##. .###. ####. #.##. .#### ###.. #...# #...# .....",
    "....# #...# ###.. ..#.. ##..# #...# #...# ##..# #.... .#... #...# #...# .....",
    ".#### ##### .#... ..#.. #...# #...# #...# #.... .###. .#... #...# #...# .....",
    "#...# #.... .#... ..#.. #...# #...# #...# #.... ....# .#..# #..## #...# ..#..",
    ".#### .###. .#... .###. #...# .###. ####. #.... ####. ..##. .##.# .#### ..#..",
    "..... ..... ..... ..... ..... ..... #.... ..... ..... ..... ..... ....# ..#..",
    "..... ..... ..... ..... ..... ..... #.... ..... ..... ..... ..... .###. .#...",
)
_HEIGHT = len(_DIGIT_ROWS)
_INK = np.array([40, 44, 52], np.uint8)


def _drawn(text: str, scale: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return the points of a line of text, each `scale` pixels wide and high. `KeyError`: a letter is missing."""
    glyphs = {" ": [(0,) * _WIDTH] * _HEIGHT}
    for names, rows in ((_DIGITS, _DIGIT_ROWS), (_LETTERS, _LETTER_ROWS)):
        for place, name in enumerate(names):
            columns = slice(place * _WIDTH, place * _WIDTH + _WIDTH - 1)
            glyphs[name] = [(*(point == "#" for point in row[columns]), 0) for row in rows]
    points = np.array([sum((glyphs[letter][row] for letter in text), ()) for row in range(_HEIGHT)], np.bool_)
    return np.kron(points, np.ones((scale, scale), np.bool_))


def captioned(pictures: Sequence[Picture], captions: Sequence[str]) -> list[Picture]:
    """Return the pictures, all of one width, each below a white strip with its caption.

    The letters are as large as the longest caption allows, up to a twentieth of the width.
    """
    width = pictures[0].shape[1]
    widest = max(map(len, captions)) * _WIDTH
    scale = max(1, min(width // widest, width // (20 * _WIDTH)))
    result = []
    for picture, caption in zip(pictures, captions, strict=True):
        ink = _drawn(caption, scale)[:, :width]
        strip = np.full((ink.shape[0] + 2 * scale, width, 3), 255, np.uint8)
        strip[scale : scale + ink.shape[0], : ink.shape[1]][ink] = _INK
        result.append(np.concatenate([strip, picture]))
    return result
