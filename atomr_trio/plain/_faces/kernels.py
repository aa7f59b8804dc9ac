"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._access import KernelAccess
from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar, SupportsIndex

    import atomr_trio

    from ..._arrays.access import Marked
    from ..._values.info import KernelAttributes, Occupancy
    from ..._values.parameters import Dimensions, Parameter
    from ..._values.signatures import KernelSignature
    from .._types import AnyArray
    from .lanes import Lane
    from .modules import Module


class Kernel(KernelAccess, Twin):
    """A kernel that can be launched, made by `dev.nvrtc.compile`. It stays valid when a generation is lost."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.nvrtc.compile(source, name)`"

    @property
    def awaited(self) -> atomr_trio.Kernel:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Kernel = self._awaited
        return value

    @property
    def name(self) -> str:
        """The name that it was requested by."""
        value: str = self._awaited.name
        return value

    @property
    def signature(self) -> KernelSignature:
        """Its parameters, as the compiler laid them out."""
        value: KernelSignature = self._awaited.signature
        return value

    @property
    def attributes(self) -> KernelAttributes:
        """The resources that it takes of the device: registers, memory, threads."""
        value: KernelAttributes = self._awaited.attributes
        return value

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of what is known of it here. Asks the device nothing."""
        result: str = self._read(self._awaited._repr_html_)
        return result

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the order of the declaration."""
        value: tuple[Parameter, ...] = self._awaited.parameters
        return value

    @property
    def module(self) -> Module:
        """The module that holds it: its own `Program`, or the `Module` that it is a function of."""
        value: Module = self._seen(self._awaited.module)
        return value

    @property
    def ptx(self) -> str | None:
        """The PTX that the compiler made; None if it made none."""
        value: str | None = self._awaited.ptx
        return value

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None when only PTX was requested."""
        value: bytes | None = self._awaited.cubin
        return value

    @property
    def log(self) -> str:
        """The messages of the compiler, for example warnings."""
        value: str = self._awaited.log
        return value

    def launch(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[AnyArray | Marked] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Launch the kernel and wait until it has run (``cuLaunchKernelEx``).

        `grid` (blocks) and `block` (threads) are an int or up to three; `shared_bytes` is each block's dynamic shared
        memory, in bytes. `arguments` are checked against the kernel's parameters in C++, or by their sizes where those
        are unknown: C-contiguous device arrays of the right dtype where it takes pointers (`DeviceArray.view` and
        `strided` are the ways out), Python and numpy numbers that fit, bytes for structs. Every array counts as
        written, unless the kernel's PTX proves that it is only read (`Parameter.reads`), or one of `read_only`,
        `writes` and `overwrites` says what is done; `touches` names arrays that the kernel reaches only through other
        memory. `hang_timeout` is the time in seconds that this launch may run before its worker is killed; by default
        that of `open_device`. `lane` is one of `Device.lane`; by default the compute lane, which all kernels share.

        The attributes of a launch: `cooperative` puts all blocks on the device at once, so that they may wait for each
        other (``grid.sync()`` of ``cooperative_groups``); such a grid has at most `Occupancy.device_blocks` blocks.
        `cluster` is the number of neighbouring blocks that share their shared memory, an int or up to three; it divides
        the grid. `programmatic` lets the kernel begin before the previous kernel of its lane has ended. The kernel
        itself waits, by ``cudaGridDependencySynchronize()``, before it touches memory that earlier kernels write. This
        can save time among launches of a batch; elsewhere the lane's own work lies between two kernels. The lane counts
        a launch as done only when it and all before it have ended, so the order of all other work stays the same.
        `priority` is that of its blocks, from `DeviceInfo.highest_priority` to `DeviceInfo.lowest_priority`; by default
        the lane's. Clusters and programmatic launches need compute capability 9.0.

        Raises `InvalidArgument` before anything is sent, and names the limit that was exceeded; `StaleArray` for an
        array that a fault has torn; `ContextLost` if the context is lost while the kernel runs, as by a faulty kernel.
        """
        self._wait(
            self._awaited.launch,
            (grid, block, *arguments),
            {
                "shared_bytes": shared_bytes,
                "touches": touches,
                "hang_timeout": hang_timeout,
                "lane": lane,
                "cooperative": cooperative,
                "cluster": cluster,
                "programmatic": programmatic,
                "priority": priority,
            },
        )

    def launch_nowait(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[AnyArray | Marked] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Launch the kernel, and do not wait for it.

        It is submitted before this returns, so the caller's next work on its arrays is ordered after it. Its outcome is
        seen only in `dev.statistics()`. `grid`, `block`, `arguments`, `shared_bytes`, `touches`, `hang_timeout`,
        `lane`, `cooperative`, `cluster`, `programmatic` and `priority` are those of `launch`. A cooperative grid that
        is too large is refused here if `occupancy` was asked for its blocks before. Otherwise the worker refuses it,
        and the statistics count the launch as failed.

        Raises `trio.WouldBlock` while the device is being rebuilt, and when 512 commands of the lane, without those of
        batches, are unfinished; and the errors that `launch` raises before anything is sent.
        """
        self._enqueue(
            self._awaited.launch_nowait,
            (grid, block, *arguments),
            {
                "shared_bytes": shared_bytes,
                "touches": touches,
                "hang_timeout": hang_timeout,
                "lane": lane,
                "cooperative": cooperative,
                "cluster": cluster,
                "programmatic": programmatic,
                "priority": priority,
            },
        )

    def prepare(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> PreparedLaunch:
        """Return a launch with everything bound, to be made again and again, alone or in a batch.

        `grid`, `block`, `arguments`, `shared_bytes`, `cooperative`, `cluster`, `programmatic` and `priority` are those
        of `launch`, and are checked now, a cooperative grid as by `launch_nowait`; an argument can be changed in place,
        ``prepared[0] = 3.0``. It stays valid when a generation is lost.

        Raises `InvalidArgument` as `launch` does.
        """
        result: PreparedLaunch = self._enqueue(
            self._awaited.prepare,
            (grid, block, *arguments),
            {
                "shared_bytes": shared_bytes,
                "cooperative": cooperative,
                "cluster": cluster,
                "programmatic": programmatic,
                "priority": priority,
            },
        )
        return result

    def occupancy(self, block: Dimensions, shared_bytes: int = 0) -> Occupancy:
        """Return how much of the device the kernel's blocks fill (``cuOccupancyMaxActiveBlocksPerMultiprocessor``).

        `block` (threads, an int or up to three) and `shared_bytes` (bytes of dynamic shared memory) are those of
        `launch`. The device is asked once for each.

        Raises `InvalidArgument` for a block that cannot be launched; `ContextLost` if the context is lost meanwhile.
        """
        result: Occupancy = self._wait(self._awaited.occupancy, (block, shared_bytes))
        return result

    def suggest_block(self, shared_bytes: int = 0) -> int:
        """Return the threads of a block that give the most warps on the device (``cuOccupancyMaxPotentialBlockSize``).

        `shared_bytes` is the dynamic shared memory of each block in bytes, whatever the size of the block.

        Raises `InvalidArgument` for more than the device has; `ContextLost` if the context is lost meanwhile.
        """
        result: int = self._wait(self._awaited.suggest_block, (shared_bytes,))
        return result

    def grid_for(self, n: Dimensions, block: Dimensions) -> int | tuple[int, ...]:
        """Return the grid with a thread for each of `n` elements, in blocks of `block` threads, an int or up to three.

        An int `n` gives the number of blocks, rounded up. Up to three lengths, along x, y and z, give as many numbers;
        each is divided by the block's length there. The last blocks may reach beyond the end, so the kernel must
        compare its index with `n`. A grid has at least one block, even for no elements.

        Raises `InvalidArgument` for a block that the kernel cannot have, and for more blocks than the device takes.
        """
        result: int | tuple[int, ...] = self._read(self._awaited.grid_for, (n, block))
        return result


class PreparedLaunch(Twin):
    """A launch of a kernel with its grid, its block and its arguments bound, made by `Kernel.prepare`."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`kernel.prepare(grid, block, ...)`"

    @property
    def awaited(self) -> atomr_trio.PreparedLaunch:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.PreparedLaunch = self._awaited
        return value

    @property
    def kernel(self) -> Kernel:
        """The kernel that it launches."""
        value: Kernel = self._seen(self._awaited.kernel)
        return value

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments as they are now."""
        value: tuple[object, ...] = self._seen(self._awaited.arguments)
        return value

    def __len__(self) -> int:
        """Return the number of arguments."""
        result: int = self._read(self._awaited.__len__)
        return result

    def __getitem__(self, index: SupportsIndex) -> object:
        """Return one of the arguments. Raises `IndexError`."""
        result: object = self._read(self._awaited.__getitem__, (index,))
        return result

    def __setitem__(self, index: SupportsIndex, argument: object) -> None:
        """Change an argument for later launches; earlier launches keep the old one.

        Raises `IndexError`, and `InvalidArgument` for a value that the parameter does not take. Then nothing changes.
        """
        self._enqueue(self._awaited.__setitem__, (index, argument))

    def launch(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Make the launch and wait until it has run (``cuLaunchKernelEx``).

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch` does.
        """
        self._wait(self._awaited.launch, (), {"hang_timeout": hang_timeout, "lane": lane})

    def launch_nowait(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Make the launch, and do not wait for it; see `Kernel.launch_nowait`.

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch_nowait` does.
        """
        self._enqueue(self._awaited.launch_nowait, (), {"hang_timeout": hang_timeout, "lane": lane})
