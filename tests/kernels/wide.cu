// Integers of 128 bits, signed and unsigned: each is two words of memory, the lower one first.

typedef unsigned long long u64;
typedef __int128 s128;
typedef unsigned __int128 u128;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <typename T>
__device__ T wide(const u64 *words, int i) { return (T)((u128)words[2 * i + 1] << 64 | words[2 * i]); }

template <typename T>
__device__ void keep(u64 *words, int i, T value)
{
    words[2 * i] = (u64)value;
    words[2 * i + 1] = (u64)((u128)value >> 64);
}

template <typename T>
__global__ void wide_products(const u64 *a, const u64 *b, u64 *out)
{
    int i = position();
    T x = wide<T>(a, i), y = wide<T>(b, i);
    keep(out, 4 * i, x * y);
    keep(out, 4 * i + 1, x + y);
    keep(out, 4 * i + 2, x - y);
    keep(out, 4 * i + 3, -x);
}

template <typename T>
__global__ void wide_quotients(const u64 *a, const u64 *b, u64 *out)
{
    int i = position();
    T x = wide<T>(a, i), y = wide<T>(b, i);
    keep(out, 2 * i, x / y);
    keep(out, 2 * i + 1, x % y);
}

template <typename T>
__global__ void wide_shifts(const u64 *a, const int *by, u64 *out)
{
    int i = position();
    T x = wide<T>(a, i);
    keep(out, 2 * i, x >> by[i]);
    keep(out, 2 * i + 1, x << by[i]);
}

template <typename T>
__global__ void wide_comparisons(const u64 *a, const u64 *b, int *out)
{
    int i = position();
    T x = wide<T>(a, i), y = wide<T>(b, i);
    out[i] = (x < y) | (x <= y) << 1 | (x == y) << 2 | (x != y) << 3 | (x > y) << 4 | (x >= y) << 5;
}
