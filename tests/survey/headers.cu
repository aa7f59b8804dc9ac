// What the headers of CUDA add, one class or group of functions a kernel.

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuComplex.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/optional>
#include <cuda/std/tuple>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define KERNEL extern "C" __global__ void
#define I (blockIdx.x * blockDim.x + threadIdx.x)

namespace cg = cooperative_groups;

KERNEL halves(__half *x, float *y)
{
    __half v = x[I];
    x[I] = v * x[I + 1] + hsqrt(v) - hrcp(v) / __float2half(3) + __hmax(v, x[I + 2]) + hexp(v) + htanh(v) + __habs(v);
    y[I] = __half2float(v) + (v > x[I + 1]) + __half2int_rn(v) + __hisnan(v);
}

KERNEL pairs_of_halves(__half2 *x)
{
    __half2 v = x[I];
    x[I] = __hfma2(v, x[I + 1], __float2half2_rn(2)) + __hmul2(v, v) + __hmin2(v, x[I + 1]) + h2rsqrt(v) + __lowhigh2highlow(v);
}

KERNEL brain_floats(__nv_bfloat16 *x, float *y)
{
    __nv_bfloat16 v = x[I];
    x[I] = v * x[I + 1] + hsqrt(v) - v / __float2bfloat16(3) + __hmin(v, x[I + 2]) + hlog(v);
    y[I] = __bfloat162float(v) + (v <= x[I + 1]);
}

KERNEL pairs_of_brain_floats(__nv_bfloat162 *x) { x[I] = x[I] * x[I + 1] + x[I + 2] + __hmax2(x[I], x[I + 1]); }

KERNEL eight_bit_floats(__nv_fp8_e4m3 *a, __nv_fp8_e5m2 *b, float *x, __half *y)
{
    a[I] = __nv_fp8_e4m3(x[I]);
    b[I] = __nv_fp8_e5m2(y[I]);
    x[I] = float(a[I + 1]) + float(b[I + 1]);
    y[I] = __half(a[I + 2]);
}

KERNEL atomics_of_narrow_floats(__half *x, __half2 *y, __nv_bfloat16 *z) { atomicAdd(x, x[I]); atomicAdd(y, y[I]); atomicAdd(z, z[I]); }

KERNEL complex_numbers(cuFloatComplex *x, cuDoubleComplex *y)
{
    x[I] = cuCaddf(cuCmulf(x[I], x[I + 1]), cuCdivf(x[I], x[I + 2]));
    y[I] = cuCmul(y[I], cuConj(y[I + 1]));
}

KERNEL tiles(int *a)
{
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    a[I] = cg::reduce(tile, a[I], cg::plus<int>()) + cg::inclusive_scan(tile, a[I]) + tile.shfl_xor(a[I], 3) + tile.ballot(a[I] > 2);
}

KERNEL together_by_chance(int *a, int *count)
{
    if (a[I] % 3) return;
    auto group = cg::coalesced_threads();
    int base = 0;
    if (group.thread_rank() == 0) base = atomicAdd(count, (int)group.size());
    a[I] = group.shfl(base, 0) + group.thread_rank() + cg::reduce(group, a[I], cg::greater<int>());
}

KERNEL partitions(int *a)
{
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto same = cg::labeled_partition(warp, a[I] & 3);
    a[I] = same.size() + cg::binary_partition(warp, a[I] > 0).thread_rank();
}

KERNEL whole_grid(int *a)
{
    auto grid = cg::this_grid();
    a[grid.thread_rank()] = 1;
    grid.sync();
    a[I] += a[I ^ 1];
}

KERNEL tiles_of_several_warps(int *a)
{
    __shared__ cg::block_tile_memory<256> memory;
    auto tile = cg::tiled_partition<64>(cg::this_thread_block(memory));
    a[I] = cg::reduce(tile, a[I], cg::plus<int>()) + tile.any(a[I] > 5);
    tile.sync();
}

KERNEL group_copies(int *a, const int *b)
{
    __shared__ int s[256];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, b, sizeof s);
    cg::wait(block);
    a[I] = s[255 - threadIdx.x];
}

KERNEL barrier_objects(int *a)
{
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    auto token = barrier.arrive();
    a[I] += 1;
    barrier.wait(cuda::std::move(token));
    barrier.arrive_and_wait();
}

KERNEL pipelines(int *a, const int *b)
{
    __shared__ int s[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    pipe.producer_acquire();
    cuda::memcpy_async(block, s[0], b, sizeof s[0], pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
    a[I] = s[0][threadIdx.x];
    pipe.consumer_release();
}

KERNEL latches_and_semaphores(int *a)
{
    __shared__ alignas(8) char memory[sizeof(cuda::latch<cuda::thread_scope_block>)];
    __shared__ alignas(8) char other[sizeof(cuda::binary_semaphore<cuda::thread_scope_block>)];
    auto &latch = *reinterpret_cast<cuda::latch<cuda::thread_scope_block> *>(memory);
    auto &semaphore = *reinterpret_cast<cuda::binary_semaphore<cuda::thread_scope_block> *>(other);
    if (threadIdx.x == 0) {
        new (&latch) cuda::latch<cuda::thread_scope_block>(blockDim.x);
        new (&semaphore) cuda::binary_semaphore<cuda::thread_scope_block>(1);
    }
    __syncthreads();
    semaphore.acquire();
    a[0] += 1;
    semaphore.release();
    latch.arrive_and_wait();
}

KERNEL atomic_references(int *a, float *x, unsigned char *b, long long *c)
{
    cuda::atomic_ref<int, cuda::thread_scope_device> word(a[0]);
    cuda::atomic_ref<float> number(x[0]);
    cuda::atomic_ref<unsigned char> byte(b[0]);
    cuda::atomic_ref<long long, cuda::thread_scope_block> wide(c[0]);
    a[I] = word.fetch_add(1, cuda::memory_order_relaxed) + word.load(cuda::memory_order_acquire) + word.exchange(3);
    number.fetch_add(0.5f);
    byte.fetch_or(3);
    wide.store(5, cuda::memory_order_release);
    wide.fetch_max(7);
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst);
}

KERNEL containers(int *a)
{
    cuda::std::array<int, 4> values{a[I], a[I + 1], 3, 4};
    cuda::std::optional<int> found;
    for (int value : values) if (value > 2) found = value;
    auto both = cuda::std::make_tuple(found.value_or(7), values.size());
    a[I] = cuda::std::get<0>(both) + (int)cuda::std::get<1>(both) + cuda::std::popcount((unsigned)a[I]);
}
