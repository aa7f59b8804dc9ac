"""Every family there is."""

from __future__ import annotations

from . import (
    atomics,
    cooperative,
    fast,
    functions,
    grids,
    half,
    half_types,
    indexing,
    integers,
    language,
    learn,
    linear,
    rounding,
    scan,
    simulate,
    sort,
    warp,
)
from .case import Case, Family

FAMILIES: tuple[Family, ...] = (
    indexing.family,
    warp.family,
    atomics.family,
    scan.family,
    linear.family,
    grids.family,
    sort.family,
    simulate.family,
    simulate.uncontracted,
    learn.family,
    language.family,
    integers.family,
    *functions.FAMILIES,
    rounding.family,
    rounding.flushing,
    fast.family,
    fast.throughout,
    half.family,
    half_types.family,
    cooperative.family,
)

CASES: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.cases)
