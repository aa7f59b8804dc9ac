// The same through the types of CUDA's headers, for both kinds of 16-bit floats.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

#if __CUDA_ARCH__ < 800
// The headers have these from compute capability 8.0 on. The product and the sum are exact in a double.
__device__ __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c)
{
    return __double2bfloat16((double)(float)a * (float)b + (float)c);
}
__device__ __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
    return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
#endif

template <typename H>
struct Pair;
template <>
struct Pair<__half> { typedef __half2 type; };
template <>
struct Pair<__nv_bfloat16> { typedef __nv_bfloat162 type; };

template <typename H>
__device__ H from_float(float x) { return H(x); }

template <typename H>
__global__ void arithmetic(const float *x, const float *y, const float *z, H *out)
{
    int i = position();
    H a = from_float<H>(x[i]), b = from_float<H>(y[i]), c = from_float<H>(z[i]), *mine = out + 8 * i;
    mine[0] = a;
    mine[1] = __hadd(a, b);
    mine[2] = a * b;
    mine[3] = __hfma(a, b, c);
    mine[4] = __hdiv(a, b);
    mine[5] = hsqrt(__habs(a));
    mine[6] = -a - b;
    mine[7] = __hmax(a, __hmin(b, c));
}

template <typename H>
__global__ void comparisons(const float *x, const float *y, int *out)
{
    int i = position();
    H a = from_float<H>(x[i]), b = from_float<H>(y[i]);
    out[i] = __heq(a, b) | __hne(a, b) << 1 | (a < b) << 2 | (a <= b) << 3 | __hgt(a, b) << 4 | __hge(a, b) << 5 |
             __hisnan(a) << 6 | (__hisinf(b) != 0) << 7;
}

template <typename H>
__global__ void pairs(const float4 *x, typename Pair<H>::type *out, int *equal)
{
    typedef typename Pair<H>::type H2;
    int i = position();
    H2 a = H2(from_float<H>(x[i].x), from_float<H>(x[i].y)), b = H2(from_float<H>(x[i].z), from_float<H>(x[i].w));
    H2 *mine = out + 5 * i;
    mine[0] = __hadd2(a, b);
    mine[1] = __hfma2(a, b, a);
    mine[2] = __hmax2(a, b);
    mine[3] = __hlt2(a, b);
    mine[4] = __lowhigh2highlow(a);
    equal[i] = __hbeq2(a, a) | __hbeq2(a, b) << 1 | __hbge2(a, a) << 2;
}

// What headers offer beyond arithmetic, to the precision of the type.
template <typename H>
__global__ void functions(const float *x, H *out)
{
    int i = position();
    H a = from_float<H>(x[i]), *mine = out + 6 * i;
    mine[0] = hexp(a);
    mine[1] = hlog(a);
    mine[2] = hsin(a);
    mine[3] = hrsqrt(a);
    mine[4] = hfloor(a);
    mine[5] = hexp2(a);
}

template <typename H>
__global__ void integers(const float *x, const int *n, int *whole, H *halves)
{
    int i = position();
    H a = from_float<H>(x[i]);
    whole[2 * i] = (int)a;
    whole[2 * i + 1] = (int)(short)a;
    halves[2 * i] = H(n[i]);
    halves[2 * i + 1] = H((float)(n[i] % 100)) + H(1);
}

// A product of small matrices: 16-bit factors, sums in float.
template <typename H>
__global__ void product(const H *a, const H *b, float *c, int n)
{
    int row = threadIdx.y, column = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += (float)a[row * n + k] * (float)b[k * n + column];
    c[row * n + column] = sum;
}

template <typename H>
__global__ void atomic_sums(const H *x, H *sum, typename Pair<H>::type *pair)
{
    int i = position();
    atomicAdd(sum, x[i]);
    atomicAdd(pair, typename Pair<H>::type(x[i], x[i ^ 1]));
    H other = __shfl_xor_sync(0xffffffffu, x[i], 1);
    if (other != x[i ^ 1]) atomicAdd(sum, H(100));
}
