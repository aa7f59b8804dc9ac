// Floats of eight bits: in both formats, one by one and in groups, and a product with scales.

#include <cuda_fp16.h>
#include <cuda_fp8.h>

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Down to eight bits, where what is too large becomes the largest number, and back.
template <typename F>
__global__ void there_and_back(const float *x, unsigned char *bits, float *back)
{
    int i = position();
    F small(x[i]);
    bits[i] = small.__x;
    back[i] = (float)small;
}

template <typename F4>
__global__ void four_at_once(const float4 *x, unsigned *bits, float4 *back)
{
    int i = position();
    F4 small(x[i]);
    bits[i] = small.__x;
    back[i] = (float4)small;
}

// Through half precision, which holds every number of both formats.
template <__nv_fp8_interpretation_t FORMAT>
__global__ void through_halves(const unsigned char *bits, __half *halves, unsigned char *back)
{
    int i = position();
    __half_raw half = __nv_cvt_fp8_to_halfraw(bits[i], FORMAT);
    halves[i] = half;
    back[i] = __nv_cvt_halfraw_to_fp8(half, __NV_SATFINITE, FORMAT);
}

// A product of small matrices, with a scale for every row and every column.
template <typename F>
__global__ void scaled_product(const F *a, const F *b, const float *scales, float *c, int n)
{
    int row = threadIdx.y, column = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += (float)a[row * n + k] * (float)b[column * n + k];
    c[row * blockDim.x + column] = sum * scales[row] * scales[column];
}
