// libcu++, the standard library of C++ on the device: atomics, barriers, numbers and containers.

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/numeric>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>

typedef unsigned int u32;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void atomic_refs(const int *x, int *out, double *sum, u32 *product)
{
    int mine = x[position()];
    using Whole = cuda::atomic_ref<int, cuda::thread_scope_device>;
    Whole add(out[0]), least(out[1]), most(out[2]), either(out[3]), odd(out[4]);
    cuda::atomic_ref<double> total(*sum);
    cuda::atomic_ref<u32, cuda::thread_scope_system> all(*product);
    add.fetch_add(mine, cuda::memory_order_relaxed);
    least.fetch_min(mine, cuda::memory_order_acquire);
    most.fetch_max(mine, cuda::memory_order_release);
    either |= mine;
    odd.fetch_xor(mine, cuda::memory_order_acq_rel);
    total.fetch_add(0.5 * mine);
    u32 old = all.load();
    while (!all.compare_exchange_weak(old, old * (2 * mine + 1))) {}
}

// Bytes and halves of a word have no instructions of their own.
extern "C" __global__ void small_atomics(const unsigned char *x, unsigned char *bytes, unsigned short *words)
{
    int i = position();
    cuda::atomic_ref<unsigned char, cuda::thread_scope_device> byte(bytes[i % 8]);
    cuda::atomic_ref<unsigned short, cuda::thread_scope_device> word(words[i % 4]);
    byte.fetch_add(x[i]);
    word.fetch_or((unsigned short)(1 << x[i] % 16));
}

// Each block waits for the one before it, adds, and wakes the next.
extern "C" __global__ void relay(int *turn, int *values)
{
    cuda::atomic_ref<int, cuda::thread_scope_device> now(*turn);
    int block = blockIdx.x;
    while (now.load(cuda::memory_order_acquire) != block) {}
    if (threadIdx.x == 0) values[block + 1] = values[block] * 3 + block;
    __syncthreads();
    if (threadIdx.x == 0) now.store(block + 1, cuda::memory_order_release);
}

// Half of the threads arrive and go on; the others wait for what they have written.
extern "C" __global__ void split_barrier(const int *x, int *out)
{
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ int values[64];
    __shared__ alignas(8) char memory[sizeof(Barrier)];
    Barrier &barrier = *reinterpret_cast<Barrier *>(memory);
    int t = threadIdx.x, sum = 0;
    if (t == 0) init(&barrier, 64);
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        values[t] = x[t] + round;
        auto token = barrier.arrive();
        int aside = x[t] * round;
        barrier.wait(cuda::std::move(token));
        sum += values[63 - t] + aside;
        barrier.arrive_and_wait();
    }
    out[t] = sum;
}

// Two at a time may be inside; a latch holds everyone back until all have been there.
extern "C" __global__ void semaphore_and_latch(int *most, int *seen)
{
    using Semaphore = cuda::counting_semaphore<cuda::thread_scope_block, 2>;
    using Latch = cuda::latch<cuda::thread_scope_block>;
    __shared__ alignas(8) char places[sizeof(Semaphore)], doors[sizeof(Latch)];
    __shared__ int inside, highest, visits;
    Semaphore &place = *reinterpret_cast<Semaphore *>(places);
    Latch &door = *reinterpret_cast<Latch *>(doors);
    if (threadIdx.x == 0) {
        new (&place) Semaphore(2);
        new (&door) Latch(blockDim.x);
        inside = highest = visits = 0;
    }
    __syncthreads();
    place.acquire();
    atomicMax(&highest, atomicAdd(&inside, 1) + 1);
    atomicAdd(&visits, 1);
    atomicSub(&inside, 1);
    place.release();
    door.arrive_and_wait();
    seen[position()] = visits;
    if (threadIdx.x == 0) most[blockIdx.x] = highest;
}

template <typename T>
using Complex = cuda::std::complex<T>;

template <typename T>
__global__ void complex_numbers(const Complex<T> *x, const Complex<T> *y, Complex<T> *out)
{
    int i = position();
    Complex<T> a = x[i], b = y[i], *mine = out + 6 * i;
    mine[0] = a * b;
    mine[1] = a / b;
    mine[2] = exp(a);
    mine[3] = sqrt(a);
    mine[4] = {abs(a), arg(a)};
    mine[5] = conj(a) + cuda::std::polar(T(2), T(1));
}

extern "C" __global__ void bits(const u32 *x, int *out)
{
    u32 v = x[position()];
    int *mine = out + 7 * position();
    mine[0] = cuda::std::popcount(v);
    mine[1] = cuda::std::countl_zero(v);
    mine[2] = cuda::std::countr_one(v);
    mine[3] = cuda::std::bit_width(v);
    mine[4] = (int)cuda::std::bit_floor(v);
    mine[5] = (int)cuda::std::rotl(v, 11);
    mine[6] = cuda::std::has_single_bit(v);
}

extern "C" __global__ void numbers(const int *x, const int *y, int *out)
{
    int a = x[position()], b = y[position()], *mine = out + 4 * position();
    mine[0] = cuda::std::gcd(a, b);
    mine[1] = cuda::std::lcm(a % 100, b % 100);
    mine[2] = cuda::std::midpoint(a, b);
    mine[3] = cuda::std::numeric_limits<int>::max() - cuda::std::abs(a);
}

__device__ cuda::std::optional<int> first_above(cuda::std::span<const int> row, int limit)
{
    for (int value : row)
        if (value > limit) return value;
    return cuda::std::nullopt;
}

// Rows seen as spans, arrays that are returned, tuples that are compared as a whole.
extern "C" __global__ void containers(const int *x, int *out)
{
    cuda::std::span<const int> row(x + 8 * position(), 8);
    cuda::std::array<int, 3> sums{};
    for (size_t k = 0; k < row.size(); ++k) sums[k % sums.size()] += row[k];
    auto least = cuda::std::make_tuple(sums[0] % 2, sums[1] % 3, 0);
    for (int k = 1; k < 3; ++k) {
        auto other = cuda::std::make_tuple(sums[k] % 2, sums[(k + 1) % 3] % 3, k);
        if (other < least) least = other;
    }
    auto [parity, rest, place] = least;
    int *mine = out + 5 * position();
    mine[0] = first_above(row.subspan(2), 80).value_or(-1);
    mine[1] = parity;
    mine[2] = rest;
    mine[3] = place;
    mine[4] = cuda::std::accumulate(row.begin(), row.end(), 0);
}

// A matrix in rows and its transpose in columns, through views of many dimensions.
extern "C" __global__ void views(const float *x, float *out, int rows, int columns)
{
    using Shape = cuda::std::dextents<int, 2>;
    cuda::std::mdspan<const float, Shape> in(x, rows, columns);
    cuda::std::mdspan<float, Shape, cuda::std::layout_left> to(out, rows, columns);
    for (int i = position(); i < rows * columns; i += gridDim.x * blockDim.x)
        to(i / columns, i % columns) = in(i / columns, i % columns) * to.stride(1);
}
