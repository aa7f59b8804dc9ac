// The fast approximations of the hardware.

#define MAP_1(function)                                                                        \
    extern "C" __global__ void function##_of(const float *x, float *y, int n)                   \
    {                                                                                           \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
        if (i < n) y[i] = function(x[i]);                                                       \
    }
#define MAP_2(function)                                                                         \
    extern "C" __global__ void function##_of(const float *a, const float *b, float *y, int n)   \
    {                                                                                           \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
        if (i < n) y[i] = function(a[i], b[i]);                                                 \
    }

MAP_1(__sinf) MAP_1(__cosf) MAP_1(__tanf)
MAP_1(__expf) MAP_1(__exp10f)
MAP_1(__logf) MAP_1(__log2f) MAP_1(__log10f)
MAP_1(__frsqrt_rn) MAP_1(__frcp_rn)
MAP_2(__fdividef) MAP_2(__powf)

extern "C" __global__ void ordinary(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], *mine = y + 6 * i;
    mine[0] = sinf(v);
    mine[1] = cosf(v);
    mine[2] = expf(v);
    mine[3] = logf(v);
    mine[4] = v / 3.3f;
    mine[5] = sqrtf(v);
}
