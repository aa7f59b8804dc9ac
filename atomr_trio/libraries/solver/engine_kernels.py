"""Kernels of our own for matrices with NaN and infinities: PTX, which the driver compiles.

A library call cannot do it: the sum of absolute values is NaN exactly if one of them is, but it is infinite for large
finite numbers too, it reads both triangles of a matrix, and nothing in BLAS makes an answer NaN without making an
infinity NaN as well. To transpose complex matrices cuBLAS multiplies them by one, and an infinity times the zero beside
that one is NaN. NVRTC is not needed, and may be missing. The PTX is of the oldest target that is supported, so every
driver takes it.

`look` reads each matrix once and collects what it has found, as bits, in a word for each matrix; it can make a copy on
the way. `taint` writes NaN
over every matrix whose word has one of some bits. `turn` transposes a complex matrix, `clear` writes zeros over a
triangle, and `restore` writes back what an array held if a call has failed. All know nothing of numbers but
their bits: a number is a NaN if it is above infinity without its sign, and an infinity if it is equal to that.
"""

from __future__ import annotations

import functools
import threading
from ctypes import addressof, byref, c_char_p, c_uint32, c_uint64, c_void_p, cast
from typing import TYPE_CHECKING, Any, Final

from ..._worker.base.lanes import Target
from ..._worker.base.native_calls import native_call
from ..._worker.base.sequences import LeftOut
from .records_finite import LETTERS, TAKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._worker.base.lanes import NativeCall
    from ..._worker.base.native_calls import Word

_THREADS = 128
_TILE = 16
_WIDE, _HIGH = 32, 32
"""The threads of the one block that looks at a small matrix."""
_MOST_BLOCKS = 4096
"""Of all matrices of a call, unless these are more: about twice what the largest GPU runs at once."""

# What `look`, `clear` and `taint` have in common: where their matrices lie, and a thread's first row and step.
_LOAD = """\
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [leading];
    ld.param.u64 %rd3, [distance];
    ld.param.u64 %rd4, [rows];
    ld.param.u64 %rd5, [columns];"""

_ACROSS = """\
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mul.wide.u32 %rd9, %r3, %r4;
    cvt.u64.u32 %rd10, %r5;
    add.u64 %rd9, %rd9, %rd10;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %rd10, %r3, %r4;"""

# Words of the parameters: a, leading and distance in bytes; rows in numbers, of which a complex element has two.
_LOOK = """
.visible .entry atomr_look$ONE_$W(.param .u64 a, .param .u64 leading, .param .u64 distance, .param .u64 rows,
    .param .u64 columns, .param .u64 found, .param .u64 copy, .param .u64 source, .param .u32 shift, .param .u32 part)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<24>;
    .reg .b$W %w<3>;

$LOAD
    ld.param.u64 %rd6, [found];
    ld.param.u64 %rd17, [copy];
    ld.param.u64 %rd19, [source];
    setp.ne.u64 %p0, %rd19, 0;
    sub.u64 %rd19, %rd19, %rd1;
    selp.b64 %rd19, %rd19, 0, %p0;
    ld.param.u32 %r1, [shift];
    ld.param.u32 %r2, [part];
    mov.u32 %r3, %ctaid.z;
    cvt.u64.u32 %rd7, %r3;
    mul.lo.u64 %rd8, %rd7, %rd3;
    add.u64 %rd1, %rd1, %rd8;
    shl.b64 %rd18, %rd7, 2;
    add.u64 %rd6, %rd6, %rd18;
$ACROSS
    mov.u32 %r3, %ctaid.y;
    mov.u32 %r4, %ntid.y;
    mov.u32 %r5, %tid.y;
    mul.wide.u32 %rd11, %r3, %r4;
    cvt.u64.u32 %rd12, %r5;
    add.u64 %rd11, %rd11, %rd12;
    mov.u32 %r3, %nctaid.y;
    mul.wide.u32 %rd12, %r3, %r4;
    mov.u32 %r6, 0;
COLUMN:
    setp.ge.u64 %p1, %rd11, %rd5;
    @%p1 bra SAY;
    mov.u64 %rd13, %rd9;
    mov.u64 %rd14, %rd4;
    setp.ne.u32 %p1, %r2, 1;
    @%p1 bra ABOVE;
    shl.b64 %rd15, %rd11, %r1;
    add.u64 %rd13, %rd13, %rd15;
ABOVE:
    setp.ne.u32 %p1, %r2, 2;
    @%p1 bra ROWS;
    add.u64 %rd15, %rd11, 1;
    shl.b64 %rd15, %rd15, %r1;
    min.u64 %rd14, %rd14, %rd15;
ROWS:
    mul.lo.u64 %rd15, %rd11, %rd2;
    add.u64 %rd15, %rd1, %rd15;
ROW:
    setp.ge.u64 %p1, %rd13, %rd14;
    @%p1 bra NEXT;
    shl.b64 %rd16, %rd13, $LOG;
    add.u64 %rd16, %rd15, %rd16;
    add.u64 %rd20, %rd16, %rd19;
    ld.global.b$W %w1, [%rd20];
    @%p0 st.global.b$W [%rd16], %w1;
    and.b$W %w1, %w1, $SIZE;
    setp.gt.u$W %p2, %w1, $INF;
    setp.eq.b$W %p3, %w1, $INF;
    selp.b32 %r7, 1, 0, %p2;
    selp.b32 %r8, 2, 0, %p3;
    or.b32 %r6, %r6, %r7;
    or.b32 %r6, %r6, %r8;
    add.u64 %rd13, %rd13, %rd10;
    bra ROW;
NEXT:
    add.u64 %rd11, %rd11, %rd12;
    bra COLUMN;
SAY:
$SAY
END:
    ret;
}
"""

_SAY_OF_MANY_BLOCKS = """\
    setp.eq.u32 %p1, %r6, 0;
    @%p1 bra END;
    red.global.or.b32 [%rd6], %r6;"""

# One block for each matrix writes what all of its threads have found, so nothing has to be cleared or copied.
_SAY_OF_ONE_BLOCK = """\
    and.b32 %r7, %r6, 1;
    setp.ne.u32 %p1, %r7, 0;
    bar.red.or.pred %p2, 0, %p1;
    and.b32 %r7, %r6, 2;
    setp.ne.u32 %p1, %r7, 0;
    bar.red.or.pred %p3, 0, %p1;
    selp.b32 %r7, 1, 0, %p2;
    selp.b32 %r8, 2, 0, %p3;
    or.b32 %r7, %r7, %r8;
    mov.u32 %r8, %tid.x;
    mov.u32 %r9, %tid.y;
    or.b32 %r8, %r8, %r9;
    setp.ne.u32 %p1, %r8, 0;
    @%p1 bra END;
    st.global.b32 [%rd6], %r7;
    setp.eq.u64 %p1, %rd17, 0;
    @%p1 bra END;
    add.u64 %rd17, %rd17, %rd18;
    st.global.b32 [%rd17], %r7;"""

# The triangle below the diagonal, or above it, without the diagonal: 1 and 2 as for a look. With a word that has one of
# some bits, everything else becomes NaN as by a taint.
_CLEAR = """
.visible .entry atomr_clear_$W(.param .u64 a, .param .u64 leading, .param .u64 distance, .param .u64 rows,
    .param .u64 columns, .param .u64 found, .param .u32 shift, .param .u32 part, .param .u32 step, .param .u32 mask)
{
    .reg .pred %p<6>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<20>;
    .reg .b$W %w<4>;

$LOAD
    ld.param.u64 %rd17, [found];
    ld.param.u32 %r1, [shift];
    ld.param.u32 %r2, [part];
    ld.param.u32 %r6, [step];
    ld.param.u32 %r7, [mask];
    mov.u32 %r3, %ctaid.z;
    cvt.u64.u32 %rd7, %r3;
    mov.u32 %r8, 0;
    setp.eq.u64 %p1, %rd17, 0;
    @%p1 bra FOUND;
    mul.wide.u32 %rd18, %r3, %r6;
    shl.b64 %rd18, %rd18, 2;
    add.u64 %rd17, %rd17, %rd18;
    ld.global.b32 %r8, [%rd17];
    and.b32 %r8, %r8, %r7;
FOUND:
    setp.ne.u32 %p2, %r8, 0;
    mul.lo.u64 %rd8, %rd7, %rd3;
    add.u64 %rd1, %rd1, %rd8;
$ACROSS
    mov.u32 %r3, %ctaid.y;
    cvt.u64.u32 %rd11, %r3;
    mov.u32 %r3, %nctaid.y;
    cvt.u64.u32 %rd12, %r3;
    mov.b$W %w1, 0;
    mov.b$W %w2, $NAN;
COLUMN:
    setp.ge.u64 %p1, %rd11, %rd5;
    @%p1 bra END;
    mov.u64 %rd13, 0;
    mov.u64 %rd14, %rd4;
    setp.ne.u32 %p1, %r2, 1;
    @%p1 bra ABOVE;
    add.u64 %rd15, %rd11, 1;
    shl.b64 %rd15, %rd15, %r1;
    add.u64 %rd13, %rd13, %rd15;
    bra ROWS;
ABOVE:
    shl.b64 %rd15, %rd11, %r1;
    min.u64 %rd14, %rd14, %rd15;
ROWS:
    mul.lo.u64 %rd15, %rd11, %rd2;
    add.u64 %rd15, %rd1, %rd15;
    mov.u64 %rd19, %rd9;
ROW:
    setp.ge.u64 %p1, %rd19, %rd4;
    @%p1 bra NEXT;
    setp.ge.u64 %p3, %rd19, %rd13;
    setp.lt.and.u64 %p3, %rd19, %rd14, %p3;
    or.pred %p4, %p3, %p2;
    selp.b$W %w3, %w1, %w2, %p3;
    shl.b64 %rd16, %rd19, $LOG;
    add.u64 %rd16, %rd15, %rd16;
    @%p4 st.global.b$W [%rd16], %w3;
    add.u64 %rd19, %rd19, %rd10;
    bra ROW;
NEXT:
    add.u64 %rd11, %rd11, %rd12;
    bra COLUMN;
END:
    ret;
}
"""

_TAINT = """
.visible .entry atomr_taint_$W(.param .u64 a, .param .u64 leading, .param .u64 distance, .param .u64 rows,
    .param .u64 columns, .param .u64 found, .param .u32 step, .param .u32 mask)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<24>;
    .reg .b$W %w<2>;

$LOAD
    ld.param.u64 %rd6, [found];
    ld.param.u32 %r1, [step];
    ld.param.u32 %r2, [mask];
    mov.u32 %r3, %ctaid.z;
    mul.wide.u32 %rd7, %r3, %r1;
    shl.b64 %rd7, %rd7, 2;
    add.u64 %rd6, %rd6, %rd7;
    ld.global.u32 %r4, [%rd6];
    and.b32 %r4, %r4, %r2;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra END;
    cvt.u64.u32 %rd7, %r3;
    mul.lo.u64 %rd8, %rd7, %rd3;
    add.u64 %rd1, %rd1, %rd8;
$ACROSS
    mov.u32 %r3, %ctaid.y;
    cvt.u64.u32 %rd11, %r3;
    mov.u32 %r3, %nctaid.y;
    cvt.u64.u32 %rd12, %r3;
    mov.b$W %w1, $NAN;
COLUMN:
    setp.ge.u64 %p1, %rd11, %rd5;
    @%p1 bra END;
    mov.u64 %rd13, %rd9;
    mul.lo.u64 %rd15, %rd11, %rd2;
    add.u64 %rd15, %rd1, %rd15;
ROW:
    setp.ge.u64 %p1, %rd13, %rd4;
    @%p1 bra NEXT;
    shl.b64 %rd16, %rd13, $LOG;
    add.u64 %rd16, %rd15, %rd16;
    st.global.b$W [%rd16], %w1;
    add.u64 %rd13, %rd13, %rd10;
    bra ROW;
NEXT:
    add.u64 %rd11, %rd11, %rd12;
    bra COLUMN;
END:
    ret;
}
"""

# The words of an array as they were before, if the info says that there is no result, and what was found does not.
_RESTORE = """
.visible .entry atomr_restore_$W(.param .u64 saved, .param .u64 target, .param .u64 count, .param .u64 info,
    .param .u64 found, .param .u32 mask)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<16>;
    .reg .b$W %w<2>;

    ld.param.u64 %rd1, [saved];
    ld.param.u64 %rd2, [target];
    ld.param.u64 %rd3, [count];
    ld.param.u64 %rd4, [info];
    ld.param.u64 %rd5, [found];
    ld.param.u32 %r1, [mask];
    ld.global.b32 %r2, [%rd4];
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra END;
    setp.eq.u64 %p1, %rd5, 0;
    @%p1 bra BEGIN;
    ld.global.b32 %r2, [%rd5];
    and.b32 %r2, %r2, %r1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra END;
BEGIN:
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mul.wide.u32 %rd6, %r3, %r4;
    cvt.u64.u32 %rd7, %r5;
    add.u64 %rd6, %rd6, %rd7;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %rd7, %r3, %r4;
WORD:
    setp.ge.u64 %p1, %rd6, %rd3;
    @%p1 bra END;
    shl.b64 %rd8, %rd6, $LOG;
    add.u64 %rd9, %rd1, %rd8;
    add.u64 %rd10, %rd2, %rd8;
    ld.global.b$W %w1, [%rd9];
    st.global.b$W [%rd10], %w1;
    add.u64 %rd6, %rd6, %rd7;
    bra WORD;
END:
    ret;
}
"""

# An element is two words. A tile of 16 x 16 elements is read and written in whole pieces of the memory's lines.
_TURN = """
.visible .entry atomr_turn_$W(.param .u64 a, .param .u64 leading, .param .u64 rows, .param .u64 columns,
    .param .u64 b, .param .u64 leading_b)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<20>;
    .reg .b$W %w<3>;

    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [leading];
    ld.param.u64 %rd3, [rows];
    ld.param.u64 %rd4, [columns];
    ld.param.u64 %rd5, [b];
    ld.param.u64 %rd6, [leading_b];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd7, %r1, %r2;
    cvt.u64.u32 %rd8, %r3;
    add.u64 %rd7, %rd7, %rd8;
    mov.u32 %r1, %nctaid.x;
    mul.wide.u32 %rd8, %r1, %r2;
    mov.u32 %r1, %ctaid.y;
    mov.u32 %r2, %ntid.y;
    mov.u32 %r3, %tid.y;
    mul.wide.u32 %rd9, %r1, %r2;
    cvt.u64.u32 %rd10, %r3;
    add.u64 %rd9, %rd9, %rd10;
    mov.u32 %r1, %nctaid.y;
    mul.wide.u32 %rd10, %r1, %r2;
COLUMN:
    setp.ge.u64 %p1, %rd9, %rd4;
    @%p1 bra END;
    mul.lo.u64 %rd11, %rd9, %rd2;
    add.u64 %rd11, %rd1, %rd11;
    shl.b64 %rd12, %rd9, $TWO;
    add.u64 %rd12, %rd5, %rd12;
    mov.u64 %rd13, %rd7;
ROW:
    setp.ge.u64 %p1, %rd13, %rd3;
    @%p1 bra NEXT;
    shl.b64 %rd14, %rd13, $TWO;
    add.u64 %rd14, %rd11, %rd14;
    ld.global.b$W %w1, [%rd14];
    ld.global.b$W %w2, [%rd14+$BYTES];
    mul.lo.u64 %rd15, %rd13, %rd6;
    add.u64 %rd15, %rd12, %rd15;
    st.global.b$W [%rd15], %w1;
    st.global.b$W [%rd15+$BYTES], %w2;
    add.u64 %rd13, %rd13, %rd8;
    bra ROW;
NEXT:
    add.u64 %rd9, %rd9, %rd10;
    bra COLUMN;
END:
    ret;
}
"""


def _of_width(text: str, bits: int) -> str:
    size, infinity, nan = {
        32: (0x7FFFFFFF, 0x7F800000, 0x7FC00000),
        64: (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
    }[bits]
    log = bits.bit_length() - 4
    values = {"$LOAD": _LOAD, "$ACROSS": _ACROSS, "$W": bits, "$LOG": log, "$TWO": log + 1, "$BYTES": bits // 8}
    values |= {"$SIZE": size, "$INF": infinity, "$NAN": nan}
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


_LOOK_OF_MANY_BLOCKS = _LOOK.replace("$SAY", _SAY_OF_MANY_BLOCKS).replace("$ONE", "")
_LOOK_OF_ONE_BLOCK = _LOOK.replace("$SAY", _SAY_OF_ONE_BLOCK).replace("$ONE", "_one")
PTX: Final = ".version 6.3\n.target sm_75\n.address_size 64\n" + "".join(
    _of_width(text, bits)
    for text in (_LOOK_OF_MANY_BLOCKS, _LOOK_OF_ONE_BLOCK, _TAINT, _TURN, _CLEAR, _RESTORE)
    for bits in (32, 64)
)
_KERNELS = ("look", "look_one", "taint", "turn", "clear", "restore")


class Launches:
    """What one call of ours does, ready to be done again and again: a kernel, and what stands around it."""

    __slots__ = ("_after", "_before", "_kernels", "_launch", "_name", "_parameters", "_places", "_shape", "_values")

    def __init__(
        self,
        kernels: FiniteKernels,
        name: tuple[str, int],
        shape: tuple[int, ...],
        numbers: Sequence[int],
        options: Sequence[int],
        places: Mapping[int, int],
    ) -> None:
        self._kernels = kernels
        self._name = name
        self._shape = shape
        self._values = [*map(c_uint64, numbers), *map(c_uint32, options)]
        self._parameters = (c_uint64 * len(self._values))(*map(addressof, self._values))
        self._places = places
        """Which of the numbers is which word of the call; only these may be changed."""
        self._before: Callable[[Any], None] | None = None
        self._after: Callable[[Any], None] | None = None
        self._launch: Callable[[], int] | None = None

    def around(self, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        """Have these done before and behind the kernel, with the stream."""
        self._before, self._after = before, after

    def number(self, word: int) -> int:
        """Return one of the words of the call."""
        return self._values[self._places[word]].value

    def change(self, word: int, value: int) -> None:
        """Change an address. Raises `KeyError` for a word that is none."""
        self._values[self._places[word]].value = value

    def make(self, stream: Any) -> None:
        """Enqueue it, always to the same stream."""
        launch = self._launch
        if launch is None:
            launch = self._launch = self._kernels.launch(self._name, self._shape, stream, self._parameters)
        if self._before is not None:
            self._before(stream)
        status = launch()
        if status:
            raise self._kernels.error(self._name[0], status)
        if self._after is not None:
            self._after(stream)

    def native(
        self, stream: Any, places: Mapping[int, Word], give_up: Callable[[BaseException], object]
    ) -> NativeCall | None:
        """Return it for native code, with words of a record at some places of the call; None for more than a kernel.

        From then on only native code may make it.
        """
        if self._before is not None:
            return None
        arguments = self._kernels.arguments(self._name, self._shape, stream, self._parameters)
        call = native_call(self._kernels.launching, arguments, None, give_up)
        if call is None:
            return None
        values = {place: addressof(self._values[self._places[place]]) for place in places}
        targets = [Target(word.number, values[place], word.base, word.most) for place, word in places.items()]
        return call._replace(targets=targets, keep=(call.keep, self._values, self._parameters))


class Copying:
    """A copy on the device, ready to be made again and again."""

    __slots__ = ("_driver", "_words")

    def __init__(self, driver: Any, words: Sequence[int]) -> None:
        self._driver: Any = driver
        self._words = list(words)

    def change(self, word: int, value: int) -> None:
        """Change an address."""
        self._words[word] = value

    def make(self, stream: Any) -> None:
        """Enqueue it."""
        source, target, size = self._words
        self._driver.cuMemcpyDtoDAsync(target, source, size, stream)

    def native(
        self, stream: Any, places: Mapping[int, Word], give_up: Callable[[BaseException], object]
    ) -> NativeCall | None:
        """Return it for native code, with words of a record at some places of the call."""
        source, target, size = (places.get(place, word) for place, word in enumerate(self._words))
        return native_call(self._driver.cuMemcpyDtoDAsync, (target, source, size, stream.value), None, give_up)


class FiniteKernels:
    """The kernels in this context: loaded with their first use, or ahead of it, and unloaded at the end."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._lock = threading.Lock()  # lanes call from threads of their own
        self._module: Any = None
        self._functions: dict[tuple[str, int], Any] = {}

    def load(self) -> None:
        """Have the driver compile them, which takes milliseconds, unless they are there."""
        with self._lock:
            if self._module is not None:
                return
            driver, module = self._driver, self._driver.CUmodule()
            driver.cuModuleLoadData(byref(module), cast(c_char_p(PTX.encode()), c_void_p))
            functions = {}
            try:
                for name in _KERNELS:
                    for bits in (32, 64):
                        functions[name, bits] = driver.CUfunction()
                        symbol = f"atomr_{name}_{bits}".encode()
                        driver.cuModuleGetFunction(byref(functions[name, bits]), module, symbol)
            except BaseException:
                driver.cuModuleUnload.status(module)
                raise
            self._functions, self._module = functions, module

    def unload(self) -> None:
        """Give them back."""
        if self._module is not None:
            self._driver.cuModuleUnload(self._module)
            self._module, self._functions = None, {}

    def look(self, words: Sequence[int]) -> Launches:
        """Return the look at matrices, with the words of `WORDS`."""
        kind, a, rows, columns, leading, distance, part, batch, found, copy, source = words
        driver, bits, shift = self._driver, _bits_of(kind), _shift_of(kind)
        numbers = (*_matrices(kind, a, rows, columns, leading, distance), found, copy, source)
        places = {1: 0, 8: 5, 9: 6, 10: 7}
        if (rows << shift) * columns <= TAKEN:
            shape = (1, 1, batch, _WIDE, max(min(columns, _HIGH), 1), 1, 0)
            return Launches(self, ("look_one", bits), shape, numbers, (shift, part), places)
        look = Launches(self, ("look", bits), _shape(kind, rows, columns, batch), numbers, (shift, part), places)

        def clear(stream: Any) -> None:
            driver.cuMemsetD32Async(look.number(8), 0, batch, stream)

        def keep(stream: Any) -> None:
            if look.number(9):
                driver.cuMemcpyDtoDAsync(look.number(9), look.number(8), 4 * batch, stream)

        look.around(clear, keep)
        return look

    def taint(self, words: Sequence[int]) -> Launches:
        """Return the writing of NaN over matrices, with the words of `WORDS`."""
        kind, a, rows, columns, leading, distance, batch, found, step, mask = words
        numbers = (*_matrices(kind, a, rows, columns, leading, distance), found)
        shape = _shape(kind, rows, columns, batch)
        return Launches(self, ("taint", _bits_of(kind)), shape, numbers, (step, mask), {1: 0, 7: 5})

    def clear(self, words: Sequence[int]) -> Launches:
        """Return the writing of zeros over a triangle of matrices, with the words of `WORDS`."""
        kind, a, rows, columns, leading, distance, batch, part, found, step, mask = words
        numbers = (*_matrices(kind, a, rows, columns, leading, distance), found)
        shape, options = _shape(kind, rows, columns, batch), (_shift_of(kind), part, step, mask)
        return Launches(self, ("clear", _bits_of(kind)), shape, numbers, options, {1: 0, 8: 5})

    def turn(self, words: Sequence[int]) -> Launches:
        """Return the transposition of a complex matrix into another, with the words of `WORDS`."""
        kind, a, rows, columns, leading, b, leading_b = words
        size = _bits_of(kind) // 4
        across = min(-(-rows // _TILE), _MOST_BLOCKS)
        down = min(-(-columns // _TILE), max(_MOST_BLOCKS // across, 1))
        numbers = (a, leading * size, rows, columns, b, leading_b * size)
        shape = (across, down, 1, _TILE, _TILE, 1, 0)
        return Launches(self, ("turn", _bits_of(kind)), shape, numbers, (), {1: 0, 5: 4})

    def keep(self, words: Sequence[int]) -> Copying:
        """Return the copy of bytes to where they are kept, with the words of `WORDS`."""
        return Copying(self._driver, words)

    def restore(self, words: Sequence[int]) -> Launches:
        """Return the writing of what was kept, with the words of `WORDS`."""
        saved, target, count, info, found, mask = words
        shape = (min(-(-count // _THREADS), _MOST_BLOCKS), 1, 1, _THREADS, 1, 1, 0)
        places = {0: 0, 1: 1, 3: 3, 4: 4}
        return Launches(self, ("restore", 32), shape, (saved, target, count, info, found), (mask,), places)

    def stop(self, stream: Any, words: Sequence[int]) -> None:
        """Wait for what was found; `LeftOut` is raised if it has one of the bits. The words are those of `WORDS`."""
        found, count, mask = words
        content = (c_uint32 * count)()
        self._driver.cuMemcpyDtoHAsync(addressof(content), found, 4 * count, stream)
        self._driver.cuStreamSynchronize(stream)
        if any(each & mask for each in content):
            raise LeftOut

    def launch(self, name: tuple[str, int], shape: tuple[int, ...], stream: Any, parameters: Any) -> Callable[[], int]:
        """Return the launch of a kernel with parameters of 64 bits, and behind them some of 32; it returns the status.

        The caller holds the parameters.
        """
        return functools.partial(self.launching.bind(), *self.arguments(name, shape, stream, parameters))

    @property
    def launching(self) -> Any:
        """The driver's function that launches."""
        return self._driver.cuLaunchKernel

    def arguments(self, name: tuple[str, int], shape: tuple[int, ...], stream: Any, parameters: Any) -> tuple[Any, ...]:
        """Return its arguments for a kernel."""
        if self._module is None:
            self.load()
        return (self._functions[name], *shape, stream, addressof(parameters), None)

    def error(self, name: str, status: int) -> Exception:
        """Return the error of a kernel, or of a copy, that was refused."""
        function = self._driver.cuMemcpyDtoDAsync if name == "keep" else self.launching
        error: Exception = function.library.error(status, function.symbol)
        return error


def _bits_of(kind: int) -> int:
    return 64 if LETTERS[kind] in "DZ" else 32


def _shift_of(kind: int) -> int:
    return int(LETTERS[kind] in "CZ")


def _matrices(kind: int, a: int, rows: int, columns: int, leading: int, distance: int) -> tuple[int, ...]:
    """Return the parameters that say where matrices lie."""
    shift = _shift_of(kind)
    size = (_bits_of(kind) // 8) << shift
    return a, leading * size, distance * size, rows << shift, columns


def _shape(kind: int, rows: int, columns: int, batch: int) -> tuple[int, ...]:
    """Return the grid and the block for so many matrices."""
    most = max(_MOST_BLOCKS // batch, 1)
    across = min(-(-(rows << _shift_of(kind)) // _THREADS), most)
    down = min(columns, most // across)
    return across, down, batch, _THREADS, 1, 1, 0
