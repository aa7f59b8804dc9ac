// Reductions and prefix sums: within a block, over several launches, and in one launch with blocks that wait.

#define ALL 0xffffffffu
#define THREADS 256

extern "C" __global__ void block_sum(const float *x, float *sums, int n)
{
    __shared__ float s[THREADS];
    int t = threadIdx.x;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) v += x[i];
    s[t] = v;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) s[t] += s[t + half];
    }
    if (t == 0) sums[blockIdx.x] = s[0];
}

// The smallest value and where it stands first.
extern "C" __global__ void block_argmin(const int *x, int2 *least)
{
    __shared__ int values[THREADS], places[THREADS];
    int t = threadIdx.x;
    values[t] = x[blockIdx.x * blockDim.x + t];
    places[t] = t;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) {
            int a = values[t], b = values[t + half];
            if (b < a || (b == a && places[t + half] < places[t])) {
                values[t] = b;
                places[t] = places[t + half];
            }
        }
    }
    if (t == 0) least[blockIdx.x] = make_int2(values[0], places[0]);
}

__device__ float warp_sum(float v)
{
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    return v;
}

// Mean and variance in one pass, by the sums of the values and of their squares.
extern "C" __global__ void block_moments(const float *x, float2 *moments)
{
    __shared__ float2 parts[THREADS / 32];
    int t = threadIdx.x;
    float v = x[blockIdx.x * THREADS + t], sum = warp_sum(v), squares = warp_sum(v * v);
    if (t % 32 == 0) parts[t / 32] = make_float2(sum, squares);
    __syncthreads();
    if (t < 32) {
        float2 part = t < THREADS / 32 ? parts[t] : make_float2(0, 0);
        float mean = warp_sum(part.x) / THREADS, square = warp_sum(part.y) / THREADS;
        if (t == 0) moments[blockIdx.x] = make_float2(mean, square - mean * mean);
    }
}

extern "C" __global__ void block_votes(const int *x, int3 *out)
{
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    int count = __syncthreads_count(v > 0), every = __syncthreads_and(v > -90), any = __syncthreads_or(v > 90);
    out[blockIdx.x * blockDim.x + threadIdx.x] = make_int3(count, every != 0, any != 0);
}

// The block that comes last adds up what all blocks have left, and puts the counter back.
extern "C" __global__ void dot(const float *x, const float *y, int n, volatile float *partial, unsigned *done,
                               float *out)
{
    __shared__ float s[THREADS];
    __shared__ bool last;
    int t = threadIdx.x;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) v += x[i] * y[i];
    s[t] = v;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) s[t] += s[t + half];
    }
    if (t == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || t) return;
    float sum = 0;
    for (int block = 0; block < gridDim.x; ++block) sum += partial[block];
    *out = sum;
}

// Hillis and Steele: every step adds the value that lies twice as far back.
extern "C" __global__ void scan_hillis_steele(const int *x, int *out)
{
    __shared__ int s[2][THREADS];
    int t = threadIdx.x, from = 0;
    s[0][t] = x[t];
    for (int step = 1; step < THREADS; step *= 2) {
        __syncthreads();
        s[1 - from][t] = s[from][t] + (t >= step ? s[from][t - step] : 0);
        from = 1 - from;
    }
    out[t] = s[from][t];
}

// Blelloch: sums up a tree, then down; exclusive.
extern "C" __global__ void scan_blelloch(const int *x, int *out, int *total)
{
    __shared__ int s[2 * THREADS];
    int t = threadIdx.x, step = 1;
    s[2 * t] = x[2 * t];
    s[2 * t + 1] = x[2 * t + 1];
    for (int active = THREADS; active; active /= 2, step *= 2) {
        __syncthreads();
        if (t < active) s[step * (2 * t + 2) - 1] += s[step * (2 * t + 1) - 1];
    }
    __syncthreads();
    if (t == 0) {
        *total = s[2 * THREADS - 1];
        s[2 * THREADS - 1] = 0;
    }
    for (int active = 1; active <= THREADS; active *= 2) {
        step /= 2;
        __syncthreads();
        if (t < active) {
            int left = step * (2 * t + 1) - 1, right = step * (2 * t + 2) - 1, kept = s[left];
            s[left] = s[right];
            s[right] += kept;
        }
    }
    __syncthreads();
    out[2 * t] = s[2 * t];
    out[2 * t + 1] = s[2 * t + 1];
}

// The inclusive sum over a block, warp by warp; every thread must call it.
__device__ int scan_block(int v, int *total)
{
    __shared__ int sums[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(ALL, v, step);
        if (lane >= step) v += other;
    }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int sum = lane < warps ? sums[lane] : 0;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(ALL, sum, step);
            if (lane >= step) sum += other;
        }
        sums[lane] = sum;
    }
    __syncthreads();
    *total = sums[warps - 1];
    return v + (warp ? sums[warp - 1] : 0);
}

extern "C" __global__ void scan_warps(const int *x, int *out, int *totals, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, total;
    int sum = scan_block(i < n ? x[i] : 0, &total);
    if (i < n) out[i] = sum;
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

extern "C" __global__ void add_offsets(int *out, const int *scanned_totals, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && blockIdx.x) out[i] += scanned_totals[blockIdx.x - 1];
}

// One launch: a block publishes its total, then its prefix, and looks back until it meets a prefix. Blocks number
// themselves as they start, so that the one looked at has always started.
extern "C" __global__ void scan_look_back(const int *x, int *out, int n, unsigned *started,
                                          volatile unsigned long long *state)
{
    enum { TOTAL = 1, PREFIX = 2 };
    __shared__ int block, before;
    if (threadIdx.x == 0) block = (int)atomicAdd(started, 1);
    __syncthreads();
    int i = block * blockDim.x + threadIdx.x, total;
    int sum = scan_block(i < n ? x[i] : 0, &total);
    if (threadIdx.x == 0) {
        int found = 0;
        state[block] = (unsigned long long)(block ? TOTAL : PREFIX) << 32 | (unsigned)total;
        for (int at = block - 1; at >= 0; --at) {
            unsigned long long seen;
            do seen = state[at];
            while (seen == 0);
            found += (int)(unsigned)seen;
            if (seen >> 32 == PREFIX) break;
        }
        if (block) state[block] = (unsigned long long)PREFIX << 32 | (unsigned)(found + total);
        before = found;
    }
    __syncthreads();
    if (i < n) out[i] = before + sum;
}

// Sums that begin anew at every flag: pairs (flag, sum) are put together by an operation that is associative.
extern "C" __global__ void segmented_scan(const int *x, const int *begins, int *out)
{
    __shared__ int sums[THREADS], flags[THREADS];
    int t = threadIdx.x;
    sums[t] = x[t];
    flags[t] = begins[t];
    for (int step = 1; step < THREADS; step *= 2) {
        __syncthreads();
        int sum = sums[t], flag = flags[t];
        if (t >= step && !flag) {
            sum += sums[t - step];
            flag = flags[t - step];
        }
        __syncthreads();
        sums[t] = sum;
        flags[t] = flag;
    }
    out[t] = sums[t];
}

extern "C" __global__ void histogram(const unsigned char *x, int n, unsigned *counts)
{
    __shared__ unsigned local[256];
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) local[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x)
        if (local[bin]) atomicAdd(&counts[bin], local[bin]);
}
