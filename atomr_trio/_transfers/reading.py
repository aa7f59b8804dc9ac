"""What copies have in common of which the worker reads bytes of the host's array itself.

The worker copies these bytes to a slot while the task does something else (``_wire/host_reading.py``): two processors
copy, without a thread that must be woken, and without the interpreter's lock.

It reads memory that numpy has allocated. Of other memory nobody knows how it is made: it may be that of a device, which
cannot be read so, or a file that comes slowly. A task that is cancelled waits until all is read, since its array is its
own again then. That takes some 0.1 ms for each megabyte: everything before it on the lane is a copy of this kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .._values.errors import DeviceError
from .._wire.protocol import RECORDS_READ_WORD
from .._wire.records.memory import NOT_READ

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .short_copies import CopyPath

READ_LEAST: Final = 128 << 10
"""The worker reads pieces of so many bytes and more. Smaller ones are copied faster than a record is written."""
MOST_BEHIND: Final = 4
"""It gets none while it has not done with so many records."""
LEAVING_SECONDS: Final = 1.0
"""A task that is cancelled waits for the worker no longer than this."""


def may_read(path: CopyPath, host: npt.NDArray[Any]) -> bool:
    """Return whether the worker may read an array now: it can, and nothing before it on the lane takes long."""
    return path.reads and not path.book.in_flight and is_of_numpy(host)


def is_of_numpy(host: npt.NDArray[Any]) -> bool:
    """Return whether numpy has allocated the memory of an array, for it or for another of which it is a part."""
    if host.flags.owndata:
        return True
    owner = host.base
    return type(owner) is np.ndarray and owner.flags.owndata


def is_ready_to_read(path: CopyPath) -> bool:
    """Return whether the worker has nearly done with what it was sent."""
    sender = path.generation.sender
    return sender.sent - path.words[RECORDS_READ_WORD] < MOST_BEHIND


def was_not_read(error: BaseException) -> bool:
    """Return whether the error says that the worker could not read the host's array. The task is to copy it then."""
    return isinstance(error, DeviceError) and error.status_name == NOT_READ


def tear_unread(array: DeviceArray) -> None:
    """Mark an array as torn: not all of the host's was read, or the worker may read it when it has other contents."""
    block = array._block
    if not block.freed:
        block.tear(block.torn or "a copy that ended before its bytes were read")
