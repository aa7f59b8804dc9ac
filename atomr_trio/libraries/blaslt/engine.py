"""Matrix products with their epilogues, by cuBLASLt: the plans that compute them.

A plan consists of cuBLASLt's descriptors and the algorithm that its heuristics propose for them. The key of a plan has
all that the plan depends on: the whole problem, the alignment of the addresses, which of them there are, and whether C
is D. So a call with other addresses finds the plan of the call before.
"""

from __future__ import annotations

import collections
import functools
import threading
from ctypes import byref, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p, sizeof
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants import cublaslt as lt
from atomr_cuda.constants.cublas import CUBLAS_STATUS_NOT_SUPPORTED

from ..._worker.base.calls import ENTRIES_OF_A_CALL, made_ready, refusal
from .records import (
    BLASLT,
    FIRST_MATMUL,
    MATMUL,
    MATRICES,
    OPEN,
    PLANS,
    SCALAR_BYTES,
    TRANSFORM,
    WORKSPACE_BYTES,
    Addresses,
    Key,
    Layout,
    Problem,
    alignment,
    plan_key,
    unpack_layouts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._worker.base.lanes import Command, Lane, Ready, WorkerServices

_POINTERS = {
    "bias": lt.CUBLASLT_MATMUL_DESC_BIAS_POINTER,
    "aux": lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
    "scale_a": lt.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
    "scale_b": lt.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
    "scale_c": lt.CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
    "scale_d": lt.CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
    "amax": lt.CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
}
"""The attributes of ``cublasLtMatmulDescAttributes_t`` that are addresses."""
_FIRST_POINTER = len(Addresses._fields) - len(_POINTERS)
_ALIGNMENTS = (
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
)
_BIAS_BITS = (
    lt.CUBLASLT_EPILOGUE_BIAS
    | (lt.CUBLASLT_EPILOGUE_DRELU_BGRAD & ~lt.CUBLASLT_EPILOGUE_DRELU)
    | lt.CUBLASLT_EPILOGUE_BGRADA
    | lt.CUBLASLT_EPILOGUE_BGRADB
)
_AUX_BIT = lt.CUBLASLT_EPILOGUE_RELU_AUX & ~lt.CUBLASLT_EPILOGUE_RELU
_ZERO = bytes(SCALAR_BYTES)


class _Plan:
    """The descriptors and the algorithm of one lane: no other lane sets the addresses in them."""

    def __init__(self, library: Any, problem: Problem) -> None:
        self._library = library
        self._problem = problem
        self._addresses: tuple[int | None, ...] = (0,) * len(_POINTERS)
        """The addresses in the product's descriptor; None for an address that is unknown, because setting it failed."""
        self.layouts: list[Any] = []
        self.product = c_void_p()
        self.algorithm = library.cublasLtMatmulAlgo_t()
        self.workspace_bytes = 0
        library.cublasLtMatmulDescCreate(byref(self.product), problem.compute, problem.scale)
        try:
            self._describe_product()
            _describe_matrices(library, problem.layouts, problem.batch, self.layouts)
        except BaseException:
            self.destroy()
            raise

    def _describe_product(self) -> None:
        problem = self._problem
        values: dict[int, Any] = {
            lt.CUBLASLT_MATMUL_DESC_TRANSA: c_int32(problem.operation_a),
            lt.CUBLASLT_MATMUL_DESC_TRANSB: c_int32(problem.operation_b),
            lt.CUBLASLT_MATMUL_DESC_EPILOGUE: c_uint32(problem.epilogue),
        }
        if problem.epilogue & _BIAS_BITS:
            values[lt.CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE] = c_int32(problem.bias_type)
            values[lt.CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE] = c_int64(problem.bias_distance)
        if problem.epilogue & _AUX_BIT:
            values[lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD] = c_int64(problem.aux_leading)
            values[lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE] = c_int64(problem.aux_distance)
        _set_all(self._library.cublasLtMatmulDescSetAttribute, self.product, values)

    def point(self, addresses: Addresses) -> None:
        """Set the addresses in the product's descriptor that have changed."""
        given = addresses[_FIRST_POINTER:]
        if given != self._addresses:
            changed = zip(_POINTERS.values(), self._addresses, given, strict=True)
            values = {number: c_void_p(address) for number, before, address in changed if address != before}
            self._addresses = (None,) * len(_POINTERS)
            _set_all(self._library.cublasLtMatmulDescSetAttribute, self.product, values)
            self._addresses = given

    def choose(self, handle: Any, addresses: Addresses) -> int:
        """Take the best algorithm by the heuristics, or return the status with which they report that there is none."""
        library = self._library
        preference, result, count = c_void_p(), library.cublasLtMatmulHeuristicResult_t(), c_int()
        library.cublasLtMatmulPreferenceCreate(byref(preference))
        try:
            a, b, c, d, *_ = addresses
            matrices = zip(_ALIGNMENTS, (a, b, c or d, d), strict=True)  # when C is not read, it may have no address
            values: dict[int, Any] = {number: c_uint32(alignment(address)) for number, address in matrices}
            values[lt.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES] = c_uint64(WORKSPACE_BYTES)
            _set_all(library.cublasLtMatmulPreferenceSetAttribute, preference, values)
            status: int = library.cublasLtMatmulAlgoGetHeuristic.status(
                handle, self.product, *self.layouts, preference, 1, byref(result), byref(count)
            )
        finally:
            library.cublasLtMatmulPreferenceDestroy.status(preference)
        if status or not count.value or result.state:
            return status or result.state or CUBLAS_STATUS_NOT_SUPPORTED
        self.algorithm, self.workspace_bytes = result.algo, result.workspaceSize
        return 0

    def destroy(self) -> None:
        """Destroy the descriptors; cuBLASLt has copied what running work needs of them."""
        _destroy_matrices(self._library, self.layouts)
        self._library.cublasLtMatmulDescDestroy.status(self.product)


def _describe_matrices(library: Any, layouts: tuple[Layout, ...], batch: int, made: list[Any]) -> None:
    """Make the descriptors of the layouts; `made` holds those that were made, even after an error."""
    for layout in layouts:
        matrix = c_void_p()
        library.cublasLtMatrixLayoutCreate(byref(matrix), *layout[:-1])
        made.append(matrix)
        values = {
            lt.CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: c_int32(batch),
            lt.CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: c_int64(layout.distance),
        }
        _set_all(library.cublasLtMatrixLayoutSetAttribute, matrix, values)


def _destroy_matrices(library: Any, made: list[Any]) -> None:
    for matrix in made:
        library.cublasLtMatrixLayoutDestroy.status(matrix)


def _set_all(function: Any, descriptor: Any, values: dict[int, Any]) -> None:
    """Set attributes of a descriptor, by their numbers."""
    for number, value in values.items():
        function(descriptor, number, byref(value), sizeof(value))


class _LanePlans:
    """The objects that are kept for one lane."""

    def __init__(self) -> None:
        self.plans: collections.OrderedDict[Key, _Plan] = collections.OrderedDict()
        self.workspace: Any = None


class BlasLtEngine:
    """The calls behind the verbs above."""

    table = BLASLT

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import cublaslt, driver

        self._services = services
        self._cublaslt = cublaslt
        self._driver = driver
        self._handle: Any = None
        self._making_handle = threading.Lock()
        self._lanes: dict[int, _LanePlans] = {}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            MATMUL.number: self._matmul,
            FIRST_MATMUL.number: self._matmul,
            TRANSFORM.number: self._transform,
            OPEN.number: self._open_ahead,
        }

    def _matmul(self, command: Command, lane: Lane) -> None:
        content, *numbers, alpha, beta = MATMUL.struct.unpack(command.payload)
        addresses = Addresses(*numbers)
        kept = self._lanes.get(lane.index) or self._lanes.setdefault(lane.index, _LanePlans())
        key = plan_key(content, addresses)
        plan = kept.plans.get(key)
        if plan is None:
            plan = self._make_plan(Problem.unpack(content), addresses, lane)
            self._keep(kept, key, plan)
        else:
            kept.plans.move_to_end(key)
            plan.point(addresses)
        function = self._cublaslt.cublasLtMatmul
        words = self._words_of(plan, addresses, alpha, beta, kept, lane)
        lane.weigh(command.ticket, ENTRIES_OF_A_CALL)
        with lane.calling:
            status = function.status(*words)
        if status:
            raise self._refusal(function, status, Problem.unpack(content), lane)

    def hot_call(self, verb: int, payload: bytes, lane: Lane) -> Ready | None:
        """Return a product whose plan exists, ready to be called; see `RepeatingEngine`."""
        kept = self._lanes.get(lane.index)
        if verb != MATMUL.number or kept is None:
            return None
        content, *numbers, alpha, beta = MATMUL.struct.unpack(payload)
        addresses = Addresses(*numbers)
        plan = kept.plans.get(plan_key(content, addresses))
        if plan is None:
            return None
        function = self._cublaslt.cublasLtMatmul

        def error_of(status: int) -> Exception:
            return self._refusal(function, status, Problem.unpack(content), lane)

        words = self._words_of(plan, addresses, alpha, beta, kept, lane)
        prepare = functools.partial(plan.point, addresses)
        return made_ready(prepare, functools.partial(function.bind(), *words), error_of)

    def _words_of(
        self, plan: _Plan, addresses: Addresses, alpha: bytes, beta: bytes, kept: _LanePlans, lane: Lane
    ) -> tuple[Any, ...]:
        """Return the arguments of the library's function."""
        a, b, c, d = plan.layouts
        operands = (alpha, addresses.a, a, addresses.b, b, beta, addresses.c, c, addresses.d, d)
        place = (self._workspace(kept) if plan.workspace_bytes else None, plan.workspace_bytes, lane.stream)
        return (self._handle, plan.product, *operands, byref(plan.algorithm), *place)

    def _make_plan(self, problem: Problem, addresses: Addresses, lane: Lane) -> _Plan:
        handle = self._open()
        plan = _Plan(self._cublaslt, problem)
        try:
            plan.point(addresses)
            status = plan.choose(handle, addresses)
            if status:
                raise self._refusal(self._cublaslt.cublasLtMatmulAlgoGetHeuristic, status, problem, lane)
        except BaseException:
            plan.destroy()
            raise
        return plan

    def _transform(self, command: Command, lane: Lane) -> None:
        scale, operation, batch, content, source, target, alpha = TRANSFORM.struct.unpack(command.payload)
        library, handle = self._cublaslt, self._open()
        transform, made = c_void_p(), list[Any]()
        library.cublasLtMatrixTransformDescCreate(byref(transform), scale)
        try:
            values = {lt.CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA: c_int32(operation)}
            _set_all(library.cublasLtMatrixTransformDescSetAttribute, transform, values)
            _describe_matrices(library, unpack_layouts(content), batch, made)
            function, (given, wanted) = library.cublasLtMatrixTransform, made
            nothing = (_ZERO, None, None)
            status = function.status(handle, transform, alpha, source, given, *nothing, target, wanted, lane.stream)
            if status:
                raise refusal(self._driver, function.library, status, function.symbol, lane)
        finally:
            _destroy_matrices(library, made)
            library.cublasLtMatrixTransformDescDestroy.status(transform)

    def _open_ahead(self, command: Command, lane: Lane) -> None:
        self._open()

    def _open(self) -> Any:
        """Return the handle. It is one for all lanes; their threads may ask for it at the same time."""
        with self._making_handle:
            if self._handle is None:
                handle = self._cublaslt.cublasLtHandle_t()
                self._cublaslt.cublasLtCreate(byref(handle))
                self._handle = handle
        return self._handle

    def _keep(self, kept: _LanePlans, key: Key, plan: _Plan) -> None:
        kept.plans[key] = plan
        if len(kept.plans) > PLANS:
            _, oldest = kept.plans.popitem(last=False)
            self._services.forget_hot()  # another call may still be prepared to use it
            oldest.destroy()

    def _workspace(self, kept: _LanePlans) -> Any:
        """Return the lane's workspace. A lane runs its work in order, so all its plans share the workspace."""
        if kept.workspace is None:
            workspace = self._driver.CUdeviceptr()
            self._driver.cuMemAlloc(byref(workspace), WORKSPACE_BYTES)
            kept.workspace = workspace
        return kept.workspace.value

    def _refusal(self, function: Any, status: int, problem: Problem, lane: Lane) -> Exception:
        """Return the text of a status, with the problem where the status says that there is no algorithm."""
        if status != CUBLAS_STATUS_NOT_SUPPORTED:
            return refusal(self._driver, function.library, status, function.symbol, lane)
        plain = function.library.error(status, function.symbol)
        text = f"{plain.text}: cuBLASLt has no algorithm for {self._words(problem)}"
        error: Exception = self._services.cuda_error(status, plain.name, text, plain.library, function.symbol)
        return error

    def _words(self, problem: Problem) -> str:
        """Return a problem in the words of the library's header."""
        names = self._cublaslt
        operations = ("N", "T", "C")
        done = (operations[problem.operation_a], operations[problem.operation_b], "N", "N")
        matrices = (
            f"{name.upper()} {names.cudaDataType(layout.type).name} {layout.rows} x {layout.columns} {operation}"
            f" (ld {layout.leading}, stride {layout.distance})"
            for name, layout, operation in zip(MATRICES, problem.layouts, done, strict=True)
        )
        return ", ".join(
            (
                names.cublasLtEpilogue_t(problem.epilogue).name,
                names.cublasComputeType_t(problem.compute).name,
                *matrices,
                f"batch {problem.batch}",
            )
        )

    def forget_lane(self, index: int) -> list[Callable[[], object]]:
        """Forget the objects of a lane that is closed, and return the calls that give them back."""
        kept = self._lanes.pop(index, None)
        if kept is None:
            return []
        calls: list[Callable[[], object]] = [plan.destroy for plan in kept.plans.values()]
        if kept.workspace is not None:
            calls.append(functools.partial(self._driver.cuMemFree, kept.workspace))
        return calls

    def close(self) -> None:
        """Give everything back."""
        for index in list(self._lanes):
            for call in self.forget_lane(index):
                call()
        if self._handle is not None:
            self._cublaslt.cublasLtDestroy(self._handle)
