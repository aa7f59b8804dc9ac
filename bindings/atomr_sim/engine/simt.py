"""A PTX module in host memory, and its kernels, ready to be launched.

This is the interface of the engine: from text to kernels. Everything that cannot be run is found and named here, when
the module is loaded. Streams, contexts and handles belong to the simulated driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ptx import text as ptx
from ..ptx.codegen import BlockEmitter, Code, Namespace, Symbols, Writer, namespace, shared_key, translate
from ..ptx.text import Address, Function, Immediate, PtxError, Symbol, UnsupportedPtx, Variable
from . import mbarrier
from .atomics import atomic
from .copies import copy_bulk, copy_each
from .execution import Launch
from .memory import HEAP, PARAMETERS, AddressSpace, Array, access
from .shared import RESERVED_SHARED

_HELPERS: Namespace = namespace() | {
    "atomic": atomic,
    "Access": access,
    "copy_bulk": copy_bulk,
    "copy_each": copy_each,
    "mbarrier": mbarrier,
}
_FORMATS = {8: "<B", 16: "<H", 32: "<I", 64: "<Q"}
_GAP = 64
"""Bytes between two module variables, so that a pointer that runs out of one is caught."""
_HEAP_BYTES = 8 << 20
_MAX_REGISTERS = 255
_WORKSPACE_BYTES = 64
"""The name of a cooperative launch's workspace for the barrier of its grid."""

# glibc gives memory back to the kernel above thresholds that begin at 128 KiB, and raises them to the largest block
# that it has seen freed.  The engine's temporaries are just above: without this, each of them would cost page faults.
np.empty(16 << 20, np.uint8)


@dataclass(frozen=True, slots=True)
class Tools:
    """The classes with which a module is translated and launched; those of `checks` check what its kernels do."""

    emitter: Writer
    launch: Callable[..., Launch]


PLAIN = Tools(BlockEmitter, Launch)


class LoadedModule:
    """A module with its variables in memory and its functions translated."""

    def __init__(self, text: str, memory: AddressSpace, tools: Tools = PLAIN) -> None:
        self.memory = memory
        self.tools = tools
        self._parsed = ptx.parse(text)
        self.reserved_shared_bytes: int = RESERVED_SHARED if "%reserved_smem_offset_" in text else 0
        """Shared memory after each block's own, in which cooperative_groups keeps the data of its tiles."""
        self.heap: Heap = Heap(memory)
        self._registered: list[int] = []
        self._place()
        symbols = Symbols(self._addresses, self._shared_variables(), self._parsed.functions)
        defined = [function for function in self._parsed.functions.values() if function.defined]
        self.codes: dict[str, Code] = {
            function.name: translate(function, self._parsed, symbols, tools.emitter) for function in defined
        }
        self._fill()
        self.globals: dict[str, tuple[int, int]] = {
            variable.name: (self._addresses[variable.name], variable.size) for variable in self._stored()
        }
        for name, (address, size) in self.globals.items():
            if size:
                self.memory.add(address, size, f"variable {name}")
                self._registered.append(address)
        self.functions: dict[str, KernelFunction] = {
            function.name: KernelFunction(self, self.codes[function.name]) for function in defined if function.entry
        }

    def unload(self) -> None:
        """Make the module's variables and its kernels' allocated memory inaccessible. A second call does nothing."""
        for address in self._registered:
            self.memory.remove(address)
        self._registered.clear()
        self.heap.close()

    def _stored(self) -> Iterable[Variable]:
        """Return the variables in global memory: those of the module, and the static ones of its functions."""
        scopes = [self._parsed.variables, *(function.variables for function in self._parsed.functions.values())]
        for variables in scopes:
            yield from (variable for variable in variables.values() if variable.space in ("global", "const"))

    def _shared_variables(self) -> dict[str, Variable]:
        return {name: variable for name, variable in self._parsed.variables.items() if variable.space == "shared"}

    def _place(self) -> None:
        """Give every variable an address, and every function an address that only a call can use."""
        offset = 0
        offsets: dict[str, int] = {}
        for variable in self._stored():
            if variable.extern:
                raise PtxError(f"{variable.name} is declared but not defined", variable.line)
            align = max(variable.align, 16)
            offset = -(-offset // align) * align
            offsets[variable.name] = offset
            offset += variable.size + _GAP
        for name in self._parsed.functions:
            offset = -(-offset // 16) * 16
            offsets[name] = offset
            offset += 16
        largest = max([256, *(variable.align for variable in self._stored())])
        self._memory_block: Array = np.zeros(offset + largest, np.uint8)
        base = int(self._memory_block.ctypes.data)
        base += -base % largest
        self._base = base
        self._addresses = {name: base + at for name, at in offsets.items()}
        functions = self._parsed.functions.values()
        self.callable_at: dict[int, str] = {
            self._addresses[function.name]: function.name for function in functions if function.defined
        }

    def _fill(self) -> None:
        """Write the initial values."""
        start = int(self._memory_block.ctypes.data)
        for variable in self._stored():
            if not variable.values:
                continue
            data = b"".join(self._encoded(variable, value) for value in variable.values)
            if len(data) > variable.size:
                raise PtxError(f"{variable.name} has too many values", variable.line)
            at = self._addresses[variable.name] - start
            self._memory_block[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _encoded(self, variable: Variable, value: Immediate | Address) -> bytes:
        width = ptx.WIDTHS[variable.kind]
        if isinstance(value, Address):
            assert isinstance(value.base, Symbol)
            if value.base.name not in self._addresses or width != 64:
                raise UnsupportedPtx(f"the initial value of {variable.name} is not simulated", variable.line)
            return struct.pack("<Q", self._addresses[value.base.name] + value.offset)
        if "f" in variable.kind and value.kind != variable.kind:
            return struct.pack({16: "<e", 32: "<f", 64: "<d"}[width], value.number)
        return struct.pack(_FORMATS[width], value.bits & ((1 << width) - 1))

    def reachable(self, code: Code) -> list[Code]:
        """Return the function and everything that it can call."""
        found = {code.function.name: code}
        waiting = [code]
        while waiting:
            caller = waiting.pop()
            names = self.codes if caller.indirect else caller.callees
            for name in names:
                if name in self.codes and name not in found:
                    found[name] = self.codes[name]
                    waiting.append(self.codes[name])
        return list(found.values())

    def shared_layout(self, code: Code) -> tuple[dict[str, int], int]:
        """Return the place of each `.shared` variable that the kernel can use, and the bytes of the fixed ones."""
        variables: dict[str, Variable] = {}
        for part in self.reachable(code):
            for variable in (*part.function.variables.values(), *self._shared_variables().values()):
                key = shared_key(part.function, variable.name)
                if variable.space == "shared" and key in part.shared:
                    variables[key] = variable
        layout: dict[str, int] = {}
        size = 0
        fixed = {key: variable for key, variable in variables.items() if not variable.unsized}
        for key, variable in fixed.items():
            size = -(-size // variable.align) * variable.align
            layout[key] = size
            size += variable.size
        for key, variable in variables.items():
            if variable.unsized:
                layout[key] = -(-size // max(variable.align, 16)) * max(variable.align, 16)
        return layout, size


class KernelFunction:
    """A kernel of a loaded module."""

    def __init__(self, module: LoadedModule, code: Code) -> None:
        self._module = module
        self._code = code
        self.static_shared_bytes: int
        self._shared, self.static_shared_bytes = module.shared_layout(code)
        self.name: str = code.function.name
        self.parameters: tuple[tuple[int, int], ...] = tuple(
            (code.parameters[parameter.name], parameter.size) for parameter in code.function.parameters
        )
        self.parameter_bytes: int = code.parameter_bytes
        self.local_bytes: int = sum(
            variable.size for variable in code.function.variables.values() if variable.space == "local"
        )
        self.max_threads_per_block: int = _thread_limit(code.function)
        self.cluster: tuple[int, ...] = code.function.limits.get("reqnctapercluster", (0, 0, 0))
        """The blocks of a cluster that the kernel declares; zeros if it declares none."""
        self.registers: int = _register_estimate(code)

    def __repr__(self) -> str:
        return f"<KernelFunction {self.name}>"

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: bytes,
        output: Callable[[bytes], None],
        cluster: tuple[int, int, int] = (1, 1, 1),
        workspace_given: bool = False,
    ) -> None:
        """Run the whole grid in this thread. A `DeviceFault` ends it; earlier writes stay."""
        if len(parameters) != self.parameter_bytes:
            raise ValueError(f"{self.name} takes {self.parameter_bytes} bytes of parameters, not {len(parameters)}")
        if min(*grid, *block) < 1:
            raise ValueError(f"grid {grid} of blocks {block} is empty")
        # A kernel may take the address of a parameter, so the buffer is memory that it can read.
        buffer: Array = np.zeros(max(self.parameter_bytes, 1) + 16, np.uint8)
        skipped = -buffer.ctypes.data % 16
        held = buffer[skipped : skipped + max(self.parameter_bytes, 1)]
        held[: len(parameters)] = np.frombuffer(parameters, np.uint8)
        workspace: Array = np.zeros(_WORKSPACE_BYTES, np.uint8)
        total = max([self.static_shared_bytes, *self._shared.values()]) + shared_bytes
        module = self._module
        reserved = -(-total // 16) * 16, module.reserved_shared_bytes
        launch = module.tools.launch(
            name=self.name,
            code=self._code,
            codes=module.codes,
            callable_at=module.callable_at,
            memory=module.memory,
            heap=module.heap,
            helpers=_HELPERS,
            grid=grid,
            block=block,
            cluster=cluster,
            parameters=held,
            shared=self._shared,
            shared_bytes=sum(reserved) if module.reserved_shared_bytes else total,
            output=output,
            shape=_shape(grid, block, cluster, shared_bytes, total) | _reserved(*reserved),
        )
        accessible = [held, workspace] if workspace_given else [held]
        if workspace_given:
            launch.shape["envreg1"], launch.shape["envreg2"] = divmod(int(workspace.ctypes.data), 1 << 32)
        for part in accessible:
            module.memory.add(int(part.ctypes.data), part.size, PARAMETERS)
        try:
            with np.errstate(all="ignore"):
                launch.run()
        finally:
            for part in accessible:
                module.memory.remove(int(part.ctypes.data))


Three = tuple[int, int, int]


def _shape(grid: Three, block: Three, cluster: Three, dynamic: int, total: int) -> dict[str, int]:
    """Return the special registers that are the same for every lane of a launch."""
    threads = block[0] * block[1] * block[2]
    shape = {
        "envreg1": 0,
        "envreg2": 0,
        "cluster_nctarank": cluster[0] * cluster[1] * cluster[2],
        "nwarpid": -(-threads // 32),
        "nsmid": 108,
        "gridid": 1,
        "dynamic_smem_size": dynamic,
        "total_smem_size": total,
    }
    for axis, blocks, lanes, together in zip("xyz", grid, block, cluster, strict=True):
        shape[f"nctaid.{axis}"] = blocks
        shape[f"ntid.{axis}"] = lanes
        shape[f"cluster_nctaid.{axis}"] = together
        shape[f"nclusterid.{axis}"] = blocks // together
    return shape


def _reserved(begin: int, size: int) -> dict[str, int]:
    """Return the special registers for the shared memory that does not belong to the program."""
    places = {"begin": begin, "end": begin + size, "cap": size, "0": begin, "1": begin + 16}
    return {f"reserved_smem_offset_{name}": value for name, value in places.items()}


def _thread_limit(function: Function) -> int:
    """Return the limit of `__launch_bounds__`, else that of the device."""
    for directive in ("reqntid", "maxntid"):
        if directive in function.limits:
            return int(np.prod(function.limits[directive]))
    return 1024


def _register_estimate(code: Code) -> int:
    """Estimate the 32-bit registers that a compiler would need: the most that are live at once at a block's border, and
    some."""
    widths = code.function.registers
    live = [sum(-(-widths[name] // 32) for name in names if widths[name] > 1) for names in code.flow.live_in]
    return min(_MAX_REGISTERS, max([0, *live]) + 10)


class Heap:
    """Memory that kernels allocate with `malloc`; a kernel gets null when CUDA's default heap would be full."""

    def __init__(self, memory: AddressSpace) -> None:
        self._memory = memory
        self._blocks: dict[int, Any] = {}
        self._used = 0

    def allocate(self, size: int) -> int:
        """Return the address of a new block of this many bytes, aligned to 16; 0 when there is no room."""
        if not 0 < size <= _HEAP_BYTES - self._used:
            return 0
        block: Array = np.zeros(size + 32, np.uint8)
        address = int(block.ctypes.data)
        address += -address % 16
        self._blocks[address] = (block, size)
        self._used += size
        self._memory.add(address, size, HEAP)
        return address

    def free(self, address: int) -> None:
        """Give a block back; freeing null, or an address that is not a block, does nothing."""
        if address in self._blocks:
            self._memory.remove(address)
            self._used -= self._blocks.pop(address)[1]

    def close(self) -> None:
        """Give every block back."""
        for address in list(self._blocks):
            self.free(address)
