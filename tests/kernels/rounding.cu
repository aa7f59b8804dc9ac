// Every rounding there is: of sums and products, between floats, and between floats and integers.

typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

#define SINGLE(mode)                                                                                           \
    extern "C" __global__ void single_##mode(const float *a, const float *b, float *out)                       \
    {                                                                                                          \
        int i = position();                                                                                    \
        float x = a[i], y = b[i], *mine = out + 6 * i;                                                         \
        mine[0] = __fadd_##mode(x, y);                                                                         \
        mine[1] = __fsub_##mode(x, y);                                                                         \
        mine[2] = __fmul_##mode(x, y);                                                                         \
        mine[3] = __fdiv_##mode(x, y);                                                                         \
        mine[4] = __fmaf_##mode(x, y, x);                                                                      \
        mine[5] = __fsqrt_##mode(fabsf(x));                                                                    \
    }
SINGLE(rn) SINGLE(rz) SINGLE(ru) SINGLE(rd)

#define TWICE(mode)                                                                                            \
    extern "C" __global__ void double_##mode(const double *a, const double *b, double *out)                    \
    {                                                                                                          \
        int i = position();                                                                                    \
        double x = a[i], y = b[i], *mine = out + 6 * i;                                                        \
        mine[0] = __dadd_##mode(x, y);                                                                         \
        mine[1] = __dsub_##mode(x, y);                                                                         \
        mine[2] = __dmul_##mode(x, y);                                                                         \
        mine[3] = __ddiv_##mode(x, y);                                                                         \
        mine[4] = __fma_##mode(x, y, x);                                                                       \
        mine[5] = __dsqrt_##mode(fabs(x));                                                                     \
    }
TWICE(rn) TWICE(rz) TWICE(ru) TWICE(rd)

#define FROM_FLOAT(mode)                                                                                       \
    extern "C" __global__ void float_to_integer_##mode(const float *x, int *a, u32 *b, s64 *c, u64 *d)         \
    {                                                                                                          \
        int i = position();                                                                                    \
        a[i] = __float2int_##mode(x[i]);                                                                       \
        b[i] = __float2uint_##mode(x[i]);                                                                      \
        c[i] = __float2ll_##mode(x[i]);                                                                        \
        d[i] = __float2ull_##mode(x[i]);                                                                       \
    }
FROM_FLOAT(rn) FROM_FLOAT(rz) FROM_FLOAT(ru) FROM_FLOAT(rd)

#define FROM_DOUBLE(mode)                                                                                      \
    extern "C" __global__ void double_to_integer_##mode(const double *x, int *a, u32 *b, s64 *c, u64 *d)       \
    {                                                                                                          \
        int i = position();                                                                                    \
        a[i] = __double2int_##mode(x[i]);                                                                      \
        b[i] = __double2uint_##mode(x[i]);                                                                     \
        c[i] = __double2ll_##mode(x[i]);                                                                       \
        d[i] = __double2ull_##mode(x[i]);                                                                      \
    }
FROM_DOUBLE(rn) FROM_DOUBLE(rz) FROM_DOUBLE(ru) FROM_DOUBLE(rd)

#define NARROW(mode)                                                                                           \
    extern "C" __global__ void to_float_##mode(const int *a, const u32 *b, const s64 *c, const u64 *d,         \
                                               const double *e, float *out)                                    \
    {                                                                                                          \
        int i = position();                                                                                    \
        float *mine = out + 5 * i;                                                                             \
        mine[0] = __int2float_##mode(a[i]);                                                                    \
        mine[1] = __uint2float_##mode(b[i]);                                                                   \
        mine[2] = __ll2float_##mode(c[i]);                                                                     \
        mine[3] = __ull2float_##mode(d[i]);                                                                    \
        mine[4] = __double2float_##mode(e[i]);                                                                 \
    }                                                                                                          \
    extern "C" __global__ void to_double_##mode(const s64 *c, const u64 *d, double *out)                       \
    {                                                                                                          \
        int i = position();                                                                                    \
        out[2 * i] = __ll2double_##mode(c[i]);                                                                 \
        out[2 * i + 1] = __ull2double_##mode(d[i]);                                                            \
    }
NARROW(rn) NARROW(rz) NARROW(ru) NARROW(rd)

// From float to the narrow integers, by the instruction, which clamps; and to [0, 1].
extern "C" __global__ void saturating(const float *x, const int *n, int *out, float *unit)
{
    int i = position(), *mine = out + 4 * i;
    asm("{ .reg .b16 t; cvt.rzi.sat.s8.f32 t, %1; cvt.s32.s8 %0, t; }" : "=r"(mine[0]) : "f"(x[i]));
    asm("{ .reg .b16 t; cvt.rni.sat.u16.f32 t, %1; cvt.u32.u16 %0, t; }" : "=r"(mine[1]) : "f"(x[i]));
    asm("{ .reg .b16 t; cvt.sat.u8.s32 t, %1; cvt.u32.u8 %0, t; }" : "=r"(mine[2]) : "r"(n[i]));
    asm("{ .reg .b16 t; cvt.sat.s16.s32 t, %1; cvt.s32.s16 %0, t; }" : "=r"(mine[3]) : "r"(n[i]));
    unit[i] = __saturatef(x[i]);
}

extern "C" __global__ void arithmetic(const float *a, const float *b, float *out, int n)
{
    int i = position();
    if (i >= n) return;
    float *mine = out + 7 * i;
    mine[0] = a[i] + b[i];
    mine[1] = a[i] - b[i];
    mine[2] = a[i] * b[i];
    mine[3] = a[i] / b[i];
    mine[4] = 1 / b[i];
    mine[5] = sqrtf(a[i]);
    mine[6] = fabsf(a[i]) < fabsf(b[i]);
}

extern "C" __global__ void arithmetic_of_doubles(const double *a, const double *b, double *out, int n)
{
    int i = position();
    if (i >= n) return;
    double *mine = out + 7 * i;
    mine[0] = a[i] + b[i];
    mine[1] = a[i] - b[i];
    mine[2] = a[i] * b[i];
    mine[3] = a[i] / b[i];
    mine[4] = 1 / b[i];
    mine[5] = sqrt(a[i]);
    mine[6] = fabs(a[i]) < fabs(b[i]);
}
