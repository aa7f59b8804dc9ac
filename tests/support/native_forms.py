"""Calls for native code, made as that makes them, without a ring."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from atomr_trio._worker.base.lanes import NativeCall
from atomr_trio._worker.base.shared_words import MOST_ARGUMENTS, MOST_FLOATS

_KINDS = (ctypes.c_uint64,) * MOST_ARGUMENTS, (ctypes.c_double,) * MOST_FLOATS
_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, *_KINDS[0], *_KINDS[1])


def _word_at(address: int) -> Any:
    return ctypes.c_uint64.from_address(address)


def takes(form: NativeCall) -> bool:
    """Return whether the settings are as its functions want them."""
    return all(not each.guard or _word_at(each.guard).value == each.expected for each in (form, *form.then))


def made(form: NativeCall, words: Sequence[int]) -> int:
    """Make the functions with the words of a record, until one is refused. Returns its status."""
    assert takes(form)
    for target in form.targets:
        assert words[target.word] <= target.most
        _word_at(target.address).value = words[target.word] + target.base
    for each in (form, *form.then):
        floats = each.arguments.view[MOST_ARGUMENTS:].cast("B").cast("d")
        if status := _TYPE(each.function)(*each.arguments.view[:MOST_ARGUMENTS], *floats):
            return int(status)
    return 0
