// Elements of cuRAND's own distributions.
//
// Position p is slot q = p % 262144 of round r = p / 262144, and slot q belongs to thread q / 4. A distribution of one
// word for each element takes word q % 4 of the thread's block r. One of two words takes half a block: elements 0 and 1
// of a thread come from block r, and elements 2 and 3 from block r + 1; its next round is r + 2.

template <class T, class Make>
__device__ __forceinline__ void by_words(T *out, u64 count, u64 key, u64 position, Make make)
{
    u64 last = (position + count - 1) >> 2;
    for (u64 i = (position >> 2) + first(); i <= last; i += step())
        put<T, 4>(out, (i64)(4 * i - position), (i64)count, make(block_of_curand(key, (u32)i & 0xFFFF, i >> 16)));
}

template <class Make>
__device__ __forceinline__ void by_halves(double *out, u64 count, u64 key, u64 position, Make make)
{
    u64 round = position >> 18, slot = position & 0x3FFFF, last = (slot + count - 1) >> 1;
    for (u64 i = (slot >> 1) + first(); i <= last; i += step()) {
        u64 block = round + 2 * (i >> 17) + (i & 1);
        put<double, 2>(out, (i64)(2 * i - slot), (i64)count, make(block_of_curand(key, (u32)(i >> 1) & 0xFFFF, block)));
    }
}

__device__ __forceinline__ float unit32(u32 word) { return (float)word * 0x1p-32f + 0x1p-33f; }
