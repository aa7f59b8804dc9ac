// Atomic operations of every width, in global and in shared memory, and what is built from compare-and-swap.

typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void add(int *signed32, unsigned *unsigned32, u64 *unsigned64, float *single, double *twice)
{
    int i = position();
    atomicAdd(&signed32[i % 5], i % 2 ? i : -3 * i);
    atomicSub(&signed32[5 + i % 2], i);
    atomicAdd(&unsigned32[i % 3], 0x01000001u * (unsigned)i);
    atomicAdd(&unsigned64[i % 3], (u64)i << 33 | 1u);
    atomicAdd(&single[i % 4], 0.25f * (float)(i % 16));
    atomicAdd(&twice[i % 4], 1.0 / 1024 * i);
}

// Sums of floats depend on the order, which nobody knows.
extern "C" __global__ void add_in_any_order(const float *x, const double *y, float *sum, double *sum64, int n)
{
    int i = position();
    if (i >= n) return;
    atomicAdd(sum, x[i]);
    atomicAdd(sum64, y[i]);
}

extern "C" __global__ void extremes(const int *x, const long long *y, int *least, int *most, unsigned *uleast,
                                    unsigned *umost, long long *wide, u64 *uwide)
{
    int i = position(), k = i % 3;
    atomicMin(&least[k], x[i]);
    atomicMax(&most[k], x[i]);
    atomicMin(&uleast[k], (unsigned)x[i]);
    atomicMax(&umost[k], (unsigned)x[i]);
    atomicMin(&wide[0], y[i]);
    atomicMax(&wide[1], y[i]);
    atomicMin(&uwide[0], (u64)y[i]);
    atomicMax(&uwide[1], (u64)y[i]);
}

extern "C" __global__ void bits(unsigned *x, u64 *y)
{
    int i = position();
    atomicAnd(&x[0], ~(1u << (i % 29)));
    atomicOr(&x[1], 1u << (i % 31));
    atomicXor(&x[2], (unsigned)i * 2654435761u);
    atomicAnd(&y[0], ~(1ull << (i % 61)));
    atomicOr(&y[1], 1ull << (i % 63));
    atomicXor(&y[2], (u64)i * 11400714819323198485ull);
}

// Each thread puts its own number into the word behind the array and takes out another one's: none is lost or doubled.
extern "C" __global__ void exchange(int *taken, u64 *wide, float *floats, int n)
{
    int i = position();
    taken[i] = atomicExch(&taken[n], i);
    wide[i] = atomicExch(&wide[n], (u64)i << 32);
    floats[i] = atomicExch(&floats[n], (float)i);
}

// Each thread adds by compare-and-swap until nobody came in between.
extern "C" __global__ void compare_and_swap(unsigned short *narrow, int *word, u64 *wide)
{
    int i = position();
    unsigned short seen16 = narrow[i % 2], expected16;
    do {
        expected16 = seen16;
        seen16 = atomicCAS(&narrow[i % 2], expected16, (unsigned short)(expected16 + i));
    } while (seen16 != expected16);
    int seen32 = *word, expected32;
    do {
        expected32 = seen32;
        seen32 = atomicCAS(word, expected32, expected32 + i * i);
    } while (seen32 != expected32);
    u64 seen64 = *wide, expected64;
    do {
        expected64 = seen64;
        seen64 = atomicCAS(wide, expected64, expected64 + ((u64)i << 35));
    } while (seen64 != expected64);
}

// The largest float and the product, which the hardware has no atomic for.
extern "C" __global__ void float_extreme(const float *x, float *most, double *product)
{
    int i = position();
    int seen = __float_as_int(*most);
    while (__int_as_float(seen) < x[i]) {
        int expected = seen;
        seen = atomicCAS((int *)most, expected, __float_as_int(x[i]));
        if (seen == expected) break;
    }
    u64 *bits = (u64 *)product;
    u64 old = *bits, expected;
    do {
        expected = old;
        double next = __longlong_as_double((long long)expected) * (i % 2 ? 2.0 : 0.5);
        old = atomicCAS(bits, expected, (u64)__double_as_longlong(next));
    } while (old != expected);
}

extern "C" __global__ void wrap_around(unsigned *up, unsigned *down, unsigned *seen_up, unsigned *seen_down)
{
    int i = position();
    seen_up[i] = atomicInc(up, 9);
    seen_down[i] = atomicDec(down, 6);
}

extern "C" __global__ void scopes(int *per_block, int *whole, u64 *wide, int *most)
{
    __shared__ int local[2];
    int i = position();
    if (threadIdx.x < 2) local[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd_block(&local[i % 2], i);
    atomicAdd_block(&per_block[blockIdx.x], 2);
    atomicMax_block(&per_block[gridDim.x + blockIdx.x], i);
    atomicAdd_system(whole, 3);
    atomicOr_system(wide, 1ull << (i % 40));
    atomicMax_system(most, (i * 37) % 1000);
    __syncthreads();
    if (threadIdx.x < 2) atomicAdd(&whole[1 + threadIdx.x], local[threadIdx.x]);
}

extern "C" __global__ void tickets(int *counter, int *mine)
{
    mine[position()] = atomicAdd(counter, 2);
}

// Shared memory, also through a generic pointer that may point to either memory.
__noinline__ __device__ int take(int *counter, int by) { return atomicAdd(counter, by); }

extern "C" __global__ void shared_atomics(int *out, float *sums, unsigned *masks, int *global)
{
    __shared__ int counters[4];
    __shared__ float floats[2];
    __shared__ unsigned mask;
    __shared__ u64 wide;
    int t = threadIdx.x;
    if (t < 4) counters[t] = 0;
    if (t < 2) floats[t] = 0;
    if (t == 0) mask = 0, wide = 0;
    __syncthreads();
    take(t % 2 ? &counters[0] : global, 1);
    atomicMax(&counters[1], (t * 77) % 101);
    atomicExch(&counters[2], 5);
    atomicCAS(&counters[3], 0, 1000);
    atomicAdd(&floats[t % 2], 0.5f);
    atomicXor(&mask, 1u << (t % 32));
    atomicAdd(&wide, 1ull << 40);
    __syncthreads();
    if (t < 4) out[blockIdx.x * 4 + t] = counters[t];
    if (t < 2) sums[blockIdx.x * 2 + t] = floats[t];
    if (t == 0) masks[2 * blockIdx.x] = mask, masks[2 * blockIdx.x + 1] = (unsigned)(wide >> 40);
}

// Blocks take a lock in turn; what it guards is no atomic.
extern "C" __global__ void spin_lock(int *lock, int *guarded, int rounds)
{
    if (threadIdx.x) return;
    for (int k = 0; k < rounds; ++k) {
        while (atomicCAS(lock, 0, 1)) __nanosleep(20);
        __threadfence();
        volatile int *cell = guarded;
        cell[0] = cell[0] + 1;
        cell[1] = cell[1] * 3 + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

// Trees of a forest are joined by compare-and-swap on parents; the smaller root wins.
__device__ int root(volatile int *parent, int i)
{
    while (parent[i] != i) i = parent[i];
    return i;
}

extern "C" __global__ void unite(const int2 *edges, int n, int *parent)
{
    int i = position();
    if (i >= n) return;
    int a = root(parent, edges[i].x), b = root(parent, edges[i].y);
    while (a != b) {
        if (a < b) { int swap = a; a = b; b = swap; }
        int old = atomicCAS(&parent[a], a, b);
        if (old == a) break;
        a = root(parent, old);
        b = root(parent, b);
    }
}

extern "C" __global__ void flatten(int *parent, int *labels, int n)
{
    int i = position();
    if (i < n) labels[i] = root(parent, i);
}
