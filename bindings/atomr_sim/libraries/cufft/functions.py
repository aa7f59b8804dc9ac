"""The simulated cuFFT: plans and their settings, work areas, and executions.

Layouts are in ``layout``, the computation is in ``transform``. The library says that it is 12.0. It computes every size
in one way: no property of a plan changes a result, and no policy makes a work area smaller. Callbacks are not
simulated: ``cufftXtSetJITCallback`` returns "not supported".

A plan belongs to the context that is current when it is created, and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atomr_cuda import cufft
from atomr_cuda.cufft import cufftProperty, cufftResult, cufftXtWorkAreaPolicy

from ..._status import Refused, require
from ...driver.process import HANDLES
from ...driver.regions import Kind
from ..dense import Counterpart, Statuses
from .layout import (
    INVALID_SIZE,
    INVALID_TYPE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    TYPES,
    Transform,
    Types,
    Wanted,
    as_given,
    check_rank,
)
from .transform import Execution

if TYPE_CHECKING:
    from ...driver.process import Context, Process

VERSION = (12, 0, 0)

_INVALID_PLAN = int(cufftResult.CUFFT_INVALID_PLAN)
_ALLOC_FAILED = int(cufftResult.CUFFT_ALLOC_FAILED)
_INTERNAL_ERROR = int(cufftResult.CUFFT_INTERNAL_ERROR)
_INVALID_DEVICE = int(cufftResult.CUFFT_INVALID_DEVICE)
_NO_WORKSPACE = int(cufftResult.CUFFT_NO_WORKSPACE)

counterpart: Counterpart = Counterpart(
    cufft.library,
    Statuses(
        not_initialized=_INVALID_PLAN,
        invalid_value=INVALID_VALUE,
        execution_failed=cufftResult.CUFFT_EXEC_FAILED,
        internal_error=_INTERNAL_ERROR,
        not_supported=NOT_SUPPORTED,
    ),
)
_entry = counterpart.entry


# The library itself.


@_entry(cufft.cufftGetVersion)
def _get_version(process: Process, result: Any) -> None:
    major, minor, patch = VERSION
    counterpart.give(result, major * 1000 + minor * 100 + patch)


@_entry(cufft.cufftGetProperty)
def _get_property(process: Process, part: int, result: Any) -> None:
    require(0 <= part < len(VERSION), INVALID_TYPE)
    counterpart.give(result, VERSION[part])


# Plans.


@dataclass
class Plan:
    """The object that cufftCreate makes. It has a transform once a function has made one."""

    context: Context
    stream: int | None = None
    auto_allocation: bool = True
    transform: Transform | None = None
    work_area: int = 0
    """The address of the work area; 0 for none."""
    owns_area: bool = False
    properties: dict[int, int] = field(default_factory=dict)
    """The properties that the caller has set."""


def _context(process: Process) -> Context:
    """The current context. "Internal error" where there is none, or it is lost: what a plan needs cannot be made."""
    require(process.stack and process.stack[-1].active and not process.fate.status, _INTERNAL_ERROR)
    return process.stack[-1]


def _add(process: Process) -> int:
    """Make a plan; returns its number, which is of 32 bits."""
    context = _context(process)
    handle = process.handles.add(Plan(context), context.handle)
    if handle - HANDLES >= 1 << 31:
        process.handles.pop(handle)
        raise Refused(_ALLOC_FAILED)
    return handle - HANDLES


def _plan(process: Process, number: int) -> Plan:
    """The plan behind a number."""
    return process.handles.get(HANDLES + number, Plan, _INVALID_PLAN)


def _made(process: Process, number: int) -> tuple[Plan, Transform]:
    """The plan behind a number, and its transform. A plan without one is not valid."""
    plan = _plan(process, number)
    if plan.transform is None:
        raise Refused(_INVALID_PLAN)
    return plan, plan.transform


@_entry(cufft.cufftCreate)
def _create(process: Process, result: Any) -> None:
    require(result, INVALID_VALUE)
    result[0] = _add(process)


@_entry(cufft.cufftDestroy)
def _destroy(process: Process, number: int) -> None:
    if number == cufft.CUFFT_PLAN_NULL:
        return
    plan = _plan(process, number)
    process.handles.pop(HANDLES + number)
    _free_area(process, plan)


def _free_area(process: Process, plan: Plan) -> None:
    """Free a work area that is the plan's own, when no queued work can use it any more."""
    if plan.owns_area:
        require(not plan.context.synchronize(), _INTERNAL_ERROR)
        process.regions.free(Kind.DEVICE, plan.work_area)
    plan.work_area, plan.owns_area = 0, False


@_entry(cufft.cufftSetStream)
def _set_stream(process: Process, number: int, stream: int | None) -> None:
    _plan(process, number).stream = stream


@_entry(cufft.cufftSetAutoAllocation)
def _set_auto_allocation(process: Process, number: int, wanted: int) -> None:
    _plan(process, number).auto_allocation = bool(wanted)


@_entry(cufft.cufftSetWorkArea)
def _set_work_area(process: Process, number: int, address: int | None) -> None:
    plan, _ = _made(process, number)
    _free_area(process, plan)
    plan.work_area = address or 0


@_entry(cufft.cufftXtSetJITCallback)
def _set_callback(process: Process, number: int, *arguments: Any) -> None:
    _plan(process, number)
    raise Refused(NOT_SUPPORTED)


# Properties of a plan: the default, and the largest value.
_PROPERTIES: dict[int, tuple[int, int]] = {
    cufftProperty.NVFFT_PLAN_PROPERTY_INT64_PATIENT_JIT: (0, 1),
    cufftProperty.NVFFT_PLAN_PROPERTY_INT64_MAX_NUM_HOST_THREADS: (1, 1 << 31),
}


def _check_property(plan: Plan, name: int) -> tuple[int, int]:
    """The default and the largest value of a property. It cannot be changed once the plan has a transform."""
    require(name in _PROPERTIES, INVALID_VALUE)
    require(plan.transform is None, NOT_SUPPORTED)
    return _PROPERTIES[name]


@_entry(cufft.cufftSetPlanPropertyInt64)
def _set_plan_property(process: Process, number: int, name: int, value: int) -> None:
    plan = _plan(process, number)
    least, most = _check_property(plan, name)
    require(least <= value <= most, INVALID_VALUE)
    plan.properties[name] = value


@_entry(cufft.cufftResetPlanProperty)
def _reset_plan_property(process: Process, number: int, name: int) -> None:
    plan = _plan(process, number)
    _check_property(plan, name)
    plan.properties.pop(name, None)


@_entry(cufft.cufftGetPlanPropertyInt64)
def _get_plan_property(process: Process, number: int, name: int, result: Any) -> None:
    plan = _plan(process, number)
    require(name in _PROPERTIES, INVALID_VALUE)
    counterpart.give(result, plan.properties.get(name, _PROPERTIES[name][0]))


# Transforms, as the functions describe them. A plan gets one after null pointers, the type and the rank are checked.


def _types(kind: int) -> Types:
    require(kind in TYPES, INVALID_TYPE)
    return TYPES[kind]


def _1d(length: int, kind: int, batch: int) -> Wanted:
    return Wanted((length,), _types(kind), batch)


def _one_of(*arguments: int) -> Wanted:
    *lengths, kind = arguments
    return Wanted(tuple(lengths), _types(kind))


def _many(rank: int, lengths: Any, *arguments: Any) -> Wanted:
    *sides, kind, batch = arguments
    require(lengths, INVALID_VALUE)
    types = _types(kind)
    check_rank(rank)
    given = as_given(rank, *sides[:3]), as_given(rank, *sides[3:])
    return Wanted(tuple(lengths[:rank]), types, batch, given)


def _xt_many(rank: int, lengths: Any, *arguments: Any) -> Wanted:
    *source, source_type, target_embedding, target_stride, target_distance, target_type, batch, computed = arguments
    require(lengths, INVALID_VALUE)
    check_rank(rank)
    given = as_given(rank, *source), as_given(rank, target_embedding, target_stride, target_distance)
    return Wanted(tuple(lengths[:rank]), (source_type, target_type), batch, given, computed)


def _make(process: Process, number: int, wanted: Wanted) -> Transform:
    """Give a plan its transform, and a work area if it has to have its own. A plan gets one transform only."""
    plan = _plan(process, number)
    require(plan.transform is None, _INVALID_PLAN)
    context, transform = _context(process), wanted.checked()
    require(context is plan.context, _INVALID_DEVICE)
    if transform.is_convolution:  # its factors are computed on the GPU
        try:
            process.synchronize_context()
        except Refused:
            raise Refused(_INTERNAL_ERROR) from None
    if plan.auto_allocation and transform.work_bytes:
        try:
            area = process.regions.allocate(Kind.DEVICE, transform.work_bytes, context.device, context.handle)
        except Refused:
            raise Refused(_ALLOC_FAILED) from None
        plan.work_area, plan.owns_area = area, True
    plan.transform = transform
    return transform


def _split(arguments: tuple[Any, ...], place: int) -> tuple[list[Any], Any]:
    """The arguments without the pointer to the bytes of the work area, and that pointer, which must not be null."""
    others = list(arguments)
    work = others.pop(place)
    require(work, INVALID_VALUE)
    return others, work


def _define(suffix: str, read: Callable[..., Wanted], prefix: str = "cufft", place: int = -1) -> None:
    """The functions whose names end alike, and that describe a transform alike."""
    functions = cufft.library.functions

    @_entry(functions[f"{prefix}MakePlan{suffix}"])
    def make(process: Process, number: int, *arguments: Any) -> None:
        others, work = _split(arguments, place)
        work[0] = _make(process, number, read(*others)).work_bytes

    @_entry(functions[f"{prefix}GetSize{suffix}"])
    def tell_size(process: Process, number: int, *arguments: Any) -> None:
        others, work = _split(arguments, place)
        try:
            wanted = read(*others)
        except Refused as refused:
            if refused.status != INVALID_TYPE:
                _plan(process, number)  # is looked up before the lengths are
            raise
        _plan(process, number)
        work[0] = wanted.checked().work_bytes

    if f"cufftPlan{suffix}" not in functions or prefix != "cufft":
        return

    @_entry(functions[f"cufftPlan{suffix}"])
    def plan(process: Process, result: Any, *arguments: Any) -> None:
        require(result, INVALID_VALUE)
        number = _add(process)
        try:
            _make(process, number, read(*arguments))
        except Refused:
            process.handles.pop(HANDLES + number)
            raise
        result[0] = number

    @_entry(functions[f"cufftEstimate{suffix}"])
    def estimate(process: Process, *arguments: Any) -> None:
        _context(process)
        others, work = _split(arguments, place)
        work[0] = read(*others).checked().work_bytes


_define("1d", _1d)
_define("2d", _one_of)
_define("3d", _one_of)
_define("Many", _many)
_define("Many64", _many)
_define("Many", _xt_many, "cufftXt", -2)


@_entry(cufft.cufftGetSize)
def _get_size(process: Process, number: int, work: Any) -> None:
    require(work, INVALID_VALUE)
    _, transform = _made(process, number)
    work[0] = transform.work_bytes


@_entry(cufft.cufftXtSetWorkAreaPolicy)
def _set_work_area_policy(process: Process, number: int, policy: int, work: Any) -> None:
    _, transform = _made(process, number)
    require(work and policy in tuple(cufftXtWorkAreaPolicy), INVALID_VALUE)
    allowed = {
        cufftXtWorkAreaPolicy.CUFFT_WORKAREA_MINIMAL: 0,
        cufftXtWorkAreaPolicy.CUFFT_WORKAREA_USER: work[0],
        cufftXtWorkAreaPolicy.CUFFT_WORKAREA_PERFORMANCE: transform.work_bytes,
    }[cufftXtWorkAreaPolicy(policy)]
    require(transform.work_bytes <= allowed, INVALID_SIZE)
    work[0] = transform.work_bytes


# Executions.


def _execute(
    process: Process, number: int, types: Types | None, source: int | None, target: int | None, direction: int | None
) -> None:
    """Queue an execution. ``types`` are those that the plan must have, the direction is None for real transforms."""
    plan, transform = _made(process, number)
    require(types in (None, transform.types), INVALID_TYPE)
    if not transform.is_real:
        require(direction in (cufft.CUFFT_FORWARD, cufft.CUFFT_INVERSE), INVALID_VALUE)
    if not source or not target or source % transform.granule or target % transform.granule:
        raise Refused(INVALID_VALUE)
    require(not process.stack or process.stack[-1] is plan.context, _INVALID_DEVICE)
    require(plan.work_area or not transform.work_bytes, _NO_WORKSPACE)
    execution = Execution(transform, source, target, direction or 0, plan.work_area)
    space = process.space
    counterpart.submit(process, plan.stream, lambda: execution.run(space))


def _define_execution(name: str, types: Types) -> None:
    @_entry(cufft.library.functions[f"cufftExec{name}"])
    def execute(
        process: Process, number: int, source: int | None, target: int | None, direction: int | None = None
    ) -> None:
        _execute(process, number, types, source, target, direction)


for _kind, _each in TYPES.items():
    _define_execution(cufft.cufftType(_kind).name.removeprefix("CUFFT_"), _each)


@_entry(cufft.cufftXtExec)
def _execute_any(process: Process, number: int, source: int | None, target: int | None, direction: int) -> None:
    _execute(process, number, None, source, target, direction)
