"""The plan of a product for the library: the sizes, the dtypes, the matrices, the records.

An output that lies row by row is computed as the transpose of what the library sees, so its factors change places.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import DATA_TYPES
from ..._calls.linear import (
    OPERATIONS,
    Matrix,
    Operation,
    broadcast,
    check_array,
    check_operation,
    layout_refusal,
    strides_text,
)
from ..._calls.verbs import Library, Operands, Scalar
from ..._generation.requests import CommandRequest
from ..._transfers.memory import plan_fill
from ..._values.errors import InvalidArgument
from ..._values.util import known, shown
from . import types
from .extras import Extras, Shape, aux_of, stack_of, vector_of
from .programs import matmul_program, transform_program
from .records import SCALAR_BYTES, Addresses, Layout, Problem, pack_layouts, plan_key
from .types import FLOAT8, Dtypes, Product, compute_of, product_of

_MAX_BATCH = 2**31 - 1

_SUMMED = {"a": types.BGRADA, "b": types.BGRADB}
"""The epilogues that sum an input. An H200 has algorithms for them only where that lies across the sums of the product:
``a`` column by column, and ``b`` row by row."""


@attrs.frozen
class Factor:
    """An input, and its operation."""

    name: str
    array: DeviceArray
    wanted: Operation

    @classmethod
    def of(cls, array: object, name: str, operation: object) -> Factor:
        checked = check_array(array, name)
        if checked.ndim < 2:
            raise InvalidArgument(f"{name} has at least 2 axes, not {checked.ndim}: its shape is {checked.shape}")
        wanted = check_operation(operation, f"op_{name}")
        real = checked.dtype.kind != "c"
        return cls(name, checked, "T" if wanted == "C" and real else wanted)

    @property
    def shape(self) -> Shape:
        """The rows and columns after the operation."""
        rows, columns = self.array.shape[-2:]
        return (rows, columns) if self.wanted == "N" else (columns, rows)


@attrs.frozen
class Size:
    """The sizes of a product: a number of matrices of m rows and n columns, whose elements are sums of k products."""

    batch: Shape
    m: int
    n: int
    k: int

    @property
    def shape(self) -> Shape:
        return (*self.batch, self.m, self.n)

    @property
    def count(self) -> int:
        return math.prod(self.batch)

    @classmethod
    def of(cls, a: Factor, b: Factor) -> Size:
        (m, k), (rows, n) = a.shape, b.shape
        if rows != k:
            raise InvalidArgument(f"a has {k} columns and b has {rows} rows, after op_a and op_b")
        stacks = a.array.shape[:-2], b.array.shape[:-2]
        try:
            batch = np.broadcast_shapes(*stacks)
        except ValueError:
            raise InvalidArgument(f"the leading axes of a, {stacks[0]}, and of b, {stacks[1]}, do not fit") from None
        if math.prod(batch) > _MAX_BATCH:
            raise InvalidArgument(f"a batch of {math.prod(batch)} matrices; the most is {_MAX_BATCH}")
        return cls(batch, m, n, k)


@attrs.frozen
class _Side:
    """A matrix as the library takes it, with the library's operation on it."""

    name: str
    matrix: Matrix
    operation: int = OPERATIONS["N"]

    def layout(self, dtype: str | None = None) -> Layout:
        return layout_of(self.matrix, dtype)


def layout_of(matrix: Matrix, dtype: str | None = None) -> Layout:
    """Return the layout of a matrix for the library; with another dtype if its elements are never read."""
    kind = DATA_TYPES[matrix.array.dtype.name if dtype is None else dtype]
    return Layout(kind, *matrix.seen, matrix.leading, matrix.distance or 0)


def transform_request(library: Library, source: Matrix, target: Matrix, operands: Operands) -> CommandRequest:
    """Return the command that copies matrices to memory in the other order."""
    dtype = source.array.dtype.name
    scale = types.TRANSFORM_SCALES.get(dtype, dtype)
    layouts = layout_of(source), layout_of(target)
    what = (DATA_TYPES[scale], OPERATIONS["T"], source.count)
    return library._execution(
        (*what, pack_layouts(*layouts)),
        lambda: transform_program(*what, layouts),
        (source.address, target.address),
        Scalar.of(1, scale).content.ljust(SCALAR_BYTES, b"\0"),
        operands,
        operation="transform",
    )


@attrs.frozen
class Kind:
    """The arithmetic of a product, by its dtypes and its options."""

    dtypes: Dtypes
    product: Product
    compute: int
    scale: str
    """The dtype of alpha and beta."""

    @classmethod
    def of(
        cls,
        a: DeviceArray,
        b: DeviceArray,
        c: DeviceArray | None,
        out: DeviceArray,
        bias: DeviceArray | None,
        compute: object,
    ) -> Kind:
        dtypes = (a.dtype.name, b.dtype.name, _addend_dtype(c, out, bias), out.dtype.name)
        product = product_of(dtypes)
        return cls(dtypes, product, *compute_of(product, dtypes, compute))

    @property
    def inputs(self) -> str:
        """The dtype of `a`; that of `b` has as many bits."""
        return self.dtypes[0]

    @property
    def addend(self) -> str:
        """The dtype of the added matrix."""
        return self.dtypes[2]

    @property
    def output(self) -> str:
        """The dtype of the result."""
        return self.dtypes[3]

    def check_epilogue(self, done: int, name: str | None) -> None:
        """Raise `InvalidArgument` for an epilogue if the dtypes support none."""
        if done != types.NOTHING and self.product.bias is None:
            raise InvalidArgument(f"products of {self.inputs} to {self.output} support no epilogue; {name!r} was given")

    def scalar(self, value: complex, name: str) -> bytes:
        """Return alpha or beta as the library reads it."""
        content = Scalar.of(value, self.scale).content
        if self.scale == "int32" and value not in (0, 1):
            raise InvalidArgument(f"{name} is 0 or 1 for products of int8 to int32, not {shown(value)}")
        return content


def _addend_dtype(c: DeviceArray | None, out: DeviceArray, bias: DeviceArray | None) -> str:
    """Return the dtype of the added matrix; the library needs one even if nothing is added."""
    if c is not None:
        return check_array(c, "c").dtype.name
    if out.dtype.name not in FLOAT8:
        return out.dtype.name
    return "bfloat16" if bias is None else check_array(bias, "bias").dtype.name


def addend_of(c: DeviceArray | None, out: DeviceArray | None, output: DeviceArray, beta: complex) -> DeviceArray | None:
    """Return the added matrix; None if nothing is added."""
    if c is not None and c.shape != output.shape:
        raise InvalidArgument(f"c has shape {c.shape}, and the result has {output.shape}")
    if beta == 0:
        return None
    if c is None and out is None:
        raise InvalidArgument("beta is not 0, and neither c nor out is given: give one of them")
    return output if c is None else c


def target_of(output: DeviceArray, done: int, epilogue: str | None) -> Matrix:
    """Return the output as the library takes it. Raises `InvalidArgument`."""
    target = stack_of(output)
    if target is None:
        needed = "one of the last two axes must be contiguous, and the matrices at one distance"
        text = layout_refusal(output, needed, written=True)
        raise InvalidArgument(f"out is not a stack that cuBLASLt takes: {text}")
    if not target.by_rows and done & (types.BIAS | types.BGRAD | types.AUX):
        raise InvalidArgument(
            f"out lies column by column ({strides_text(output)}), and with epilogue={epilogue!r} it must lie row by row"
        )
    return target


@attrs.frozen
class Call:
    """A call that was checked, except for shared memory."""

    library: Library
    kind: Kind
    size: Size
    epilogue: int
    extras: Extras
    output: DeviceArray
    target: Matrix
    addend: DeviceArray | None

    def check_apart(self, *factors: DeviceArray) -> None:
        """Raise `InvalidArgument` for outputs that share memory, and for arrays that were freed or are elsewhere."""
        written = [self.output, *self.extras.outputs(self.epilogue)]
        read = [*factors, *self.extras.inputs(self.epilogue)]
        if self.addend is not None:
            same = (self.addend.address, self.addend.strides) == (self.output.address, self.output.strides)
            check_apart(self.output, *(() if same else (self.addend,)))
            for array in written[1:]:
                check_apart(array, self.addend)
        for index, array in enumerate(written):
            check_apart(array, *read, *written[:index])
        self.library._operands().reads(*read, *written, *(() if self.addend is None else (self.addend,)))

    def plan_nothing(self) -> None:
        """Plan a product without elements: only sums of no rows are computed."""
        gradient, amax = self.extras.bias_gradient, self.extras.amax
        if amax is not None:
            raise InvalidArgument(f"a product of shape {self.output.shape} has no largest element for amax")
        if gradient is None or not gradient.size:
            return
        if not self.epilogue & types.BGRAD:
            raise InvalidArgument(
                f"a product of shape {self.output.shape} has no elements, so the sums of its inputs are not computed"
            )
        self.library._requests += plan_fill(gradient, 0, self.library._lane)

    def plan(self, first: Factor, second: Factor, alpha: bytes, beta: bytes) -> None:
        """Plan the product."""
        if not self.size.k:
            first, second = self._zeros()
        library, done = self.library, self.epilogue
        factors = [self._side(first), self._side(second)]
        if self.target.by_rows:  # computed as its transpose
            factors.reverse()
            done = types.MIRRORED.get(done, done)
        target = _Side("out", self.target)
        added = self._addend_side(target)
        sides = (*factors, added, target)
        self._check_granules(sides)
        vector, aux = self._vector(), self._aux()
        problem = Problem(
            self.kind.compute,
            DATA_TYPES[self.kind.scale],
            factors[0].operation,
            factors[1].operation,
            done,
            0 if vector is None else DATA_TYPES[vector.array.dtype.name],
            self.size.count,
            0 if vector is None else vector.distance or 0,
            0 if aux is None else aux.leading,
            0 if aux is None else aux.distance or 0,
            (*(side.layout() for side in factors), added.layout(self.kind.addend), target.layout()),
        )
        addresses = self._addresses(sides)
        operands = self._roles(sides)
        content = problem.pack()
        request = library._execution(
            plan_key(content, addresses),
            lambda: matmul_program(problem, addresses),
            addresses,
            alpha.ljust(SCALAR_BYTES, b"\0") + beta.ljust(SCALAR_BYTES, b"\0"),
            operands,
            operation="matmul",
        )
        library._requests.append(request)

    def _addresses(self, sides: tuple[_Side, ...]) -> Addresses:
        a, b, c, d = (side.matrix.address for side in sides)
        extras, scales = self.extras, {name: _address(array) for name, array in self.extras.scales.items()}
        if self.target.by_rows:
            scales.update(scale_a=scales["scale_b"], scale_b=scales["scale_a"])
        # A C that is not read is set to D, unless they cannot be the same.
        if self.addend is None and self.kind.addend != self.kind.output:
            c = 0
        bias = extras.bias_gradient if extras.bias is None else extras.bias
        scale_out = scales.pop("scale_out")
        return Addresses(
            a, b, c, d, _address(bias), _address(extras.aux), **scales, scale_d=scale_out, amax=_address(extras.amax)
        )

    def _roles(self, sides: tuple[_Side, ...]) -> Operands:
        operands, extras = self.library._operands(), self.extras
        operands.reads(*(side.matrix.array for side in sides[:2]), *extras.inputs(self.epilogue))
        if self.addend is not None:
            operands.reads(sides[2].matrix.array)
        operands.writes(self.output, keeps=False)
        for array in extras.outputs(self.epilogue):
            # The library does not write the unused bits of a mask.
            operands.writes(array, keeps=array is extras.aux and bool(self.epilogue & types.RELU))
        return operands

    def _zeros(self) -> tuple[Factor, Factor]:
        """Return inputs for empty sums: the shortest sums that the library takes, of zeros."""
        (left, right, *_), (m, n) = self.kind.dtypes, self.output.shape[-2:]
        length, memory = self.kind.product.granule, self.library._memory
        return (
            Factor("a", memory.zeros((m, length), left), "N"),
            Factor("b", memory.zeros((n, length), right).T, "N"),
        )

    def _side(self, factor: Factor) -> _Side:
        """Return an input as the library takes it, and its operation; copied if it cannot be used in place."""
        array = broadcast(factor.array, (*self.size.batch, *factor.array.shape[-2:]))
        if self.kind.product.granule > 1:
            return self._narrow_side(factor, array)
        matrix, by_rows = self._summed(factor, array) or stack_of(array) or self._packed(array), self.target.by_rows
        operation = matrix.operation(factor.wanted, by_rows)
        if operation is None:  # the library cannot conjugate without transposing
            matrix, operation = self._reordered(matrix, by_rows), OPERATIONS["C"]
        return _Side(factor.name, matrix, operation)

    def _summed(self, factor: Factor, array: DeviceArray) -> Matrix | None:
        """Return an input whose sums are needed, in the only order in which the library makes them; else None."""
        if self.epilogue != _SUMMED.get(factor.name):
            return None
        by_rows = (factor.name == "b") == (factor.wanted == "N")
        return stack_of(array, by_rows) or self._reordered(stack_of(array) or self._packed(array), by_rows)

    def _narrow_side(self, factor: Factor, array: DeviceArray) -> _Side:
        """Return an input of 8 bits, which the library takes only if it is contiguous along the axis that is summed."""
        seen = stack_of(array, by_rows=(factor.name == "a") == (factor.wanted == "N"))
        operation = None if seen is None else seen.operation(factor.wanted, self.target.by_rows)
        if seen is None or operation is None:
            raise InvalidArgument(f"{factor.name} {self._form_text(array)}")
        return _Side(factor.name, seen, operation)

    def _addend_side(self, target: _Side) -> _Side:
        """Return the added matrix in the order of the output. If nothing is added, the library still needs a layout."""
        if self.addend is None:
            return target
        by_rows = self.target.by_rows
        matrix = stack_of(self.addend, by_rows) or stack_of(self.addend) or self._packed(self.addend)
        return _Side("c", matrix if matrix.by_rows == by_rows else self._reordered(matrix, by_rows))

    def _packed(self, array: DeviceArray) -> Matrix:
        """Return a copy in the order of the array, so that whole rows of it are copied, or whole columns."""
        row, column = (abs(stride) or math.inf for stride in array.strides[-2:])  # a repeated axis is not contiguous
        copy = self._new_matrix(array, column <= row)
        self.library._copy(array, copy.array)
        return copy

    def _reordered(self, matrix: Matrix, by_rows: bool) -> Matrix:
        """Return a copy in the other order."""
        copy, library = self._new_matrix(matrix.array, by_rows), self.library
        operands = library._operands()
        operands.reads(matrix.array)
        operands.writes(copy.array, keeps=False)
        library._requests.append(transform_request(library, matrix, copy, operands))
        return copy

    def _new_matrix(self, like: DeviceArray, by_rows: bool) -> Matrix:
        *batch, rows, columns = like.shape
        array = self.library._empty((*batch, rows, columns) if by_rows else (*batch, columns, rows), like.dtype)
        if not by_rows:
            array = array.transpose(*range(len(batch)), -1, -2)
        return known(stack_of(array, by_rows), "a new array is contiguous")

    def _vector(self) -> Matrix | None:
        """Return the bias or its gradient."""
        size, dtype = self.size, self.kind.product.bias
        if self.extras.bias is not None:
            return vector_of(self.extras.bias, "bias", size.batch, size.n, dtype)
        if self.extras.bias_gradient is None:
            return None
        length = size.m if self.epilogue & types.BGRADA else size.n
        return vector_of(self.extras.bias_gradient, "bias_gradient", size.batch, length, dtype)

    def _aux(self) -> Matrix | None:
        if self.extras.aux is None:
            return None
        return aux_of(self.extras.aux, self.epilogue, self.output)

    def _check_granules(self, sides: tuple[_Side, ...]) -> None:
        """Raise `InvalidArgument` for sizes and addresses that the kernels for elements of 8 bits do not take."""
        product = self.kind.product
        for side in sides:
            layout, array = side.layout(), side.matrix.array
            unit = array.itemsize if product.granule_in_bytes else 1
            lengths = [length * unit for length in (layout.rows, layout.leading, layout.distance)]
            if math.gcd(*lengths, array.address) % product.granule:
                raise InvalidArgument(f"{side.name} {self._form_text(array)}")

    def _form_text(self, array: DeviceArray) -> str:
        product, dtype = self.kind.product, self.kind.inputs
        needed = (
            "both inputs must be contiguous along the axis that is summed (b as the transpose of an array of shape "
            "(n, k), say), and addresses, contiguous axes and the distances between those multiples of "
            f"{product.granule} {'bytes' if product.granule_in_bytes else 'elements'}"
        )
        text = layout_refusal(array, needed, written=False)
        return f"does not fit a product of {dtype}: {text}"


def _address(array: DeviceArray | None) -> int:
    return 0 if array is None else array.address
