"""Writes a PNG file, with zlib and struct alone.

It does not depend on devices; a picture is a numpy array of bytes, height by width by three.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

# The points of the colour map: position between 0 and 1, then red, green and blue.
_COLOURS = np.array(
    [
        [0.00, 9, 14, 33],
        [0.25, 27, 64, 107],
        [0.45, 36, 132, 142],
        [0.62, 126, 196, 138],
        [0.80, 246, 214, 116],
        [1.00, 255, 247, 226],
    ]
)


def colour(values: npt.NDArray[np.floating], low: float, high: float) -> Picture:
    """Return a picture of a field of numbers: `low` and below are night blue, `high` and above are sand."""
    places = np.clip((values - low) / (high - low), 0.0, 1.0)
    channels = [np.interp(places, _COLOURS[:, 0], _COLOURS[:, channel]) for channel in (1, 2, 3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def side_by_side(pictures: list[Picture], gap: int = 8) -> Picture:
    """Join pictures of equal height in a row, with white between them and around them."""
    height = pictures[0].shape[0] + 2 * gap
    width = sum(picture.shape[1] + gap for picture in pictures) + gap
    joined = np.full((height, width, 3), 255, np.uint8)
    left = gap
    for picture in pictures:
        joined[gap : gap + picture.shape[0], left : left + picture.shape[1]] = picture
        left += picture.shape[1] + gap
    return joined


def write_png(path: Path, picture: Picture) -> None:
    """Write eight-bit RGB; every line is stored unfiltered (filter 0) and compressed by zlib."""
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = picture.reshape(height, 3 * width)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    image = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + image)
