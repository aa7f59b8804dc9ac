// What ordinary CUDA C++ is made of, one feature a kernel. Only what the compiler makes of it is looked at.

#define KERNEL extern "C" __global__ void
#define I (blockIdx.x * blockDim.x + threadIdx.x)

typedef unsigned int u32;
typedef unsigned long long u64;

// Numbers

KERNEL narrow_integers(signed char *a, unsigned char *b, short *c, unsigned short *d)
{
    a[I] = a[I] * b[I] + c[I] / (d[I] | 1);
    b[I] = (b[I] >> 3) - (c[I] % 7);
    c[I] = -c[I] ^ d[I];
    d[I] = min(d[I], b[I]) << 2;
}

KERNEL wide_integers(long long *a, u64 *b)
{
    a[I] = a[I] * 12345 / ((long long)b[I] | 1) % 1000003;
    b[I] = (b[I] >> (a[I] & 63)) + max(b[I], 17ull) % (b[I] | 1);
}

KERNEL division(int *a, u32 *b) { a[I] = a[I] / 7 + a[I] % 10 + a[I] / (int)(b[I] | 1); b[I] = b[I] / 3 + b[I] % 1000; }

KERNEL rotations(u32 *a, u64 *b)
{
    a[I] = a[I] << 7 | a[I] >> 25;
    a[I] += __funnelshift_l(a[I], a[I + 1], 5) + __funnelshift_rc(a[I], a[I + 1], a[I + 2]);
    b[I] = b[I] >> 40 | b[I] << 24;
}

KERNEL bit_counts(u32 *a, u64 *b)
{
    a[I] = __popc(a[I]) + __clz(a[I]) + __ffs(a[I]) + __brev(a[I]) + __fns(a[I], 0, 3);
    b[I] = __popcll(b[I]) + __clzll(b[I]) + __ffsll(b[I]) + __brevll(b[I]);
}

KERNEL high_products(int *a, u32 *b, u64 *c, long long *d)
{
    a[I] = __mulhi(a[I], a[I + 1]) + __mul24(a[I], 99) + __hadd(a[I], a[I + 2]) + __sad(a[I], 5, 7);
    b[I] = __umulhi(b[I], b[I + 1]) + __umul24(b[I], 99) + __urhadd(b[I], 3);
    c[I] = __umul64hi(c[I], c[I + 1]) + (u64)b[I] * b[I + 1];
    d[I] = __mul64hi(d[I], d[I + 1]) + (long long)a[I] * a[I + 1];
}

KERNEL bytes_of_words(u32 *a, int *b)
{
    a[I] = __byte_perm(a[I], a[I + 1], 0x3210) + __vadd4(a[I], 5) + __vabsdiffu4(a[I], 9) + __vcmpgtu2(a[I], 7);
    b[I] = __dp4a(b[I], b[I + 1], b[I + 2]) + __dp2a_lo(b[I], b[I + 1], 3) + __dp2a_hi(b[I], b[I + 1], 3);
}

KERNEL bit_fields(int *a)
{
    struct Fields { int low : 5; unsigned middle : 11; int high : 16; };
    union { int whole; Fields parts; } u;
    u.whole = a[I];
    u.parts.middle += u.parts.low;
    u.parts.high *= 3;
    a[I] = u.whole;
}

KERNEL long_sums(u32 *a)
{
    asm("add.cc.u32 %0, %0, %2;\n\taddc.cc.u32 %1, %1, %3;\n\taddc.u32 %0, %0, 0;"
        : "+r"(a[I]), "+r"(a[I + 1]) : "r"(a[I + 2]), "r"(a[I + 3]));
}

KERNEL longest_integers(__int128 *a) { a[I] = a[I] * a[I + 1] / (a[I + 2] | 1) + (a[I] >> 5); }

KERNEL floats(float *x) { x[I] = (x[I] + 1) * x[I + 1] / (x[I] - 3) + fmaf(x[I], x[I], 2) + sqrtf(fabsf(x[I])); }

KERNEL doubles(double *x) { x[I] = (x[I] + 1) * x[I + 1] / (x[I] - 3) + fma(x[I], x[I], 2) + sqrt(fabs(x[I])); }

KERNEL directed_rounding(float *x, double *y)
{
    x[I] = __fadd_rd(x[I], 1) + __fmul_ru(x[I], 3) + __fdiv_rz(x[I], 7) + __fsqrt_rd(x[I]) + __frcp_ru(x[I]) +
           __fmaf_rz(x[I], x[I], 1) + __frsqrt_rn(x[I]);
    y[I] = __dadd_ru(y[I], 1) + __dmul_rd(y[I], 3) + __ddiv_ru(y[I], 7) + __dsqrt_rz(y[I]) + __drcp_rd(y[I]) +
           __fma_ru(y[I], y[I], 1);
}

KERNEL rounded_to_integers(float *x, double *y)
{
    x[I] = floorf(x[I]) + ceilf(x[I]) + truncf(x[I]) + rintf(x[I]) + roundf(x[I]) + fmodf(x[I], 3) + remainderf(x[I], 5);
    y[I] = floor(y[I]) + ceil(y[I]) + trunc(y[I]) + rint(y[I]) + round(y[I]) + fmod(y[I], 3) + remainder(y[I], 5);
}

KERNEL conversions(float *x, double *y, int *a, long long *b, unsigned char *c, u64 *d)
{
    a[I] = (int)x[I] + (int)y[I] + (int)b[I] + __float2int_ru(x[I]) + __double2int_rd(y[I]) + __float_as_int(x[I]);
    b[I] = (long long)x[I] + (long long)y[I] + __double_as_longlong(y[I]) + __float2ll_rz(x[I]);
    c[I] = (unsigned char)x[I] + (unsigned char)a[I];
    d[I] = (u64)x[I] + (u64)y[I] + c[I];
    x[I] = (float)a[I] + (float)b[I] + (float)c[I] + (float)d[I] + (float)y[I] + __int_as_float(a[I]);
    y[I] = (double)a[I] + (double)b[I] + (double)x[I] + (double)d[I] + __hiloint2double(a[I], a[I + 1]) + __double2hiint(y[I]);
}

KERNEL kinds_of_floats(float *x, double *y, int *a)
{
    a[I] = isnan(x[I]) + isinf(y[I]) * 2 + signbit(x[I]) * 4 + isfinite(y[I]) * 8 + ilogbf(x[I]);
    x[I] = copysignf(fminf(x[I], 1), -2) + fmaxf(x[I], x[I + 1]) + fdimf(x[I], 3) + nextafterf(x[I], 9) + nanf("1");
    y[I] = copysign(fmin(y[I], 1.0), -2.0) + ldexp(y[I], 3) + frexp(y[I], a) + modf(y[I], y + 1) + scalbn(y[I], 2) + logb(y[I]);
}

KERNEL float_functions(float *x)
{
    float s, c;
    sincosf(x[I], &s, &c);
    x[I] = s + c + tanf(x[I]) + asinf(x[I]) + acosf(x[I]) + atanf(x[I]) + atan2f(x[I], 3) + sinhf(x[I]) + coshf(x[I]) +
           tanhf(x[I]) + asinhf(x[I]) + acoshf(x[I]) + atanhf(x[I]) + expf(x[I]) + exp2f(x[I]) + exp10f(x[I]) + expm1f(x[I]) +
           logf(x[I]) + log2f(x[I]) + log10f(x[I]) + log1pf(x[I]) + powf(x[I], 1.7f) + cbrtf(x[I]) + hypotf(x[I], 3) +
           rsqrtf(x[I]) + sinpif(x[I]) + cospif(x[I]) + rhypotf(x[I], 2) + norm3df(x[I], 1, 2);
}

KERNEL double_functions(double *x)
{
    double s, c;
    sincos(x[I], &s, &c);
    x[I] = s + c + tan(x[I]) + asin(x[I]) + acos(x[I]) + atan(x[I]) + atan2(x[I], 3) + sinh(x[I]) + cosh(x[I]) + tanh(x[I]) +
           exp(x[I]) + exp2(x[I]) + expm1(x[I]) + log(x[I]) + log2(x[I]) + log1p(x[I]) + pow(x[I], 1.7) + cbrt(x[I]) +
           hypot(x[I], 3) + rsqrt(x[I]) + sinpi(x[I]);
}

KERNEL special_functions(float *x, double *y)
{
    x[I] = erff(x[I]) + erfcf(x[I]) + erfinvf(x[I]) + tgammaf(x[I]) + lgammaf(x[I]) + j0f(x[I]) + y1f(x[I]) + normcdff(x[I]) +
           erfcxf(x[I]) + cyl_bessel_i0f(x[I]);
    y[I] = erf(y[I]) + erfc(y[I]) + tgamma(y[I]) + lgamma(y[I]) + j1(y[I]) + y0(y[I]) + normcdfinv(y[I]);
}

KERNEL fast_functions(float *x)
{
    x[I] = __sinf(x[I]) + __cosf(x[I]) + __tanf(x[I]) + __expf(x[I]) + __exp10f(x[I]) + __logf(x[I]) + __log2f(x[I]) +
           __powf(x[I], 3) + __fdividef(x[I], 7) + __saturatef(x[I]);
}

// The language

struct Pair { int a; double b; };
struct Big { float values[40]; int count; };
struct alignas(16) Quad { float x, y, z, w; };

KERNEL structures_by_value(Pair given, Big big, Pair *out)
{
    Pair mine = given;
    mine.a += big.count;
    for (int k = 0; k < big.count; ++k) mine.b += big.values[k];
    out[I] = mine;
}

KERNEL constant_parameters(const __grid_constant__ Big big, float *out) { out[I] = big.values[I % 40] + big.count; }

KERNEL vectors(float4 *x, int2 *a, uchar4 *b, double2 *y, Quad *q)
{
    float4 v = x[I];
    x[I] = make_float4(v.y, v.z, v.w, v.x);
    a[I] = make_int2(a[I].y, a[I].x);
    b[I] = make_uchar4(b[I].w, b[I].z, b[I].y, b[I].x);
    y[I] = make_double2(y[I].y, y[I].x);
    q[I] = q[I + 1];
}

KERNEL choices(int *a)
{
    switch (a[I]) {
    case 0: a[I] = 5; break;
    case 1: a[I] += 3;
    case 2: a[I] *= 7; break;
    case 3: return;
    case 4: a[I] ^= 9; break;
    case 5: a[I] -= a[I + 1]; break;
    case 100: a[I] = 1; break;
    default: a[I] = -a[I];
    }
    a[I] += a[I] > 3 ? a[I + 1] : a[I + 2];
}

KERNEL jumps(int *a, int n)
{
    int k = 0;
again:
    for (int j = 0; j < n; ++j) {
        if (a[j] == k) continue;
        if (a[j] > 100) goto done;
        a[j] += k;
    }
    if (++k < 9) goto again;
done:
    do a[I] += k; while (--k > 0 && a[I] < 5);
}

__device__ __noinline__ int ackermann(int m, int n)
{
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

KERNEL recursion(int *a) { a[I] = ackermann(2, a[I] & 3); }

__device__ __noinline__ int plus(int a, int b) { return a + b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
__device__ int (*const operations[])(int, int) = {plus, minus};

KERNEL function_pointers(int *a) { a[I] = operations[a[I] & 1](a[I], 3); }

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __device__ Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};
struct Disc : Shape {
    float radius;
    __device__ Disc(float radius) : radius(radius) {}
    __device__ float area() const override { return 3.14159f * radius * radius; }
};

KERNEL virtual_functions(float *x)
{
    Shape *shape = I % 2 ? static_cast<Shape *>(new Square(x[I])) : new Disc(x[I]);
    x[I] = shape->area();
    delete shape;
}

template <class F>
__device__ int applied(F function, int a) { return function(function(a)); }

KERNEL lambdas(int *a, int b) { a[I] = applied([=](int x) { return x * b + 1; }, a[I]); }

template <class... T>
__device__ auto total(T... values) { return (values + ... + 0); }

template <int N>
__device__ int unrolled(const int *a)
{
    if constexpr (N == 0) return 0;
    else return a[N] + unrolled<N - 1>(a);
}

KERNEL templates(int *a, float *x) { a[I] = unrolled<5>(a) + total(a[I], 2u, (short)3); x[I] = total(x[I], 1.5f, 2); }

KERNEL bindings(Pair *pairs, int *a)
{
    auto [first, second] = pairs[I];
    int values[] = {first, (int)second, 7};
    for (int value : values) a[I] += value;
}

__device__ int counted = 3, table[] = {1, 2, 3, 4, 5};
__constant__ float weights[16] = {0.5f, 0.25f};

KERNEL module_variables(int *a, float *x)
{
    static int visits;
    a[I] = atomicAdd(&visits, 1) + atomicAdd(&counted, 2) + table[a[I] & 3];
    x[I] = weights[I & 15] * weights[1];
}

KERNEL local_arrays(int *a)
{
    int own[32];
    for (int k = 0; k < 32; ++k) own[k] = a[k] * k;
    for (int k = 0; k < 32; ++k) own[a[k] & 31] += own[(a[k] >> 5) & 31];
    a[I] = own[a[I] & 31];
}

KERNEL texts(char *out, int *length)
{
    const char *text = I % 2 ? "odd" : "not odd at all";
    int k = 0;
    for (; text[k]; ++k) out[k] = text[k];
    length[I] = k;
}

KERNEL copies_of_memory(Big *a, const Big *b)
{
    memcpy(&a[I], &b[I], sizeof(Big));
    memset(a[I].values, 0, sizeof(float) * 17);
}

KERNEL hints(int *a, int n)
{
    __builtin_assume(n > 0);
    if (__builtin_expect(a[I] == 12345, 0)) __trap();
    if (n < 0) __builtin_unreachable();
    #pragma unroll 4
    for (int k = 0; k < n; ++k) a[k] += I;
}

KERNEL __launch_bounds__(128, 2) bounded(float *x) { x[I] *= 2; }

KERNEL volatile_memory(volatile int *a) { a[I] = a[I + 1]; a[I] = a[I + 1] + a[I]; }

// Memory

extern __shared__ int dynamic[];

KERNEL dynamic_shared_memory(int *a, int n)
{
    double *behind = (double *)(dynamic + 2 * n);
    dynamic[threadIdx.x] = a[I];
    behind[threadIdx.x] = a[I];
    __syncthreads();
    a[I] = dynamic[n - 1 - threadIdx.x] + (int)behind[0];
}

KERNEL shared_structures(int *a)
{
    __shared__ Pair pairs[64];
    __shared__ union { int words[64]; float numbers[64]; } either;
    pairs[threadIdx.x] = {a[I], 0.5};
    either.words[threadIdx.x] = a[I];
    __syncthreads();
    a[I] = pairs[63 - threadIdx.x].a + (int)either.numbers[threadIdx.x ^ 1];
}

KERNEL cached(const int *__restrict__ a, int *b)
{
    b[I] = __ldg(a + I) + __ldcs(a + I) + __ldca(a + I) + __ldcg(a + I) + __ldcv(a + I) + a[I];
    __stcs(b + I, 1);
    __stcg(b + I + 1, 2);
    __stwt(b + I + 2, 3);
}

KERNEL address_spaces(int *a)
{
    __shared__ int s;
    int l = a[I];
    int *either = a[I] > 5 ? &s : a[I] > 3 ? &l : a;
    s = 1;
    *either += 1;
    a[I] = __isGlobal(either) + __isShared(either) * 2 + __isLocal(either) * 4 + __isConstant(either) * 8 + l +
           (int)__cvta_generic_to_shared(&s) + (int)__cvta_generic_to_global(a);
}

KERNEL heap(int *a)
{
    int *mine = (int *)malloc(sizeof(int) * 8), *other = new int[4];
    if (!mine || !other) return;
    mine[I & 7] = a[I];
    other[I & 3] = mine[I & 7];
    a[I] = other[I & 3];
    free(mine);
    delete[] other;
}

KERNEL says(int a) { printf("%d %s %f\n", a, "text", 0.5 * a); }

KERNEL asserts(int *a) { assert(a[I] > 0); }

// Threads together

KERNEL atomics_of_words(int *a, u32 *b, u64 *c, long long *d)
{
    atomicAdd(a, 1); atomicSub(a, 2); atomicMin(a, 3); atomicMax(a, 4); atomicAnd(a, 5); atomicOr(a, 6); atomicXor(a, 7);
    a[I] = atomicExch(a, 8) + atomicCAS(a, 9, 10);
    b[I] = atomicInc(b, 9) + atomicDec(b, 9) + atomicMin(b, 4u);
    c[I] = atomicAdd(c, 1ull) + atomicCAS(c, 2ull, 3ull) + atomicExch(c, 4ull) + atomicMax(c, 5ull) + atomicXor(c, 6ull);
    d[I] = atomicMin(d, -1ll) + atomicMax(d, 2ll);
}

KERNEL atomics_of_floats(float *x, double *y) { x[I] = atomicAdd(x, 1) + atomicExch(x, 2); y[I] = atomicAdd(y, 1); atomicAdd(y, 2); }

KERNEL atomics_of_halves(unsigned short *a) { a[I] = atomicCAS(a, (unsigned short)1, (unsigned short)2); }

KERNEL atomics_of_scopes(int *a)
{
    __shared__ int s;
    a[I] = atomicAdd_system(a, 1) + atomicAdd_block(a, 2) + atomicCAS_system(a, 3, 4) + atomicMax_block(a, 5) + atomicAdd(&s, 1);
}

KERNEL shuffles(int *a, double *y, u64 *c)
{
    a[I] = __shfl_sync(~0u, a[I], 3) + __shfl_up_sync(~0u, a[I], 1, 16) + __shfl_down_sync(~0u, a[I], 2) +
           __shfl_xor_sync(~0u, a[I], 4, 8);
    y[I] = __shfl_down_sync(~0u, y[I], 1);
    c[I] = __shfl_xor_sync(~0u, c[I], 1);
}

KERNEL votes(int *a)
{
    a[I] = __ballot_sync(~0u, a[I] > 3) + __any_sync(~0u, a[I]) + __all_sync(~0u, a[I]) + __uni_sync(~0u, a[I]) + __activemask();
}

KERNEL matches(int *a, u64 *c)
{
    int same;
    a[I] = __match_any_sync(~0u, a[I]) + __match_all_sync(~0u, c[I], &same) + same;
}

KERNEL warp_reductions(int *a, u32 *b)
{
#if __CUDA_ARCH__ >= 800
    a[I] = __reduce_add_sync(~0u, a[I]) + __reduce_min_sync(~0u, a[I]) + __reduce_max_sync(~0u, a[I]);
    b[I] = __reduce_and_sync(~0u, b[I]) + __reduce_or_sync(~0u, b[I]) + __reduce_xor_sync(~0u, b[I]);
#endif
}

KERNEL barriers(int *a)
{
    __syncthreads();
    a[I] = __syncthreads_count(a[I]) + __syncthreads_and(a[I]) + __syncthreads_or(a[I]);
    __syncwarp();
    __syncwarp(0xff);
}

KERNEL fences(int *a)
{
    a[I] = 1;
    __threadfence_block();
    a[I + 1] = 2;
    __threadfence();
    a[I + 2] = 3;
    __threadfence_system();
}

KERNEL times(u64 *c)
{
    u64 timer;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(timer));
    __nanosleep(20);
    c[I] = clock64() + clock() + timer;
    __prof_trigger(1);
}

KERNEL places(u32 *b)
{
    u32 lane, warp, sm, below, grid;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    asm("mov.u32 %0, %%nsmid;" : "=r"(grid));
    b[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z) + blockIdx.y * gridDim.x + blockIdx.z * gridDim.y] =
        lane + warp + sm + below + grid + warpSize;
}

KERNEL spin_locks(int *lock, int *a)
{
    for (bool done = false; !done;) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *a += I;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

KERNEL named_barriers(int *a)
{
    if (threadIdx.x < 64) asm volatile("bar.arrive 1, 128;" ::: "memory");
    else asm volatile("bar.sync 1, 128;" ::: "memory");
    asm volatile("barrier.sync 0;" ::: "memory");
    a[I] = 1;
}

KERNEL copies_beside(const int4 *x, int4 *out)
{
#if __CUDA_ARCH__ >= 800
    __shared__ int4 s[64];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;"
                 ::"r"((u32)__cvta_generic_to_shared(&s[threadIdx.x])), "l"(x + I) : "memory");
    out[I] = s[threadIdx.x];
#endif
}

KERNEL ends_and_prefetches(int *a)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a + I));
    if (a[I] == 3) __brkpt();
    if (a[I] > 5) asm volatile("exit;");
    a[I] = 0;
}
