// Copies that run beside the computation, and threads of a block that wait for each other one group at a time.

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>

namespace cg = cooperative_groups;

typedef cuda::barrier<cuda::thread_scope_block> Barrier;

// A pipeline of the whole block: tiles are on their way while one is summed, in a ring of so many stages.
template <int STAGES>
__global__ void staged_sums(const int *x, int tiles, int *sums)
{
    __shared__ int ring[STAGES][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    cg::thread_block block = cg::this_thread_block();
    cuda::pipeline<cuda::thread_scope_block> pipe = cuda::make_pipeline(block, &state);
    const int *mine = x + blockIdx.x * tiles * 64;
    int sent = 0, total = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        for (; sent < tiles && sent < tile + STAGES; ++sent) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, ring[sent % STAGES], mine + sent * 64, sizeof(int) * 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        total = total * 3 + ring[tile % STAGES][(threadIdx.x + tile) % 64];
        pipe.consumer_release();
    }
    sums[blockIdx.x * 64 + threadIdx.x] = total;
}

// One warp produces for the others: each thread knows its part in the pipeline from the start.
extern "C" __global__ void parted(const int *x, int tiles, int *out)
{
    __shared__ int ring[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    cg::thread_block block = cg::this_thread_block();
    bool produces = threadIdx.x < 32;
    auto role = produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    cuda::pipeline<cuda::thread_scope_block> pipe = cuda::make_pipeline(block, &state, role);
    int total = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        if (produces) {
            pipe.producer_acquire();
            for (int k = threadIdx.x; k < 64; k += 32)
                cuda::memcpy_async(&ring[tile % 2][k], &x[tile * 64 + k], sizeof(int), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            total = total * 5 + ring[tile % 2][95 - threadIdx.x];
            pipe.consumer_release();
        }
    }
    if (!produces) out[threadIdx.x - 32] = total;
    pipe.quit();
}

// The copy arrives at a barrier, together with the threads.
extern "C" __global__ void copied_behind_a_barrier(const double *x, double *out)
{
    __shared__ alignas(16) double tile[128];
    __shared__ alignas(8) char memory[sizeof(Barrier)];
    Barrier &barrier = *reinterpret_cast<Barrier *>(memory);
    cg::thread_block block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    block.sync();
    for (int round = 0; round < 3; ++round) {
        cuda::memcpy_async(block, tile, x + round * 128, cuda::aligned_size_t<16>(sizeof tile), barrier);
        barrier.arrive_and_wait();
        for (int k = threadIdx.x; k < 128; k += blockDim.x) out[round * 128 + k] = tile[127 - k] - tile[0];
        block.sync();
    }
}

// The group copies together, and waits for all but the newest copy.
extern "C" __global__ void copied_by_the_group(const short *x, short *out, int count)
{
    __shared__ short first[100], second[100];
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, first, 100, x, count);
    cg::memcpy_async(block, second, x + count, sizeof(short) * count);
    cg::wait_prior<1>(block);
    for (int k = threadIdx.x; k < count; k += blockDim.x) out[k] = first[count - 1 - k];
    cg::wait(block);
    for (int k = threadIdx.x; k < count; k += blockDim.x) out[count + k] = second[count - 1 - k];
}

#if __CUDA_ARCH__ >= 900
// Bulk copies into two buffers in turn; the barrier counts their bytes. The results go back in bulk, too.
extern "C" __global__ void in_bulk(const float *x, float *out, int tiles)
{
    namespace ptx = cuda::ptx;
    __shared__ alignas(128) float tile[2][96], result[96];
    __shared__ alignas(8) uint64_t full[2];
    const float *mine = x + blockIdx.x * tiles * 96;
    auto send = [&](int at) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[at % 2], sizeof result);
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile[at % 2], mine + at * 96, sizeof result, &full[at % 2]);
    };
    if (threadIdx.x == 0) {
        for (int k = 0; k < 2; ++k) ptx::mbarrier_init(&full[k], 1);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int at = 0; at < 2 && at < tiles; ++at) send(at);
    for (int at = 0; at < tiles; ++at) {
        while (!ptx::mbarrier_try_wait_parity(&full[at % 2], at / 2 % 2)) {}
        result[threadIdx.x] = tile[at % 2][threadIdx.x] * 2 + tile[at % 2][95 - threadIdx.x];
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + (blockIdx.x * tiles + at) * 96, result, sizeof result);
            ptx::cp_async_bulk_commit_group();
            if (at + 2 < tiles) send(at + 2);
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
        }
        __syncthreads();
    }
}

// The barrier of the C++ library is told of the bytes that a bulk copy brings.
extern "C" __global__ void with_transactions(const int *x, int *out)
{
    __shared__ alignas(16) int tile[256];
    __shared__ alignas(8) char memory[sizeof(Barrier)];
    Barrier &barrier = *reinterpret_cast<Barrier *>(memory);
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, x + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof tile), barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof tile);
    } else {
        token = barrier.arrive();
    }
    barrier.wait(cuda::std::move(token));
    for (int k = threadIdx.x; k < 256; k += blockDim.x) out[blockIdx.x * 256 + k] = tile[255 - k] + tile[k ^ 1];
}
#endif

__device__ void sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ void arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Two warps fill two buffers in turn for two others, by barriers of their own: who only tells does not wait.
extern "C" __global__ void produced_and_consumed(const int *x, int *out, int rounds)
{
    enum { FULL = 1, EMPTY = 3, ALL = 128 };
    __shared__ int buffer[2][64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int round = 0; round < rounds; ++round) {
            sync(EMPTY + round % 2, ALL);
            buffer[round % 2][t] = x[round * 64 + t] * (round + 1);
            __threadfence_block();
            arrive(FULL + round % 2, ALL);
        }
    } else {
        int total = 0;
        for (int k = 0; k < 2; ++k) arrive(EMPTY + k, ALL);
        for (int round = 0; round < rounds; ++round) {
            sync(FULL + round % 2, ALL);
            total += buffer[round % 2][63 - t] * (t + 1);
            if (round + 2 < rounds) arrive(EMPTY + round % 2, ALL);
        }
        out[t] = total;
    }
}

// A tile of two warps reduces by way of shared memory; one of its threads speaks for it.
extern "C" __global__ void wide_tiles(const int *x, int *sums, int *most, int *count)
{
    __shared__ cg::block_tile_memory<128> memory;
    cg::thread_block block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[i] = cg::reduce(tile, x[i], cg::plus<int>());
    most[i] = cg::reduce(tile, x[i], [](int a, int b) { return max(a % 10, b % 10); });
    if (tile.any(x[i] > 95) && tile.thread_rank() == 63) atomicAdd(count, (int)tile.num_threads());
}
