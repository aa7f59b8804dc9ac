"""Launches with attributes (cooperative, clusters, programmatic, priority), and what a kernel says of its shape."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from cuda import pathfinder

from atomr_trio import CommandFailed, InvalidArgument, Kernel, KernelAttributes, NvrtcOptions, Occupancy, read_only
from atomr_trio._wire.records.module import LAUNCH, LaunchOptions
from support.rogue import gated

pytestmark = pytest.mark.usefixtures("kept_compiles")

CLUSTERS = (9, 0)
"""The compute capability that clusters and programmatic launches need."""

SOURCE = r"""
extern "C" __global__ void nothing() { }
extern "C" __global__ void __launch_bounds__(64) at_most_64(int *x) { x[threadIdx.x] = 1; }
extern "C" __global__ void add(int *x, int a) { x[blockIdx.x * blockDim.x + threadIdx.x] += a; }
extern "C" __global__ void copy(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void take(int *x, int n, float f, double d) { x[0] = n; }
extern "C" __global__ void reverse(int *x)
{
    __shared__ int shared[256];
    shared[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void large(int *x) { extern __shared__ int shared[]; shared[threadIdx.x] = 0; x[0] = shared[0]; }
"""

COOPERATIVE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Every thread adds up what all of them have written, several times, so each round needs all of the one before.
extern "C" __global__ void sums(unsigned *x, unsigned *y, int rounds)
{
    cg::grid_group grid = cg::this_grid();
    unsigned me = grid.thread_rank(), count = grid.size();
    for (int round = 0; round < rounds; round++) {
        unsigned sum = 0;
        for (unsigned i = 0; i < count; i++) sum += x[i];
        grid.sync();
        x[me] = sum + me;
        grid.sync();
    }
    y[me] = x[me];
}
extern "C" __global__ void is_valid(int *x) { if (threadIdx.x == 0) x[blockIdx.x] = cg::this_grid().is_valid(); }
"""

HOPPER = r"""
extern "C" __global__ void place(unsigned *out)
{
    unsigned id[3], rank, count;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id[0]));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(id[1]));
    asm("mov.u32 %0, %%clusterid.z;" : "=r"(id[2]));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    unsigned *mine = out + 5 * (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    mine[0] = id[0]; mine[1] = id[1]; mine[2] = id[2]; mine[3] = rank; mine[4] = count;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) in_pairs(unsigned *out) { out[blockIdx.x] = blockIdx.x; }

// One link of a chain: it may begin early, and then waits for the one before to have written.
extern "C" __global__ void link(const unsigned *x, unsigned *y)
{
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 3 * x[i] + 1;
}
"""


def headers() -> dict[str, Any]:
    """The options by which NVRTC finds ``cooperative_groups.h``, in the packages that are installed."""
    runtime, core = (pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    assert None not in (runtime, core), "the tests' requirements bring these headers"
    return {"include_paths": [runtime, core, Path(runtime) / "cooperative_groups/details"]}


async def compiled(dev: Any, *names: str, source: str = SOURCE, **options: Any) -> Any:
    """One kernel, or several."""
    chosen = NvrtcOptions(**options) if options else None
    kernels = [await dev.nvrtc.compile(source, name, options=chosen) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


async def cooperative_kernel(dev: Any, name: str) -> Kernel:
    kernel: Kernel = await compiled(dev, name, source=COOPERATIVE, **headers())
    return kernel


@pytest.fixture
async def hopper(monkeypatch: pytest.MonkeyPatch, open_test_device: Any) -> AsyncIterator[Any]:
    """A device with clusters; the simulator is told to be one."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_CAPABILITY", "9.0")
    async with open_test_device() as dev:
        if dev.info.capability < CLUSTERS:
            pytest.skip("this GPU has no clusters")
        yield dev


def expected_sums(values: np.ndarray, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        values = values.sum(dtype=np.uint32) + np.arange(values.size, dtype=np.uint32)
    return values


# --- the record -------------------------------------------------------------------------------------------------------

shapes_of_cluster = st.none() | st.tuples(*[st.integers(1, 31)] * 3)
options_of_launch = st.builds(
    LaunchOptions, st.booleans(), st.booleans(), shapes_of_cluster, st.none() | st.integers(-128, 127)
)


@hypothesis.given(options_of_launch)
def test_options_fit_into_the_word_of_a_record_and_come_back(options):
    word = options.encode()
    assert 0 <= word < 1 << 32
    assert LaunchOptions.decode(word) == options
    assert (word == 0) == (options == LaunchOptions())


def test_an_ordinary_launch_has_the_record_that_it_always_had():
    assert LAUNCH.struct.size == 40
    assert LAUNCH.struct.pack(1, *[1] * 6, 0, LaunchOptions().encode())[-4:] == bytes(4)


# --- cooperative ------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_the_blocks_of_a_cooperative_grid_wait_for_each_other(dev):
    sums = await cooperative_kernel(dev, "sums")
    values = np.arange(4 * 64, dtype=np.uint32)
    x, y = await dev.to_device(values), dev.empty(values.size, np.uint32)
    await sums.launch(4, 64, x, y, 3, cooperative=True)
    assert (await y.to_host() == expected_sums(values, 3)).all()


@pytest.mark.long
async def test_every_way_to_launch_takes_the_options(dev):
    sums = await cooperative_kernel(dev, "sums")
    values = np.arange(2 * 32, dtype=np.uint32)

    async def check(launch: Any) -> None:
        x, y = await dev.to_device(values), dev.zeros(values.size, np.uint32)
        await launch(2, 32, x, y, 2)
        assert (await y.to_host() == expected_sums(values, 2)).all()

    async def nowait(*arguments: Any) -> None:
        sums.launch_nowait(*arguments, cooperative=True, priority=dev.info.highest_priority)

    async def prepared(*arguments: Any) -> None:
        await sums.prepare(*arguments, cooperative=True).launch()

    async def in_a_batch(*arguments: Any) -> None:
        async with dev.batch() as batch:
            batch.launch(sums, *arguments, cooperative=True)

    async def in_a_graph(*arguments: Any) -> None:
        def record(recorder: Any) -> None:
            recorder.launch(sums, *arguments, cooperative=True, priority=dev.info.highest_priority)

        graph = await dev.capture(record)
        await graph.launch()

    for way in (nowait, prepared, in_a_batch, in_a_graph):
        await check(way)


async def test_the_workspace_of_a_cooperative_launch_stays_for_those_after_it(dev):
    """So it is on an H200; a kernel cannot tell by `is_valid` alone how it was launched."""
    is_valid = await cooperative_kernel(dev, "is_valid")
    array = await dev.to_device(np.full(2, -1, np.int32))
    await is_valid.launch(2, 32, array, cooperative=True)
    assert (await array.to_host() == 1).all()
    await array.fill(-1)
    await is_valid.launch(2, 32, array)
    assert (await array.to_host() == 1).all()


async def test_a_cooperative_grid_that_the_device_does_not_hold_is_refused_with_the_limit(dev):
    is_valid = await cooperative_kernel(dev, "is_valid")
    occupancy = await is_valid.occupancy(256)
    most = occupancy.device_blocks
    x = dev.zeros(most + 1, np.int32)
    with pytest.raises(InvalidArgument, match=rf"grid has {most + 1} blocks; a cooperative one has at most {most}, "):
        await is_valid.launch(most + 1, 256, x, cooperative=True)
    with pytest.raises(InvalidArgument, match=rf"at most {most}, "):
        is_valid.launch_nowait(most + 1, 256, x, cooperative=True)
    await is_valid.launch(most, 256, x, cooperative=True)
    assert (await x.to_host() == [*[1] * most, 0]).all()


async def test_the_worker_refuses_a_cooperative_grid_whose_limit_nobody_has_asked_for(dev):
    is_valid = await cooperative_kernel(dev, "is_valid")
    most = dev.info.multiprocessors * dev.info.max_threads_per_multiprocessor // 1024
    x = dev.zeros(most + 1, np.int32)
    prepared = is_valid.prepare(most + 1, 1024, x, cooperative=True)
    with pytest.raises(CommandFailed, match=rf"grid has {most + 1} blocks; a cooperative one has at most \d+, "):
        await prepared.launch()
    async with dev.batch() as batch:
        for _ in range(3):
            batch.launch(prepared)
        with pytest.raises(CommandFailed, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
            await batch.flush()
    with pytest.raises(CommandFailed, match=r"a cooperative one has at most"):
        await dev.capture(lambda recorder: recorder.launch(is_valid, most + 1, 1024, x, cooperative=True))
    assert dev.generation == 1
    await is_valid.launch(1, 32, x, cooperative=True)
    assert (await x.to_host())[0] == 1


# --- clusters ---------------------------------------------------------------------------------------------------------


def places(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> np.ndarray:
    """Of each block its cluster's place in the grid, its rank there, and how many there are."""
    rows = []
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                at = (x, y, z)
                inner = [a % c for a, c in zip(at, cluster, strict=True)]
                rank = inner[0] + cluster[0] * (inner[1] + cluster[1] * inner[2])
                rows.append((*(a // c for a, c in zip(at, cluster, strict=True)), rank, math.prod(cluster)))
    return np.array(rows, np.uint32)


async def hopper_kernel(dev: Any, name: str) -> Any:
    return await compiled(dev, name, source=HOPPER, arch="compute_90")


async def test_blocks_are_in_the_clusters_that_were_asked_for(hopper):
    place = await hopper_kernel(hopper, "place")
    for grid, cluster in (((8, 1, 1), 4), ((4, 4, 2), (2, 2)), ((4, 2, 2), (2, 1, 2)), ((3, 1, 1), 1)):
        whole = (*cluster, 1, 1)[:3] if isinstance(cluster, tuple) else (cluster, 1, 1)
        out = hopper.zeros((math.prod(grid), 5), np.uint32)
        await place.launch(grid, 32, out, cluster=cluster)
        assert (await out.to_host() == places(grid, whole)).all()

        def record(recorder: Any, grid: Any = grid, cluster: Any = cluster, out: Any = out) -> None:
            recorder.fill(out, 0)
            recorder.launch(place, grid, 32, out, cluster=cluster)

        graph = await hopper.capture(record)
        await graph.launch()
        assert (await out.to_host() == places(grid, whole)).all()


async def test_launches_that_differ_in_their_options_alone_are_not_taken_for_each_other(hopper):
    place = await hopper_kernel(hopper, "place")
    arrays = [hopper.zeros((4, 5), np.uint32) for _ in range(40)]
    prepared = [place.prepare(4, 32, arrays[0], cluster=size) for size in (1, 2)]
    async with hopper.batch() as batch:
        for index, array in enumerate(arrays):
            prepared[index % 2][0] = array
            batch.launch(prepared[index % 2])
    for index, array in enumerate(arrays):
        assert ((await array.to_host())[:, 4] == index % 2 + 1).all(), index


async def test_a_node_keeps_its_cluster_when_it_is_given_other_arguments(hopper):
    place = await hopper_kernel(hopper, "place")
    one, other = (hopper.zeros((4, 5), np.uint32) for _ in range(2))
    graph = await hopper.capture(lambda recorder: recorder.launch(place, 4, 32, one, cluster=2))
    await graph.launch()
    graph.update(graph.nodes[0], other)
    await graph.launch()
    for out in (one, other):
        assert (await out.to_host() == places((4, 1, 1), (2, 1, 1))).all()


async def test_a_cluster_of_more_than_eight_blocks_is_allowed_where_the_device_has_it(hopper):
    place = await hopper_kernel(hopper, "place")
    out = hopper.zeros((16, 5), np.uint32)
    await place.launch(16, 32, out, cluster=16)
    assert (await out.to_host() == places((16, 1, 1), (16, 1, 1))).all()


@pytest.mark.parametrize(
    ("grid", "cluster", "said"),
    [
        (6, 4, r"grid\.x is 6, which is not a multiple of the 4 blocks"),
        ((4, 3), (1, 2), r"grid\.y is 3, which is not a multiple of the 2 blocks"),
        ((8, 4), (8, 4), r"cluster \(8, 4, 1\) has 32 blocks; .* takes 8, and none more than 16"),
        (32, 32, r"cluster\.x is 32; the device takes 1 to 16 blocks"),
        (4, 0, r"cluster\.x is 0"),
        (4, "2", "cluster is an int or a tuple"),
    ],
)
async def test_clusters_that_cannot_be_are_refused(hopper, grid, cluster, said):
    place = await hopper_kernel(hopper, "place")
    out = hopper.zeros((64, 5), np.uint32)
    with pytest.raises(InvalidArgument, match=said):
        await place.launch(grid, 32, out, cluster=cluster)


async def test_a_kernel_that_declares_its_clusters_has_those(hopper):
    in_pairs = await hopper_kernel(hopper, "in_pairs")
    assert in_pairs.attributes.cluster == (2, 1, 1)
    out = hopper.zeros(4, np.uint32)
    await in_pairs.launch(4, 32, out)
    assert (await out.to_host() == [0, 1, 2, 3]).all()
    with pytest.raises(InvalidArgument, match=r"grid\.x is 3, which is not a multiple of the 2"):
        await in_pairs.launch(3, 32, out)
    with pytest.raises(InvalidArgument, match=r"cluster=\(4, 1, 1\) .* in_pairs, .* clusters of \(2, 1, 1\)"):
        await in_pairs.launch(4, 32, out, cluster=4)


@pytest.mark.sim_only
async def test_the_simulator_names_what_it_lacks_of_clusters(hopper):
    source = 'extern "C" __global__ void waits() { asm volatile("barrier.cluster.arrive.aligned;"); }'
    with pytest.raises(CommandFailed, match=r"barrier\.cluster\.arrive\.aligned"):
        await compiled(hopper, "waits", source=source, arch="compute_90")


# --- programmatic launches and priorities -----------------------------------------------------------------------------


async def test_a_chain_of_programmatic_launches_gives_what_one_after_the_other_gives(hopper):
    link = await hopper_kernel(hopper, "link")
    values = np.arange(256, dtype=np.uint32)
    x, y = await hopper.to_device(values), hopper.empty(256, np.uint32)
    there, back = (link.prepare(4, 64, *pair, programmatic=True) for pair in ((x, y), (y, x)))
    async with hopper.batch() as batch:
        for _ in range(50):
            batch.launch(there)
            batch.launch(back)
    for _ in range(100):
        values = 3 * values + 1
    assert (await x.to_host() == values).all()
    await link.launch(4, 64, x, y, programmatic=True)
    assert (await y.to_host() == 3 * values + 1).all()


async def test_a_programmatic_launch_cannot_be_captured(hopper):
    link = await hopper_kernel(hopper, "link")
    x = hopper.zeros(256, np.uint32)
    with pytest.raises(InvalidArgument, match="a programmatic launch cannot be captured"):
        await hopper.capture(lambda recorder: recorder.launch(link, 1, 64, x, x, programmatic=True))


@pytest.mark.sim_only
async def test_what_the_device_is_too_old_for_is_refused_with_both_capabilities(dev):
    nothing = await compiled(dev, "nothing")
    with pytest.raises(InvalidArgument, match=r"clusters need compute capability 9\.0; the device has 8\.0"):
        await nothing.launch(2, 1, cluster=2)
    with pytest.raises(InvalidArgument, match=r"a programmatic launch needs compute capability 9\.0"):
        nothing.prepare(1, 1, programmatic=True)


async def test_a_launch_has_any_priority_that_the_device_has(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(4, np.int32)
    priorities = range(dev.info.highest_priority, dev.info.lowest_priority + 1)
    for priority in priorities:
        await add.launch(1, 4, x, 1, priority=priority)
    assert (await x.to_host() == len(priorities)).all()
    for bad in (dev.info.highest_priority - 1, dev.info.lowest_priority + 1):
        with pytest.raises(InvalidArgument, match=rf"priority is {bad}; the device takes {dev.info.highest_priority}"):
            await add.launch(1, 4, x, 1, priority=bad)
    for bad in (True, 0.5, "0"):
        with pytest.raises(InvalidArgument, match="priority is an int"):
            add.launch_nowait(1, 4, x, 1, priority=bad)


async def test_switches_are_true_or_false(dev):
    nothing = await compiled(dev, "nothing")
    for name in ("cooperative", "programmatic"):
        with pytest.raises(InvalidArgument, match=f"{name} is True or False, not 1"):
            nothing.launch_nowait(1, 1, **{name: 1})


async def test_options_of_a_prepared_launch_are_bound_to_it(dev):
    nothing = await compiled(dev, "nothing")
    prepared = nothing.prepare(1, 1, priority=0)
    async with dev.batch() as batch:
        with pytest.raises(InvalidArgument, match="options, and here it was given options: give nothing else"):
            batch.launch(prepared, priority=0)
        batch.launch(prepared)


# --- what a kernel says of itself -------------------------------------------------------------------------------------


async def test_a_kernel_says_what_it_takes_of_the_device(dev):
    bounded, reverse = await compiled(dev, "at_most_64", "reverse")
    attributes = reverse.attributes
    assert isinstance(attributes, KernelAttributes)
    assert attributes.static_shared_bytes == 1024
    assert attributes.max_threads_per_block == dev.info.max_threads_per_block
    assert 0 < attributes.registers <= 255
    assert (attributes.local_bytes, attributes.cluster, attributes.caches_globals) == (0, None, False)
    assert attributes.binary_version == dev.info.capability
    assert bounded.attributes.max_threads_per_block == 64


async def test_the_occupancy_of_a_kernel(dev):
    reverse, bounded = await compiled(dev, "reverse", "at_most_64")
    info = dev.info
    full = await reverse.occupancy(256)
    assert isinstance(full, Occupancy)
    assert full.device_blocks == full.blocks_per_multiprocessor * info.multiprocessors
    assert full.fraction == full.blocks_per_multiprocessor * 256 / info.max_threads_per_multiprocessor
    assert 0 < full.fraction <= 1
    assert await reverse.occupancy((64, 4)) == full
    # A block that takes all the shared memory has a multiprocessor for itself.
    alone = await reverse.occupancy(256, info.max_shared_bytes - 1024)
    assert alone.blocks_per_multiprocessor == 1
    with pytest.raises(InvalidArgument, match="at most 64"):
        await bounded.occupancy(65)
    with pytest.raises(InvalidArgument, match="bytes that the device has left"):
        await reverse.occupancy(32, info.max_shared_bytes)


async def test_the_occupancy_is_asked_once_and_still_known_after_a_fault(dev):
    nothing = await compiled(dev, "nothing")
    before = await nothing.occupancy(128)
    commands = dev.statistics().lanes[0].submitted
    assert await nothing.occupancy(128) == before
    assert dev.statistics().lanes[0].submitted == commands
    await dev.restart("to ask another worker")
    assert await nothing.occupancy(96) != before


async def test_the_block_that_is_suggested_can_be_launched_and_fills_the_device(dev):
    reverse, bounded, large = await compiled(dev, "reverse", "at_most_64", "large")
    threads = await reverse.suggest_block()
    suggested = await reverse.occupancy(threads)
    assert suggested.fraction >= (await reverse.occupancy(32)).fraction
    assert await bounded.suggest_block() <= 64
    # With the most dynamic shared memory there is one block on a multiprocessor, so it had better be a large one.
    assert await large.suggest_block(dev.info.max_shared_bytes) == dev.info.max_threads_per_block


async def test_the_grid_for_a_number_of_elements(dev):
    nothing, bounded = await compiled(dev, "nothing", "at_most_64")
    assert [nothing.grid_for(n, 128) for n in (0, 1, 128, 129, 1_000_000)] == [1, 1, 1, 2, 7813]
    assert nothing.grid_for(np.int64(257), (16, 16)) == 2
    assert nothing.grid_for((100, 33), (32, 8)) == (4, 5)
    assert nothing.grid_for((5, 6, 7), 4) == (2, 6, 7)
    with pytest.raises(InvalidArgument, match=r"65 threads.* at most 64"):
        bounded.grid_for(10, 65)
    with pytest.raises(InvalidArgument, match=r"grid\.y is 65536; the device takes 1 to 65535"):
        nothing.grid_for((1, 65536), 1)
    for bad in (-1, 1.5, (), (1, 2, 3, 4), "12", None):
        with pytest.raises(InvalidArgument, match="n is a number of elements"):
            nothing.grid_for(bad, 32)


async def test_dynamic_shared_memory_raises_the_limit_by_itself_also_in_a_graph_and_a_question(dev):
    large = await compiled(dev, "large")
    x = dev.full(1, 7, np.int32)
    graph = await dev.capture(lambda recorder: recorder.launch(large, 1, 32, x, shared_bytes=dev.info.max_shared_bytes))
    await graph.launch()
    assert await x.to_host() == 0
    assert (await large.occupancy(32, dev.info.max_shared_bytes)).blocks_per_multiprocessor == 1


# --- what a launch must not get wrong ---------------------------------------------------------------------------------


async def test_what_a_kernel_is_given_counts_as_written_so_a_reader_on_another_lane_waits(dev):
    add, copy = await compiled(dev, "add", "copy")
    x, y = dev.zeros(32, np.int32), dev.zeros(32, np.int32)
    async with dev.lane() as other:
        async with gated(dev):
            add.launch_nowait(1, 32, x, 5)  # held up
            copy.launch_nowait(1, 32, read_only(x), y, lane=other)
            waits = next(lane.waits for lane in dev.statistics().lanes if lane.name == other.name)
            assert waits == 1
        assert (await y.to_host() == 5).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1, 2.0), "takes 4 arguments"),
        ((1, 2.0, 3.0, 4), "takes 4 arguments"),
        (
            (2**32, 2.0, 3.0),
            r"argument 1 .* expected an integer from -2\*\*31 to 2\*\*31 - 1 for `int n`, .* outside of",
        ),
        ((np.int64(2**40), 2.0, 3.0), r"argument 1 .* expected an integer from "),
        ((b"8 bytes.", 2.0, 3.0), r"argument 1 .* expected an integer from "),
        ((1.0, 2.0, 3.0), r"argument 1 .* expected an integer from "),
        ((1, np.float64(0.1), 3.0), r"argument 2 .* a float64 of 8 bytes does not fit"),
        ((1, 2.0, "3"), r"argument 3 .* expected a float of 8 bytes"),
    ],
)
async def test_arguments_that_do_not_fit_in_number_type_or_size_are_refused(dev, arguments, said):
    take = await compiled(dev, "take")
    x = dev.zeros(1, np.int32)
    with pytest.raises(InvalidArgument, match=said):
        await take.launch(1, 1, x, *arguments)
    with pytest.raises(InvalidArgument, match="a device array can only go where the kernel takes a pointer"):
        await take.launch(1, 1, x, x, 2.0, 3.0)
    assert await x.to_host() == 0
