"""What stands in the place of a library: its functions and its variables, for a library of the test's own."""

from __future__ import annotations

from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_cuda import Library, SymbolMissing
from atomr_sim.libraries.dense import Counterpart, Statuses

pytestmark = pytest.mark.sim_only


def test_a_counterpart_gives_functions_the_pointers_of_its_variables():
    library = Library("words", sonames=("libwords.so",), describe=lambda status: (f"WORDS_{status}", "words"))
    take, word, gone = library("wordsTake", c_void_p), library.variable("WORD"), library.variable("WORD_OF_TOMORROW")
    counterpart = Counterpart(library, Statuses(1, 2, 3, 4, 5))
    told = []

    @counterpart.entry(take)
    def taken(process: Any, given: int) -> None:
        told.append(given)

    counterpart.holds(word, 0x5AFE)
    with pytest.raises(ValueError, match="WORD is given twice"):
        counterpart.holds(word, 1)
    process: Any = SimpleNamespace(calls={"wordsTake": 0}, faults=SimpleNamespace(strike=lambda symbol: None))
    library.replace(counterpart.table(process))
    take(word.value)
    assert told == [0x5AFE]
    with pytest.raises(SymbolMissing, match="WORD_OF_TOMORROW"):
        _ = gone.value
