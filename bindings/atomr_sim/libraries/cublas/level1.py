"""Vectors and rotations of the simulated cuBLAS. Signatures are described in ``calls``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda.library_types import cudaDataType as T

from .calls import listed, operation
from .matrices import by_parts, scaled

if TYPE_CHECKING:
    from ...engine.memory import Array

# The types of a typed call. Half precision is computed in single precision.
_REAL = ((T.CUDA_R_16F, T.CUDA_R_32F), (T.CUDA_R_16BF, T.CUDA_R_32F), (T.CUDA_R_32F,) * 2, (T.CUDA_R_64F,) * 2)
_COMPLEX = ((T.CUDA_C_32F, T.CUDA_R_32F), (T.CUDA_C_64F, T.CUDA_R_64F))
_ALL = (*_REAL, *((element, element) for element, _ in _COMPLEX))

_AXPY = listed(*({"alpha": exact, "x": kind, "y": kind, "execution": exact} for kind, exact in _ALL))
_SCAL = listed(*({"alpha": exact, "x": kind, "execution": exact} for kind, exact in _ALL))
_DOT = listed(*({"x": kind, "y": kind, "result": kind, "execution": exact} for kind, exact in _ALL))
_NORM = listed(
    *({"x": kind, "result": kind, "execution": exact} for kind, exact in _REAL),
    *({"x": kind, "result": real, "execution": real} for kind, real in _COMPLEX),
)
_WHERE = listed(*({"x": kind, "result": T.CUDA_R_64I} for kind, _ in _ALL))
_MOVE = listed(*({"x": kind, "y": kind} for kind, _ in _ALL))
_ROT = listed(
    *({"x": kind, "y": kind, "s": kind, "execution": exact} for kind, exact in _ALL),
    *({"x": kind, "y": kind, "s": real, "execution": kind} for kind, real in _COMPLEX),
)
_ROTM = listed(*({"x": kind, "y": kind, "param": kind, "execution": exact} for kind, exact in _REAL))
_ROTG = listed(
    *({"b": kind, "s": kind, "execution": exact} for kind, exact in _REAL),
    *({"b": kind, "s": real, "execution": kind} for kind, real in _COMPLEX),
    *({"b": kind, "s": kind, "execution": kind} for kind, _ in _COMPLEX),
)
_ROTMG = listed(
    *(
        dict.fromkeys(("d1", "d2", "x1", "y1", "param"), kind) | {"execution": exact}
        for kind, exact in _REAL
        if kind in (T.CUDA_R_32F, T.CUDA_R_64F)
    )
)


@operation("cublas{}axpy_64", "S D C Z", "count alpha x(count) y(count)")
@operation("cublasAxpyEx_64", _AXPY, "count alpha! x(count)! y(count)! execution")
def _axpy(call: Any) -> None:
    if call.alpha != 0:
        call.y.write(scaled(call.alpha, call.x.read()) + call.y.read())


@operation("cublas{}dot_64", "S D", "count x(count) y(count) result>")
@operation("cublas{}dotu_64", "C Z", "count x(count) y(count) result>")
@operation("cublas{}dotc_64", "C Z", "count x(count) y(count) result>", conjugate=True)
@operation("cublasDotEx_64", _DOT, "count x(count)! y(count)! result>! execution")
@operation("cublasDotcEx_64", _DOT, "count x(count)! y(count)! result>! execution", conjugate=True)
def _dot(call: Any, conjugate: bool = False) -> None:
    x = call.x.read()
    call.result.write(np.dot(x.conj() if conjugate else x, call.y.read()))


def _parts(values: Array) -> Array:
    """Return real numbers unchanged, complex ones as pairs of reals."""
    return np.stack((values.real, values.imag)) if np.iscomplexobj(values) else values[np.newaxis]


@operation("cublas{}nrm2_64", "S D Sc Dz", "count x~(count) result>:R")
@operation("cublasNrm2Ex_64", _NORM, "count x~(count)! result>! execution")
def _nrm2(call: Any) -> None:
    parts = np.abs(_parts(call.x.read()))
    largest = parts.max(initial=0)
    if largest == 0 or np.isinf(largest):
        call.result.write(largest)
    else:
        call.result.write(largest * np.sqrt(np.square(parts / largest).sum()))


@operation("cublas{}asum_64", "S D Sc Dz", "count x~(count) result>:R")
@operation("cublasAsumEx_64", _NORM, "count x~(count)! result>! execution")
def _asum(call: Any) -> None:
    call.result.write(np.abs(_parts(call.x.read())).sum())


@operation("cublas{}amax_64", "Is Id Ic Iz", "count x~(count) result>:L", best=np.argmax, worst=-math.inf)
@operation("cublas{}amin_64", "Is Id Ic Iz", "count x~(count) result>:L", best=np.argmin, worst=math.inf)
@operation("cublasIamaxEx_64", _WHERE, "count x~(count)! result>", best=np.argmax, worst=-math.inf)
@operation("cublasIaminEx_64", _WHERE, "count x~(count)! result>", best=np.argmin, worst=math.inf)
def _extreme(call: Any, best: Any, worst: float) -> None:
    """Return the place of an extreme, from 1; 0 if there are no elements. NaN is skipped."""
    sizes = np.abs(_parts(call.x.read())).sum(axis=0)
    call.result.write(int(best(np.where(np.isnan(sizes), worst, sizes))) + 1 if sizes.size else 0)


@operation("cublas{}copy_64", "S D C Z", "count x(count) y(count)")
@operation("cublasCopyEx_64", _MOVE, "count x(count)! y(count)!")
def _copy(call: Any) -> None:
    call.y.write(call.x.read())


@operation("cublas{}swap_64", "S D C Z", "count x(count) y(count)")
@operation("cublasSwapEx_64", _MOVE, "count x(count)! y(count)!")
def _swap(call: Any) -> None:
    x, y = call.x.read(), call.y.read()
    call.x.write(y)
    call.y.write(x)


@operation("cublas{}scal_64", "S D C Z Cs Zd", "count alpha:S x~(count)")
@operation("cublasScalEx_64", _SCAL, "count alpha! x~(count)! execution")
def _scal(call: Any) -> None:
    call.x.write(scaled(call.alpha, call.x.read()))


# Rotations.


@operation("cublas{}rot_64", "S D C Z Cs Zd", "count x(count) y(count) c:R s:S")
@operation("cublasRotEx_64", _ROT, "count x(count)! y(count)! c s! execution")
def _rot(call: Any) -> None:
    x, y, c, s = call.x.read(), call.y.read(), call.c.real, call.s
    turn = scaled if np.iscomplexobj(s) else by_parts
    call.x.write(by_parts(c, x) + turn(s, y))
    call.y.write(by_parts(c, y) - turn(s.conj(), x))


@operation("cublas{}rotg", "S D C Z", "a> b> c>:R s>")
@operation("cublasRotgEx", _ROTG, "a> b>! c> s>! execution")
def _rotg(call: Any) -> None:
    a, b = call.a.read()[0], call.b.read()[0]
    if np.iscomplexobj(a):
        a, c, s = _complex_rotation(a, b)
    else:
        a, b, c, s = _real_rotation(a, b)
    for scalar, value in ((call.a, a), (call.b, b), (call.c, c), (call.s, s)):
        scalar.write(value)


def _length(a: Any, b: Any) -> Any:
    """Return the length of a vector of two numbers, without overflow in between."""
    scale = abs(a) + abs(b)
    return scale * np.sqrt(abs(a / scale) ** 2 + abs(b / scale) ** 2) if scale else scale


def _real_rotation(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Return r, z, c and s, as in the reference BLAS: c and s can be computed again from z alone."""
    r = np.copysign(_length(a, b), a if abs(a) > abs(b) else b)
    if r == 0:
        return r * 0, r * 0, 1, 0
    c, s = a / r, b / r
    if abs(a) > abs(b):
        return r, s, c, s
    return r, 1 / c if c else 1, c, s


def _complex_rotation(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Return r, c and s, as in the reference BLAS."""
    if a == 0:
        return b, 0, 1
    length, direction = _length(a, b), a / abs(a)
    return direction * length, abs(a) / length, direction * np.conj(b) / length


# The matrix that the flag of a modified rotation makes of [h11, h21, h12, h22], which follow it: None is the given
# value.
_GIVEN: dict[int, tuple[float | None, ...]] = {
    -2: (1, 0, 0, 1),
    -1: (None, None, None, None),
    0: (1, None, None, 1),
    1: (None, -1, 1, None),
}


@operation("cublas{}rotm_64", "S D", "count x(count) y(count) param[5]")
@operation("cublasRotmEx_64", _ROTM, "count x(count)! y(count)! param[5]! execution")
def _rotm(call: Any) -> None:
    flag, *given = call.param
    fixed = _GIVEN.get(int(flag), _GIVEN[-1])
    h11, h21, h12, h22 = (
        mine if known is None else type(mine)(known) for mine, known in zip(given, fixed, strict=True)
    )
    x, y = call.x.read(), call.y.read()
    call.x.write(h11 * x + h12 * y)
    call.y.write(h21 * x + h22 * y)


@operation("cublas{}rotmg", "S D", "d1> d2> x1> y1 param[5]>")
@operation("cublasRotmgEx", _ROTMG, "d1>! d2>! x1>! y1! param[5]>! execution")
def _rotmg(call: Any) -> None:
    d1, d2, x1 = (scalar.read()[0] for scalar in (call.d1, call.d2, call.x1))
    flag, h, weights = _modified_rotation(d1, d2, x1, call.y1)
    for scalar, value in zip((call.d1, call.d2, call.x1), weights, strict=True):
        scalar.write(value)
    given = _GIVEN[flag]
    kept = call.param.read()[1:]
    call.param.write([flag, *(new if known is None else old for new, known, old in zip(h, given, kept, strict=True))])


_GAMMA = 4096
_Matrix2 = list[Any]


def _modified_rotation(d1: Any, d2: Any, x1: Any, y1: Any) -> tuple[int, _Matrix2, tuple[Any, Any, Any]]:
    """Return the flag, [h11, h21, h12, h22], and the new d1, d2 and x1, as in the reference BLAS."""
    p1, p2 = d1 * x1, d2 * y1
    q1, q2 = p1 * x1, p2 * y1
    nothing: tuple[int, _Matrix2, tuple[Any, Any, Any]] = (-1, [0, 0, 0, 0], (0, 0, 0))
    if d1 < 0:
        return nothing
    if p2 == 0:
        return -2, [1, 0, 0, 1], (d1, d2, x1)
    if abs(q1) > abs(q2):
        h = [1, -y1 / x1, p2 / p1, 1]
        u = 1 - h[1] * h[2]
        return _rescaled(0, h, d1 / u, d2 / u, x1 * u) if u > 0 else nothing
    if q2 < 0:
        return nothing
    h = [p1 / p2, -1, 1, x1 / y1]
    u = 1 + h[0] * h[3]
    return _rescaled(1, h, d2 / u, d1 / u, y1 * u)


def _rescaled(flag: int, h: _Matrix2, d1: Any, d2: Any, x1: Any) -> tuple[int, _Matrix2, tuple[Any, Any, Any]]:
    """Keep both weights between gamma**-2 and gamma**2, by powers of gamma that become part of the rotation."""
    first, second = _powers(d1), _powers(d2)
    scale = np.float64(_GAMMA)
    if first or second:
        flag = -1
    rows = (scale**-first, scale**-second)
    h = [h[0] * rows[0], h[1] * rows[1], h[2] * rows[0], h[3] * rows[1]]
    return flag, h, (d1 * scale ** (2 * first), d2 * scale ** (2 * second), x1 * scale**-first)


def _powers(weight: Any) -> int:
    """Return how often a weight must be multiplied by gamma squared."""
    size, times = abs(float(weight)), 0
    while 0 < size <= _GAMMA**-2:
        size, times = size * _GAMMA**2, times + 1
    while math.inf > size >= _GAMMA**2:
        size, times = size / _GAMMA**2, times - 1
    return times
