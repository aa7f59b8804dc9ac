"""Records of device memory, of copies and fills, and of host memory that a worker pins."""

from __future__ import annotations

import struct

from ..protocol import Mode, Role, VerbTable

MEMORY = VerbTable("memory", 1)

CREATE_CHUNK = MEMORY.verb("create_chunk", Mode.BLOCKS, {"address": "Q", "size": "Q"}, answers=True)
"""Make physical memory and map it. The tail lists chunks (as 64-bit words) that may be released if memory is short."""

RELEASE_CHUNK = MEMORY.verb("release_chunk", Mode.BLOCKS, {"address": "Q"})

COPY_IN = MEMORY.verb(
    "copy_in", Mode.ENQUEUES, {"destination": "Q", "staging": "Q", "size": "Q"}, {"destination": Role.OVERWRITE}
)
COPY_IN_READ = MEMORY.verb(
    "copy_in_read",
    Mode.ENQUEUES,
    {"destination": "Q", "staging": "Q", "size": "Q", "address": "Q"},
    {"destination": Role.OVERWRITE},
)
"""The same, after the worker has read the bytes at an address of the user's process to the staging area. A worker that
cannot refuses it with `NOT_READ`."""

COPY_OUT = MEMORY.verb("copy_out", Mode.ENQUEUES, {"source": "Q", "staging": "Q", "size": "Q"}, {"source": Role.READ})
COPY_IN_BOX = MEMORY.verb("copy_in_box", Mode.ENQUEUES, {"area": "Q"})
"""Copy from host memory to device memory. The tail is one `BOX`. The host memory is the staging area, or an area that
was registered."""

COPY_OUT_BOX = MEMORY.verb("copy_out_box", Mode.ENQUEUES, {"area": "Q"})
COPY = MEMORY.verb("copy", Mode.ENQUEUES, {}, capturable=True, shares=True)
"""Copy inside device memory. The tail is one `BOX`."""

COPY_IN_MANY = MEMORY.verb("copy_in_many", Mode.BLOCKS, {"area": "Q"})
"""Copy several of `BOX`, which are the tail. Each takes a place in the driver's queue; the command waits for room
there."""

COPY_OUT_MANY = MEMORY.verb("copy_out_many", Mode.BLOCKS, {"area": "Q"})
COPY_MANY = MEMORY.verb("copy_many", Mode.BLOCKS, {})

_STREAM_FIELDS = {"address": "Q", "size": "Q", "piece": "Q", "first": "Q"}
COPY_IN_STREAM = MEMORY.verb("copy_in_stream", Mode.BLOCKS, _STREAM_FIELDS)
"""Copy `size` bytes in pieces, which use the slots of the staging area in turn. The tail lists the slots as `SLOT`.

The number of a piece is `first` plus the number of pieces before it. When the host or the GPU is done with a piece, it
writes this number into its own word of the slot. The GPU waits for the host's word, and nothing else is enqueued until
then.
"""

COPY_OUT_STREAM = MEMORY.verb("copy_out_stream", Mode.BLOCKS, _STREAM_FIELDS)

FILL = MEMORY.verb(
    "fill",
    Mode.ENQUEUES,
    {"destination": "Q", "pitch": "Q", "itemsize": "Q", "width": "Q", "height": "Q", "pattern": "16s"},
    {"destination": Role.OVERWRITE},
    capturable=True,
    shares=True,
)
"""Fill `height` rows of `width` items; `pattern` begins with the bytes of one item (1, 2, 4, 8 or 16 bytes)."""

REGISTER_HOST = MEMORY.verb("register_host", Mode.BLOCKS, {"area": "Q", "size": "Q"})
"""Register shared memory of the host, whose descriptor comes with the record. Once for an area, however often asked."""

UNREGISTER_HOST = MEMORY.verb("unregister_host", Mode.BLOCKS, {"area": "Q"})

MAP_PEER = MEMORY.verb("map_peer", Mode.BLOCKS, {"address": "Q", "size": "Q"})
"""Map a chunk of another device, whose descriptor comes with the record, at the address that it has in its own worker.

It makes way first: what is still mapped there is unmapped. If the driver refuses it, only the command fails.
"""

UNMAP_PEER = MEMORY.verb("unmap_peer", Mode.BLOCKS, {"address": "Q"})
"""Unmap a chunk of another device. Nothing happens if none is mapped at this address."""

STAGING_AREA = 0
"""The number of the staging area among the areas of host memory."""

AREA_SHIFT = 40
"""The number of bits for the offset in a ``staging`` field. The bits above it are the number of the area."""

OFFSET_MASK = (1 << AREA_SHIFT) - 1

NOT_READ = "HOST_MEMORY_NOT_READ"
"""The name of the failure of a command for which the worker could not read the memory of the user's process."""

BOX = struct.Struct("<9Q")
"""For the destination, then for the source: address or offset in the area, pitch, rows from plane to plane. Then: bytes
of a row, rows of a plane, planes."""

PLACES_OF_A_BOX = (0, 8, 8 + 24)
"""The offsets of what changes from one copy of a box to the next like it: the area, and the two addresses."""

PLACES_OF_A_READ = (0, 8, 16, 24)
"""The places of the words of a copy for which the worker reads the bytes: all its fields."""

PLACES_OF_PINNED = {COPY_IN_BOX.number: (8, 8 + 24, 8 + 48), COPY_OUT_BOX.number: (8 + 24, 8, 8 + 48)}
"""The offsets of what changes from one copy of a run of bytes of one area to the next like it: the device address, the
offset in the area, the bytes."""

SLOT = struct.Struct("<2Q")
"""The offset of a slot in the staging area, and of its two words: the host's, and in the next cell the GPU's."""

COPY_WORDS = (0, 24, 48)
"""The places of the words of a copy of one run as a ready record: the destination, the source, the bytes."""

FILL_WORDS = (0, 24, 40)
"""The places of the words of a fill of one row: the destination, the number of items, and the bytes of one item."""

COPY_ENDS = (0, 24)
"""The places of the words of copies that differ only in the addresses: the destination, the source."""

FILL_START = (0,)
"""The place of the word of fills that differ only in the address."""
