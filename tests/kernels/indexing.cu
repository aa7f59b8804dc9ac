// Where a thread is and how it reaches its data: grids of one to three dimensions, wide types, structs, local arrays.

typedef unsigned long long u64;

extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void plane(int *out, int width, int height)
{
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < height; y += gridDim.y * blockDim.y)
        for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < width; x += gridDim.x * blockDim.x)
            out[y * width + x] += (x ^ y) * 3 + 1;
}

extern "C" __global__ void volume(int *out, int3 size)
{
    for (int z = blockIdx.z * blockDim.z + threadIdx.z; z < size.z; z += gridDim.z * blockDim.z)
        for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < size.y; y += gridDim.y * blockDim.y)
            for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < size.x; x += gridDim.x * blockDim.x)
                out[(z * size.y + y) * size.x + x] += x + 100 * y + 10000 * z;
}

// Indices of a volume that no array could hold.
extern "C" __global__ void wide_index(u64 *out, unsigned width, unsigned height)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    u64 x = (u64)t * 65537u, y = (u64)t * 40503u, z = (u64)t << 20;
    out[t] = (z * height + y) * width + x;
}

// A signed 64-bit offset that leads backwards from the end of the array.
extern "C" __global__ void backwards(const int *x, int *y, long long n)
{
    const int *end = x + n;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = end[-1 - i];
}

extern "C" __global__ void gather(const float *__restrict__ table, const int *__restrict__ index,
                                  float *__restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __ldg(&table[__ldg(&index[i])]) + __ldcg(&table[index[n - 1 - i]]);
}

extern "C" __global__ void wide_loads(const float4 *x, float4 *y, const int2 *p, int2 *q, const double2 *d, double *s,
                                      const uchar4 *c, uchar4 *e)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = x[i];
    y[i] = make_float4(v.w, v.z + v.x, v.y, -v.x);
    q[i] = make_int2(p[i].y, p[i].x);
    s[i] = d[i].x - d[i].y;
    e[i] = make_uchar4(c[i].w, c[i].z, c[i].y + 1, c[i].x);
}

extern "C" __global__ void narrow_types(const signed char *a, const short *b, const bool *c, short *out, bool *flags)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = c[i] ? a[i] * b[i] : a[i] - b[i];
    flags[i] = (a[i] > 0) != c[i];
}

// Bytes at odd places, put together to words.
extern "C" __global__ void unaligned_words(const unsigned char *bytes, u64 *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u64 word = 0;
    for (int k = 0; k < 8; ++k) word |= (u64)bytes[i * 9 + 1 + k] << (8 * k);
    out[i] = word;
}

struct Settings
{
    char mode;
    double scale;
    short offset[3];
    struct { float low, high; } bounds;
};

extern "C" __global__ void struct_by_value(Settings s, const double *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i] * s.scale + s.offset[i % 3];
    if (s.mode == 'c') v = fmin(fmax(v, (double)s.bounds.low), (double)s.bounds.high);
    y[i] = (float)v;
}

struct Particle
{
    float position[3];
    float velocity[3];
    int hits;
    unsigned char alive;
};

extern "C" __global__ void array_of_structs(Particle *particles, int n, float step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || !particles[i].alive) return;
    Particle p = particles[i];
    for (int k = 0; k < 3; ++k) {
        p.position[k] = __fadd_rn(p.position[k], __fmul_rn(p.velocity[k], step));
        if (fabsf(p.position[k]) > 1.0f) {
            p.velocity[k] = -p.velocity[k];
            p.alive = ++p.hits < 2;
        }
    }
    particles[i] = p;
}

// An array in local memory, indexed by data: the decimal digits of a number, sorted by counting them.
extern "C" __global__ void local_array(const unsigned *in, unsigned *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned count[10] = {0};
    for (unsigned v = in[i]; v; v /= 10) ++count[v % 10];
    unsigned sorted = 0;
    for (int digit = 9; digit >= 0; --digit)
        while (count[digit]--) sorted = sorted * 10 + digit;
    out[i] = sorted;
}

// Threads leave before the barrier; those that stay see each other's values.
extern "C" __global__ void early_return(const int *x, int *out, int n)
{
    __shared__ int s[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = x[i];
    __syncthreads();
    int last = min((int)blockDim.x, n - (int)(blockIdx.x * blockDim.x)) - 1;
    out[i] = s[last - threadIdx.x];
}

extern "C" __global__ void two_shared_arrays(const float *x, float *sums, int *order, int n)
{
    extern __shared__ __align__(16) unsigned char raw[];
    float *values = (float *)raw;
    int *places = (int *)(values + n);
    int t = threadIdx.x;
    values[t] = x[blockIdx.x * n + t];
    __syncthreads();
    int place = 0;
    float sum = 0;
    for (int k = 0; k < n; ++k) {
        place += values[k] < values[t] || (values[k] == values[t] && k < t);
        sum += values[k];
    }
    places[place] = t;
    __syncthreads();
    order[blockIdx.x * n + t] = places[t];
    if (t == 0) sums[blockIdx.x] = sum;
}

// More shared memory than a kernel gets without asking.
extern "C" __global__ void much_shared_memory(const int *x, int *y, int n)
{
    extern __shared__ int big[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) big[(i * 7919) % n] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = big[i];
}

#if __CUDA_ARCH__ >= 800

// Copies into shared memory that go on while the threads do something else.
extern "C" __global__ void asynchronous_copies(const int4 *x, int *sums)
{
    __shared__ int4 tile[2][64];
    int t = threadIdx.x, sum = 0;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[0][t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + t));
    asm volatile("cp.async.commit_group;");
    for (int round = 0; round < 3; ++round) {
        unsigned other = (unsigned)__cvta_generic_to_shared(&tile[1 - round % 2][t]);
        const int4 *next = x + 64 * (round + 1) + t;
        if (round < 2) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(other), "l"(next));
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        int4 mirrored = tile[round % 2][63 - t];
        sum = sum * 3 + mirrored.x - mirrored.y + 2 * mirrored.z + mirrored.w;
        __syncthreads();
    }
    sums[t] = sum;
}

#endif

extern "C" __global__ void volatile_counter(volatile int *cell, int rounds)
{
    volatile int *mine = cell + blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < rounds; ++i) *mine = *mine + i;
}

extern "C" __global__ void clocks(long long *ticks, u64 *nanoseconds, int *sink)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u64 before, after;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before));
    long long start = clock64();
    int x = i;
    for (int k = 0; k < 50; ++k) x = x * 1103515245 + 12345;
    sink[i] = x;
    ticks[i] = clock64() - start;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(after));
    nanoseconds[i] = after - before;
}

extern "C" __global__ void identity(unsigned *out)
{
    unsigned lane, lower, warps;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
    asm volatile("mov.u32 %0, %%nctaid.y;" : "=r"(warps));
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned *mine = out + 4 * (block * blockDim.x * blockDim.y * blockDim.z + t);
    mine[0] = lane;
    mine[1] = __popc(lower);
    mine[2] = warps * 1000 + gridDim.z * 100 + warpSize;
    mine[3] = block;
}
