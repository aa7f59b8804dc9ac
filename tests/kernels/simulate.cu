// Physics, finance, signals and chance.

typedef unsigned int u32;
typedef unsigned long long u64;

#define PI 3.14159265358979f

// Compiled without contraction, so that each operation rounds by itself and the counts can be compared exactly.
extern "C" __global__ void mandelbrot(int *counts, int width, int height, int limit)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float re = -2.0f + 2.75f * x / width, im = -1.25f + 2.5f * y / height, a = 0, b = 0;
    int count = 0;
    while (count < limit && a * a + b * b < 4.0f) {
        float next = a * a - b * b + re;
        b = 2.0f * a * b + im;
        a = next;
        ++count;
    }
    counts[y * width + x] = count;
}

// Forces between all pairs of bodies, a tile of them in shared memory at a time; w is the mass.
extern "C" __global__ void gravity(const float4 *bodies, float4 *forces, int n)
{
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = bodies[min(i, n - 1)];
    float3 sum = make_float3(0, 0, 0);
    for (int first = 0; first < n; first += 64) {
        tile[threadIdx.x] = first + threadIdx.x < n ? bodies[first + threadIdx.x] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int k = 0; k < 64; ++k) {
            float4 other = tile[k];
            float x = other.x - me.x, y = other.y - me.y, z = other.z - me.z;
            float near = rsqrtf(x * x + y * y + z * z + 0.01f), pull = other.w * near * near * near;
            sum.x += x * pull;
            sum.y += y * pull;
            sum.z += z * pull;
        }
        __syncthreads();
    }
    if (i < n) forces[i] = make_float4(sum.x, sum.y, sum.z, 0);
}

// A pendulum by the leapfrog method, in double precision; a thread for each starting angle.
extern "C" __global__ void pendulum(const double *angles, double2 *ends, int steps, double step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double angle = angles[i], speed = 0;
    for (int k = 0; k < steps; ++k) {
        speed -= 0.5 * step * sin(angle);
        angle += step * speed;
        speed -= 0.5 * step * sin(angle);
    }
    ends[i] = make_double2(angle, speed);
}

__device__ float normal_distribution(float x) { return 0.5f * erfcf(-0.70710678118654752f * x); }

extern "C" __global__ void black_scholes(const float *price, const float *strike, const float *years, float rate,
                                         float volatility, float *call, float *put, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float spread = volatility * sqrtf(years[i]);
    float d1 = (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) / spread;
    float d2 = d1 - spread, later = strike[i] * expf(-rate * years[i]);
    call[i] = price[i] * normal_distribution(d1) - later * normal_distribution(d2);
    put[i] = later * normal_distribution(-d2) - price[i] * normal_distribution(-d1);
}

__device__ u64 splitmix(u64 *state)
{
    u64 z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// Marsaglia's generator, seeded from the thread's number.
extern "C" __global__ void xorshift(u64 *out, int draws)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u64 seed = i, x = splitmix(&seed);
    for (int k = 0; k < draws; ++k) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    out[i] = x;
}

__device__ uint4 philox_4x32_10(uint4 counter, uint2 key)
{
    for (int round = 0; round < 10; ++round) {
        u32 high0 = __umulhi(0xd2511f53u, counter.x), low0 = 0xd2511f53u * counter.x;
        u32 high1 = __umulhi(0xcd9e8d57u, counter.z), low1 = 0xcd9e8d57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}

extern "C" __global__ void philox(uint4 *out, u64 seed, u64 offset)
{
    u64 at = offset + blockIdx.x * blockDim.x + threadIdx.x;
    uint4 counter = make_uint4((u32)at, (u32)(at >> 32), 7, 0);
    out[blockIdx.x * blockDim.x + threadIdx.x] = philox_4x32_10(counter, make_uint2((u32)seed, (u32)(seed >> 32)));
}

// Points in the unit square that fall into the circle: the count is exact, since every coordinate is a 16-bit integer.
extern "C" __global__ void monte_carlo_pi(u64 *inside, int points)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, mine = 0;
    for (int k = 0; k < points; ++k) {
        uint4 r = philox_4x32_10(make_uint4(i, k, 0, 0), make_uint2(42, 43));
        u64 x = r.x >> 16, y = r.y >> 16;
        mine += x * x + y * y < 1ull << 32;
    }
    for (int step = 16; step; step /= 2) mine += __shfl_down_sync(0xffffffffu, mine, step);
    if (threadIdx.x % 32 == 0) atomicAdd(inside, (u64)mine);
}

__device__ float2 times(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

extern "C" __global__ void complex_product(const float2 *a, const float2 *b, float2 *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = times(a[i], times(b[i], make_float2(0, 1)));
}

// A transform of 256 points by a block of 128 threads, in shared memory; `sign` is -1 for forward.
extern "C" __global__ void fft_256(const float2 *in, float2 *out, float sign)
{
    __shared__ float2 s[256];
    int t = threadIdx.x;
    in += blockIdx.x * 256;
    out += blockIdx.x * 256;
    for (int i = t; i < 256; i += 128) s[__brev(i) >> 24] = in[i];
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int k = t % half, low = t / half * 2 * half + k;
        float sine, cosine;
        sincosf(sign * PI * k / half, &sine, &cosine);
        float2 a = s[low], b = times(s[low + half], make_float2(cosine, sine));
        s[low] = make_float2(a.x + b.x, a.y + b.y);
        s[low + half] = make_float2(a.x - b.x, a.y - b.y);
    }
    __syncthreads();
    for (int i = t; i < 256; i += 128) out[i] = s[i];
}
