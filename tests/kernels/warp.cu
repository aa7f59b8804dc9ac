// Lanes of a warp that see each other: shuffles, votes, matches, reductions and what is built from them.

#define ALL 0xffffffffu

// out[width][delta][thread], for the widths 2, 4, 8, 16 and 32 and every delta below the width.
#define SHUFFLES(name, expression)                                                             \
    extern "C" __global__ void name(const int *x, int *out)                                    \
    {                                                                                          \
        int t = threadIdx.x, value = x[t];                                                     \
        for (int width = 2; width <= 32; width *= 2)                                           \
            for (int delta = 0; delta < width; ++delta, out += blockDim.x) out[t] = expression; \
    }

SHUFFLES(shuffle_up, __shfl_up_sync(ALL, value, delta, width))
SHUFFLES(shuffle_down, __shfl_down_sync(ALL, value, delta, width))
SHUFFLES(shuffle_xor, __shfl_xor_sync(ALL, value, delta, width))
SHUFFLES(shuffle_index, __shfl_sync(ALL, value, delta * 3 + t, width))

extern "C" __global__ void shuffle_wide(const double *x, const long long *y, double *u, long long *v, float2 *w)
{
    int t = threadIdx.x;
    u[t] = __shfl_xor_sync(ALL, x[t], 9);
    v[t] = __shfl_down_sync(ALL, y[t], 5, 16);
    float2 pair = make_float2((float)t, -(float)t);
    w[t] = make_float2(__shfl_sync(ALL, pair.x, 31 - t), __shfl_sync(ALL, pair.y, t * t));
}

// Both halves of a warp vote at once, each in its own branch with its own mask.
extern "C" __global__ void votes(const int *x, unsigned *out)
{
    int t = threadIdx.x, lane = t % 32, v = x[t];
    unsigned *mine = out + 4 * t;
    if (lane < 16) {
        mine[0] = __ballot_sync(0x0000ffffu, v > 0);
        mine[1] = __any_sync(0x0000ffffu, v == 7);
        mine[2] = __all_sync(0x0000ffffu, v > -8);
    } else {
        mine[0] = __ballot_sync(0xffff0000u, v < 0);
        mine[1] = __any_sync(0xffff0000u, v == -7);
        mine[2] = __all_sync(0xffff0000u, v < 8);
    }
    mine[3] = __uni_sync(ALL, x[t / 32 * 32] > 0);
}

extern "C" __global__ void matches(const int *x, const long long *y, unsigned *any, unsigned *all, int *agreed)
{
    int t = threadIdx.x;
    any[2 * t] = __match_any_sync(ALL, x[t]);
    any[2 * t + 1] = __match_any_sync(ALL, y[t]);
    all[t] = __match_all_sync(ALL, y[t / 32 * 32] + (t == 40), &agreed[t]);
}

// Which lanes run together is the hardware's choice; that a lane runs with itself, and with none that left, is not.
extern "C" __global__ void active_mask(unsigned *out)
{
    if (threadIdx.x % 32 >= 20) return;
    out[threadIdx.x] = __activemask();
}

extern "C" __global__ void warp_sum(const float *x, float *sums, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0;
    for (int step = 16; step; step >>= 1) v += __shfl_down_sync(ALL, v, step);
    if (i % 32 == 0) sums[i / 32] = v;
}

#if __CUDA_ARCH__ >= 800

// Six reductions in hardware, over all lanes and over the lanes of one parity.
extern "C" __global__ void warp_reductions(const int *x, int *out)
{
    int t = threadIdx.x, v = x[t];
    unsigned u = (unsigned)v, mask = t % 2 ? 0xaaaaaaaau : 0x55555555u;
    int *mine = out + 8 * t;
    mine[0] = __reduce_add_sync(ALL, v);
    mine[1] = __reduce_min_sync(ALL, v);
    mine[2] = __reduce_max_sync(ALL, v);
    mine[3] = (int)__reduce_max_sync(ALL, u);
    if (t % 2) {
        mine[4] = (int)__reduce_and_sync(mask, u);
        mine[5] = (int)__reduce_or_sync(mask, u);
    } else {
        mine[4] = (int)__reduce_xor_sync(mask, u);
        mine[5] = (int)__reduce_add_sync(mask, u);
    }
    mine[6] = (int)__reduce_min_sync(ALL, u);
    mine[7] = __reduce_add_sync(ALL, t < 32 ? 1 : -1);
}

#endif

extern "C" __global__ void warp_scan(const int *x, int *inclusive, int *exclusive)
{
    int t = threadIdx.x, lane = t % 32, v = x[t], sum = v;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(ALL, sum, step);
        if (lane >= step) sum += other;
    }
    inclusive[t] = sum;
    exclusive[t] = sum - v;
}

// Keeps the order within a warp; the warps come in any order.
extern "C" __global__ void compact(const int *x, int n, int *kept, int *count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    bool keep = i < n && x[i] % 3 == 0;
    unsigned chosen = __ballot_sync(ALL, keep);
    int base = 0;
    if (lane == 0) base = atomicAdd(count, __popc(chosen));
    base = __shfl_sync(ALL, base, 0);
    if (keep) kept[base + __popc(chosen & ((1u << lane) - 1))] = x[i];
}

// Sorts the 32 values of each warp.
extern "C" __global__ void warp_sort(const int *x, int *out)
{
    int t = threadIdx.x, lane = t % 32, v = x[t];
    for (int size = 2; size <= 32; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            int other = __shfl_xor_sync(ALL, v, step);
            bool ascending = (lane & size) == 0, lower = (lane & step) == 0;
            v = (lower == ascending) ? min(v, other) : max(v, other);
        }
    out[t] = v;
}

// Lanes write shared memory and read their neighbours' values, ordered by `__syncwarp` alone.
extern "C" __global__ void warp_exchange(const int *x, int *out, int rounds)
{
    __shared__ int board[64];
    int t = threadIdx.x, left = t / 32 * 32 + (t + 31) % 32;
    int v = x[t];
    for (int k = 0; k < rounds; ++k) {
        board[t] = v;
        __syncwarp();
        int other = board[left];
        __syncwarp();
        v = other * 5 + k;
    }
    out[t] = v;
}

// One atomic for all lanes of a warp that hold the same key.
extern "C" __global__ void aggregated_count(const int *keys, int *counts, int *places, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    bool mine = i < n;
    unsigned present = __ballot_sync(ALL, mine);
    if (!mine) return;
    unsigned same = __match_any_sync(present, keys[i]);
    int leader = __ffs(same) - 1, base = 0;
    if (lane == leader) base = atomicAdd(&counts[keys[i]], __popc(same));
    places[i] = __shfl_sync(same, base, leader) + __popc(same & ((1u << lane) - 1));
}
