// Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
//
// Two kinds of counters, which are never equal. Those of cuRAND's generator have 0 in their last word. It has 65536
// threads, whose number is the third word; the first two count a thread's blocks of four words. All others have bit 31
// of the last word set, and the tag of a distribution in the other bits; the first two words have the number of the
// element, and the third the number of the attempt. So each element is a function of the key and its own number.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Words { u32 x, y, z, w; };

__device__ __forceinline__ Words philox(Words c, u64 key)
{
    u32 low = (u32)key, high = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u64 one = (u64)c.x * 0xD2511F53u, other = (u64)c.z * 0xCD9E8D57u;
        c = Words{(u32)(other >> 32) ^ c.y ^ low, (u32)other, (u32)(one >> 32) ^ c.w ^ high, (u32)one};
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return c;
}

__device__ __forceinline__ Words block_of_curand(u64 key, u32 thread, u64 round)
{
    return philox(Words{(u32)round, (u32)(round >> 32), thread, 0}, key);
}

__device__ __forceinline__ Words block(u64 key, u64 element, u32 attempt, u32 tag)
{
    return philox(Words{(u32)element, (u32)(element >> 32), attempt, 0x80000000u | tag}, key);
}

enum Tag : u32 {
    EXPONENTIAL = 1, CAUCHY, GAMMA, BETA_A, BETA_B, T_GAMMA, T_NORMAL, INTEGERS, BERNOULLI, DISCRETE, POISSON, BINOMIAL,
    MULTINOMIAL,
};

__device__ __forceinline__ u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 step() { return (u64)gridDim.x * blockDim.x; }

// A number in (0, 1] of 53 bits, as cuRAND makes it, and one in (0, 1) of 32.
__device__ __forceinline__ double unit(u32 low, u32 high)
{
    return (double)((u64)low ^ ((u64)high << 21)) * 0x1p-53 + 0x1p-54;
}
__device__ __forceinline__ double unit(u32 word) { return ((double)word + 0.5) * 0x1p-32; }

__device__ __forceinline__ u64 joined(u32 low, u32 high) { return (u64)high << 32 | low; }

template <class T> struct alignas(4 * sizeof(T)) Four { T v[4]; };
template <class T> struct alignas(2 * sizeof(T)) Two { T v[2]; };

// Writes elements from `at` on, which may begin before the array and end behind it.
template <class T, int N, class Whole>
__device__ __forceinline__ void put(T *out, i64 at, i64 count, const Whole &values)
{
    if (at >= 0 && at + N <= count && (u64)(out + at) % sizeof(Whole) == 0) {
        *(Whole *)(out + at) = values;
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k)
            if (at + k >= 0 && at + k < count) out[at + k] = values.v[k];
    }
}

// Write numbers as float32 or float64, or as integers of 1, 2, 4 or 8 bytes.
__device__ __forceinline__ void put_real(void *out, u64 at, double x, u32 bytes)
{
    if (bytes == 4) ((float *)out)[at] = (float)x;
    else ((double *)out)[at] = x;
}
__device__ __forceinline__ void put_whole(void *out, u64 at, u64 x, u32 bytes)
{
    if (bytes == 8) ((u64 *)out)[at] = x;
    else if (bytes == 4) ((u32 *)out)[at] = (u32)x;
    else if (bytes == 2) ((unsigned short *)out)[at] = (unsigned short)x;
    else ((unsigned char *)out)[at] = (unsigned char)x;
}
template <class T, class Number>
__device__ __forceinline__ void put_two(void *out, i64 at, i64 count, Number a, Number b)
{
    put<T, 2>((T *)out, at, count, Two<T>{{(T)a, (T)b}});
}
__device__ __forceinline__ void put_pair(void *out, i64 at, i64 count, double a, double b, u32 bytes)
{
    if (bytes == 4) put_two<float>(out, at, count, a, b);
    else put_two<double>(out, at, count, a, b);
}
__device__ __forceinline__ void put_pair(void *out, i64 at, i64 count, u64 a, u64 b, u32 bytes)
{
    if (bytes == 8) put_two<u64>(out, at, count, a, b);
    else if (bytes == 4) put_two<u32>(out, at, count, a, b);
    else if (bytes == 2) put_two<unsigned short>(out, at, count, a, b);
    else put_two<unsigned char>(out, at, count, a, b);
}

// Writes `make(element, low, high)` for every element: two of them share a block.
template <class Make>
__device__ __forceinline__ void by_pairs(void *out, u64 count, u64 key, u64 position, u32 bytes, u32 tag, Make make)
{
    u64 last = (position + count - 1) >> 1;
    for (u64 pair = (position >> 1) + first(); pair <= last; pair += step()) {
        Words words = block(key, pair, 0, tag);
        put_pair(out, (i64)(2 * pair - position), (i64)count, make(2 * pair, words.x, words.y),
                 make(2 * pair + 1, words.z, words.w), bytes);
    }
}
