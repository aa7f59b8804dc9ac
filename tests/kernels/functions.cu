// The mathematical functions, one kernel for each. REAL is float or double, and F adds the letter that floats have.

#define MAP_1(function)                                                                        \
    extern "C" __global__ void function##_of(const REAL *x, REAL *y, int n)                     \
    {                                                                                           \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
        if (i < n) y[i] = F(function)(x[i]);                                                    \
    }
#define MAP_2(function)                                                                         \
    extern "C" __global__ void function##_of(const REAL *a, const REAL *b, REAL *y, int n)      \
    {                                                                                           \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
        if (i < n) y[i] = F(function)(a[i], b[i]);                                              \
    }

MAP_1(sqrt) MAP_1(rsqrt) MAP_1(cbrt) MAP_1(rcbrt)
MAP_1(exp) MAP_1(exp2) MAP_1(exp10) MAP_1(expm1)
MAP_1(log) MAP_1(log2) MAP_1(log10) MAP_1(log1p)
MAP_1(sin) MAP_1(cos) MAP_1(tan) MAP_1(sinpi) MAP_1(cospi)
MAP_1(asin) MAP_1(acos) MAP_1(atan)
MAP_1(sinh) MAP_1(cosh) MAP_1(tanh) MAP_1(asinh) MAP_1(acosh) MAP_1(atanh)
MAP_1(erf) MAP_1(erfc) MAP_1(tgamma) MAP_1(lgamma)
MAP_1(floor) MAP_1(ceil) MAP_1(trunc) MAP_1(round) MAP_1(rint) MAP_1(nearbyint) MAP_1(fabs) MAP_1(logb)
MAP_2(pow) MAP_2(atan2) MAP_2(hypot) MAP_2(fmod) MAP_2(remainder) MAP_2(fdim) MAP_2(fmin) MAP_2(fmax) MAP_2(copysign)
MAP_2(nextafter)

extern "C" __global__ void fused(const REAL *a, const REAL *b, const REAL *c, REAL *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = F(fma)(a[i], b[i], c[i]);
}

// Significand and exponent, whole and fractional part, powers of two.
extern "C" __global__ void taken_apart(const REAL *x, const int *powers, REAL *parts, int *exponents, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, exponent;
    if (i >= n) return;
    REAL whole, *mine = parts + 5 * i;
    mine[0] = F(frexp)(x[i], &exponent);
    mine[1] = F(modf)(x[i], &whole);
    mine[2] = whole;
    mine[3] = F(ldexp)(x[i], powers[i]);
    mine[4] = F(scalbn)(x[i], -powers[i]);
    exponents[2 * i] = exponent;
    exponents[2 * i + 1] = x[i] == 0 ? 0 : F(ilogb)(x[i]);
}

extern "C" __global__ void both_parts_of_quotients(const REAL *a, const REAL *b, REAL *rest, int *quotients, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rest[i] = F(remquo)(a[i], b[i], &quotients[i]);
}

extern "C" __global__ void classes(const REAL *x, const REAL *y, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    REAL a = x[i], b = y[i];
    out[i] = !!isnan(a) | !!isinf(a) << 1 | !!isfinite(a) << 2 | !!signbit(a) << 3 | (a < b) << 4 | (a <= b) << 5 |
             (a == b) << 6 | (a != b) << 7 | !(a > b) << 8 | !(a >= b) << 9;
}

extern "C" __global__ void sine_and_cosine(const REAL *x, REAL *sine, REAL *cosine, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) F(sincos)(x[i], &sine[i], &cosine[i]);
}
