// The building blocks of CUB, for warps, for blocks, and for a whole device in one pass.

#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

typedef unsigned int u32;
typedef unsigned char u8;

struct Less {
    template <typename T>
    __device__ bool operator()(const T &a, const T &b) const { return a < b; }
};

struct Greatest {
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

struct Differ {
    __device__ bool operator()(int a, int b) const { return a != b; }
};

struct Minus {
    __device__ int operator()(int a, int b) const { return a - b; }
};

// Both ways of reducing, and a block that is not full.
extern "C" __global__ void reduce(const int *x, int valid, int *out)
{
    typedef cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_WARP_REDUCTIONS> Warps;
    typedef cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_RAKING> Raking;
    __shared__ union { Warps::TempStorage warps; Raking::TempStorage raking; } shared;
    int mine = x[blockIdx.x * 128 + threadIdx.x];
    int sum = Warps(shared.warps).Sum(mine);
    __syncthreads();
    int most = Raking(shared.raking).Reduce(mine, Greatest());
    __syncthreads();
    int some = Warps(shared.warps).Sum(mine, valid);
    if (threadIdx.x == 0) out[3 * blockIdx.x] = sum, out[3 * blockIdx.x + 1] = most, out[3 * blockIdx.x + 2] = some;
}

extern "C" __global__ void scan(const int *x, int *inclusive, int *exclusive, int *totals)
{
    typedef cub::BlockScan<int, 64> Scan;
    __shared__ Scan::TempStorage shared;
    int mine[4], sums[4], most[4], total, first = (blockIdx.x * 64 + threadIdx.x) * 4;
    for (int k = 0; k < 4; ++k) mine[k] = x[first + k];
    Scan(shared).InclusiveSum(mine, sums, total);
    __syncthreads();
    Scan(shared).ExclusiveScan(mine, most, -1000, Greatest());
    for (int k = 0; k < 4; ++k) inclusive[first + k] = sums[k], exclusive[first + k] = most[k];
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// Keys with values, ascending; floats of both signs, of which the bits are not in order.
extern "C" __global__ void radix_sort(float *keys, int *values)
{
    typedef cub::BlockRadixSort<float, 64, 4, int> Sort;
    __shared__ Sort::TempStorage shared;
    float mine[4];
    int beside[4], first = (blockIdx.x * 64 + threadIdx.x) * 4;
    for (int k = 0; k < 4; ++k) mine[k] = keys[first + k], beside[k] = values[first + k];
    Sort(shared).Sort(mine, beside);
    for (int k = 0; k < 4; ++k) keys[first + k] = mine[k], values[first + k] = beside[k];
}

extern "C" __global__ void merge_sort(int *keys)
{
    typedef cub::BlockMergeSort<int, 64, 4> Sort;
    __shared__ Sort::TempStorage shared;
    int mine[4], first = (blockIdx.x * 64 + threadIdx.x) * 4;
    for (int k = 0; k < 4; ++k) mine[k] = keys[first + k];
    Sort(shared).Sort(mine, Less());
    for (int k = 0; k < 4; ++k) keys[first + k] = mine[k];
}

extern "C" __global__ void histogram(const u8 *x, u32 *out)
{
    typedef cub::BlockHistogram<u8, 64, 4, 16, cub::BLOCK_HISTO_ATOMIC> Counts;
    __shared__ Counts::TempStorage shared;
    __shared__ u32 counts[16];
    u8 mine[4];
    for (int k = 0; k < 4; ++k) mine[k] = x[(blockIdx.x * 64 + threadIdx.x) * 4 + k];
    Counts(shared).Histogram(mine, counts);
    __syncthreads();
    if (threadIdx.x < 16) out[blockIdx.x * 16 + threadIdx.x] = counts[threadIdx.x];
}

// Values come striped and go blocked, turned around on the way.
extern "C" __global__ void exchange(const int *x, int valid, int *out)
{
    typedef cub::BlockLoad<int, 64, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE> Load;
    typedef cub::BlockExchange<int, 64, 4> Exchange;
    typedef cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_TRANSPOSE> Store;
    __shared__ union { Load::TempStorage load; Exchange::TempStorage exchange; Store::TempStorage store; } shared;
    int mine[4], ranks[4];
    Load(shared.load).Load(x, mine, valid, -1);
    for (int k = 0; k < 4; ++k) ranks[k] = 255 - (threadIdx.x * 4 + k);
    __syncthreads();
    Exchange(shared.exchange).ScatterToBlocked(mine, ranks);
    __syncthreads();
    Exchange(shared.exchange).BlockedToStriped(mine, mine);
    __syncthreads();
    Store(shared.store).Store(out, mine);
}

// Where runs begin and end, differences to the left, and values from the next thread.
extern "C" __global__ void neighbours(const int *x, int *heads, int *tails, int *differences, int *shifted)
{
    typedef cub::BlockDiscontinuity<int, 128> Runs;
    typedef cub::BlockAdjacentDifference<int, 128> Differences;
    typedef cub::BlockShuffle<int, 128> Shuffle;
    __shared__ union {
        Runs::TempStorage runs;
        Differences::TempStorage differences;
        Shuffle::TempStorage shuffle;
    } shared;
    int t = threadIdx.x, mine[1] = {x[t]}, head[1], tail[1], difference[1], next = -1;
    Runs(shared.runs).FlagHeadsAndTails(head, tail, mine, Differ());
    __syncthreads();
    Differences(shared.differences).SubtractLeft(mine, difference, Minus());
    __syncthreads();
    Shuffle(shared.shuffle).Offset(mine[0], next, 3);
    heads[t] = head[0], tails[t] = tail[0], differences[t] = difference[0], shifted[t] = next;
}

extern "C" __global__ void run_length_decode(const int *values, const int *lengths, int *out, u32 *total)
{
    typedef cub::BlockRunLengthDecode<int, 32, 2, 4> Decode;
    __shared__ Decode::TempStorage shared;
    int value[2], length[2], items[4];
    u32 size, t = threadIdx.x;
    for (int k = 0; k < 2; ++k) value[k] = values[2 * t + k], length[k] = lengths[2 * t + k];
    Decode decode(shared, value, length, size);
    for (u32 first = 0; first < size; first += 128) {
        decode.RunLengthDecode(items, first);
        for (int k = 0; k < 4; ++k)
            if (first + 4 * t + k < size) out[first + 4 * t + k] = items[k];
    }
    if (t == 0) *total = size;
}

// Parts of a warp: sums of 8 lanes, a scan of 32, sums of runs that flags begin.
extern "C" __global__ void warps(const int *x, const int *flags, int *sums, int *scans, int *segments)
{
    typedef cub::WarpReduce<int, 8> Eight;
    typedef cub::WarpScan<int> Scan;
    typedef cub::WarpReduce<int> Whole;
    __shared__ Eight::TempStorage eight[16];
    __shared__ Scan::TempStorage scan[4];
    __shared__ Whole::TempStorage whole[4];
    int t = threadIdx.x, mine = x[t], prefix;
    int sum = Eight(eight[t / 8]).Sum(mine);
    if (t % 8 == 0) sums[t / 8] = sum;
    Scan(scan[t / 32]).ExclusiveSum(mine, prefix);
    scans[t] = prefix;
    int segment = Whole(whole[t / 32]).HeadSegmentedSum(mine, flags[t]);
    segments[t] = flags[t] || t % 32 == 0 ? segment : 0;
}

extern "C" __global__ void warp_merge_sort(long long *keys)
{
    typedef cub::WarpMergeSort<long long, 4, 16> Sort;
    __shared__ Sort::TempStorage shared[4];
    long long mine[4];
    int first = (blockIdx.x * 64 + threadIdx.x) * 4;
    for (int k = 0; k < 4; ++k) mine[k] = keys[first + k];
    Sort(shared[threadIdx.x / 16]).Sort(mine, Less());
    for (int k = 0; k < 4; ++k) keys[first + k] = mine[k];
}

typedef cub::ScanTileState<int> Tiles;

extern "C" __global__ void prepare_tiles(void *memory, int tiles)
{
    Tiles state;
    size_t sizes[1] = {0};
    state.Init(tiles, memory, sizes[0]);
    state.InitializeStatus(tiles);
}

// A scan of the whole device in one pass: a tile looks back at the sums of the tiles before it, as CUB's own scan does.
extern "C" __global__ void device_scan(const int *x, int *out, void *memory, int tiles, u32 *tickets)
{
    typedef cub::BlockScan<int, 128> Scan;
    typedef cub::TilePrefixCallbackOp<int, cuda::std::plus<>, Tiles> Prefix;
    __shared__ Scan::TempStorage scan;
    __shared__ Prefix::TempStorage prefix;
    __shared__ int tile;
    Tiles state;
    state.Init(tiles, memory, 0);
    if (threadIdx.x == 0) tile = atomicAdd(tickets, 1);
    __syncthreads();
    int at = tile * 128 + threadIdx.x, mine = x[at], sum;
    if (tile == 0) {
        int total;
        Scan(scan).InclusiveSum(mine, sum, total);
        if (threadIdx.x == 0) state.SetInclusive(0, total);
    } else {
        Prefix before(state, prefix, cuda::std::plus<>(), tile);
        Scan(scan).InclusiveScan(mine, sum, cuda::std::plus<>(), before);
    }
    out[at] = sum;
}
