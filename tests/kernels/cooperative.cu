// Cooperative groups: tiles of a warp, and the threads that happen to be together.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

template <int SIZE>
__global__ void tiles(const int *x, int *sums, int *prefixes, int *shuffled)
{
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<SIZE> tile = cg::tiled_partition<SIZE>(block);
    int i = blockIdx.x * blockDim.x + block.thread_rank(), v = x[i];
    sums[i] = cg::reduce(tile, v, cg::plus<int>()) + (int)tile.meta_group_rank() * 1000000;
    prefixes[i] = cg::inclusive_scan(tile, v, cg::greater<int>());
    shuffled[i] = tile.shfl(v, SIZE - 1 - tile.thread_rank()) + tile.any(v > 95) * 1000 + tile.num_threads();
}

// The threads that keep their value agree on one place in the output for all of them.
extern "C" __global__ void coalesced(const int *x, int n, int *kept, int *count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || x[i] % 2) return;
    cg::coalesced_group together = cg::coalesced_threads();
    int base = 0;
    if (together.thread_rank() == 0) base = atomicAdd(count, together.num_threads());
    kept[together.shfl(base, 0) + together.thread_rank()] = x[i];
}

extern "C" __global__ void block_group(const int *x, int *out)
{
    __shared__ int s[128];
    cg::thread_block block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    s[t] = x[block.group_index().x * 128 + t];
    block.sync();
    out[block.group_index().x * 128 + t] = s[block.size() - 1 - t] * 2 + (int)block.thread_index().y;
}

// All blocks wait for each other: sums of blocks, then the sum of all, then each value's share of it.
extern "C" __global__ void whole_grid(const int *x, int *sums, int *out)
{
    cg::grid_group grid = cg::this_grid();
    int i = (int)grid.thread_rank();
    atomicAdd(&sums[blockIdx.x], x[i]);
    grid.sync();
    int total = 0;
    for (int k = 0; k < gridDim.x; ++k) total += sums[k];
    grid.sync();
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
    grid.sync();
    out[i] = sums[(blockIdx.x + 1) % gridDim.x] - x[i] + (int)grid.num_threads();
}

// The even and the odd lanes are groups of their own, and so are the lanes that hold the same value.
extern "C" __global__ void partitions(const int *x, int *labelled, int *halves)
{
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = threadIdx.x;
    cg::coalesced_group same = cg::labeled_partition(warp, x[i]);
    labelled[i] = cg::reduce(same, i, cg::plus<int>()) * 100 + (int)same.num_threads();
    cg::coalesced_group half = cg::binary_partition(warp, i % 2 == 1);
    halves[i] = half.shfl(x[i], 0) + cg::exclusive_scan(half, x[i], cg::plus<int>());
}
