// Integers of every width: division, wide products, shifts, bits and bytes, carries, and what is built from them.

typedef signed char s8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <typename T>
__global__ void quotients(const T *a, const T *b, T *quotient, T *rest)
{
    int i = position();
    quotient[i] = a[i] / b[i];
    rest[i] = a[i] % b[i];
}

// Divisors that the compiler knows become products.
template <typename T>
__global__ void known_divisors(const T *a, T *out)
{
    int i = position();
    T v = a[i], *mine = out + 6 * i;
    mine[0] = v / 3;
    mine[1] = v % 7;
    mine[2] = v / 16;
    mine[3] = v % 32;
    mine[4] = v / 1000000007;
    mine[5] = v % 10;
}

extern "C" __global__ void wide_products(const u32 *a, const u32 *b, u64 *out)
{
    int i = position();
    u32 x = a[i], y = b[i];
    u64 *mine = out + 8 * i, wide = (u64)x << 32 | y, other = (u64)y << 32 | x;
    mine[0] = (u64)x * y;
    mine[1] = (u64)((s64)(int)x * (int)y);
    mine[2] = __umulhi(x, y);
    mine[3] = (u64)(s64)__mulhi((int)x, (int)y);
    mine[4] = __umul64hi(wide, other);
    mine[5] = (u64)__mul64hi((s64)wide, (s64)other);
    mine[6] = (u64)__umul24(x, y) << 32 | (u32)__mul24((int)x, (int)y);
    mine[7] = wide * other + (u64)x;
}

template <typename T>
__global__ void shifts(const T *a, const u32 *by, T *left, T *right)
{
    int i = position();
    const u32 bits = 8 * sizeof(T);
    left[i] = (T)(a[i] << by[i] % bits);
    right[i] = (T)(a[i] >> by[i] % bits);
}

// The instructions themselves clamp: from the width on, everything is shifted out.
extern "C" __global__ void shifts_beyond(const u32 *a, const u32 *by, u32 *out)
{
    int i = position();
    u32 *mine = out + 5 * i;
    asm("shl.b32 %0, %1, %2;" : "=r"(mine[0]) : "r"(a[i]), "r"(by[i]));
    asm("shr.u32 %0, %1, %2;" : "=r"(mine[1]) : "r"(a[i]), "r"(by[i]));
    asm("shr.s32 %0, %1, %2;" : "=r"(mine[2]) : "r"(a[i]), "r"(by[i]));
    mine[3] = __funnelshift_lc(a[i], ~a[i], by[i]);
    mine[4] = __funnelshift_rc(a[i], ~a[i], by[i]);
}

extern "C" __global__ void funnels(const u32 *low, const u32 *high, const u32 *by, u32 *out)
{
    int i = position();
    out[3 * i] = __funnelshift_l(low[i], high[i], by[i]);
    out[3 * i + 1] = __funnelshift_r(low[i], high[i], by[i]);
    out[3 * i + 2] = __funnelshift_l(low[i], low[i], 13);
}

extern "C" __global__ void bits(const u64 *a, int *out, u64 *turned)
{
    int i = position();
    u64 v = a[i];
    u32 w = (u32)v;
    int *mine = out + 8 * i;
    mine[0] = __popc(w);
    mine[1] = __popcll(v);
    mine[2] = __clz((int)w);
    mine[3] = __clzll((s64)v);
    mine[4] = __ffs((int)w);
    mine[5] = __ffsll((s64)v);
    mine[6] = (int)__brev(w);
    mine[7] = (int)__byte_perm(w, (u32)(v >> 32), 0x2715);
    turned[i] = __brevll(v);
}

extern "C" __global__ void bytes_in_words(const u32 *a, const u32 *b, const u32 *selector, u32 *out)
{
    int i = position();
    u32 x = a[i], y = b[i], *mine = out + 8 * i;
    mine[0] = __byte_perm(x, y, selector[i] & 0x7777);
    mine[1] = __vadd4(x, y);
    mine[2] = __vabsdiffu4(x, y);
    mine[3] = __vmaxs4(x, y);
    mine[4] = __vcmpgtu4(x, y);
    mine[5] = __vavgu2(x, y);
    mine[6] = __vsadu4(x, y);
    mine[7] = __dp4a(x, y, 77u) + (u32)__dp4a((int)x, (int)y, -5);
}

// Averages, differences, extremes and absolute values that do not overflow on the way.
extern "C" __global__ void careful(const int *a, const int *b, int *out)
{
    int i = position(), x = a[i], y = b[i], *mine = out + 8 * i;
    mine[0] = __hadd(x, y);
    mine[1] = __rhadd(x, y);
    mine[2] = (int)__uhadd((u32)x, (u32)y);
    mine[3] = (int)__sad(x, y, 10u);
    mine[4] = (int)__usad((u32)x, (u32)y, 10u);
    mine[5] = min(max(x, -1000), y & 0xffff);
    mine[6] = abs(x >> 1) - abs(y >> 1);
    asm("add.sat.s32 %0, %1, %2;" : "=r"(mine[7]) : "r"(x), "r"(y));
}

// Numbers of 128 bits: sums, differences and products with carries from word to word.
extern "C" __global__ void carries(const uint4 *a, const uint4 *b, uint4 *sum, uint4 *difference, uint4 *product)
{
    int i = position();
    uint4 x = a[i], y = b[i], s, d, p;
    asm("add.cc.u32 %0, %4, %8; addc.cc.u32 %1, %5, %9; addc.cc.u32 %2, %6, %10; addc.u32 %3, %7, %11;"
        : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w)
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w));
    asm("sub.cc.u32 %0, %4, %8; subc.cc.u32 %1, %5, %9; subc.cc.u32 %2, %6, %10; subc.u32 %3, %7, %11;"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w));
    // The lower halves multiplied: 64 by 64 bits.
    asm("{ .reg .u32 t;\n"
        "mul.lo.u32 %0, %4, %6; mul.hi.u32 %1, %4, %6;\n"
        "mad.lo.cc.u32 %1, %4, %7, %1; madc.hi.u32 %2, %4, %7, 0;\n"
        "mad.lo.cc.u32 %1, %5, %6, %1; madc.hi.cc.u32 %2, %5, %6, %2; addc.u32 t, 0, 0;\n"
        "mad.lo.cc.u32 %2, %5, %7, %2; madc.hi.u32 %3, %5, %7, t; }"
        : "=&r"(p.x), "=&r"(p.y), "=&r"(p.z), "=&r"(p.w)
        : "r"(x.x), "r"(x.y), "r"(y.x), "r"(y.y));
    sum[i] = s;
    difference[i] = d;
    product[i] = p;
}

extern "C" __global__ void bit_fields_by_instruction(const u32 *a, const u32 *b, const u32 *at, u32 *out)
{
    int i = position();
    u32 x = a[i], y = b[i], from = at[i] & 31, length = at[i] >> 8 & 31, *mine = out + 5 * i;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(mine[0]) : "r"(x), "r"(from), "r"(length));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(mine[1]) : "r"(x), "r"(from), "r"(length));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(mine[2]) : "r"(x), "r"(y), "r"(from), "r"(length));
    asm("bfind.u32 %0, %1;" : "=r"(mine[3]) : "r"(x));
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(mine[4]) : "r"(x), "r"(y), "r"(at[i]));
}

// Miller and Rabin's test, which is certain for 32 bits with these three bases.
extern "C" __global__ void is_prime(const u32 *numbers, bool *prime)
{
    const int bases[3] = {2, 7, 61};
    int i = position(), twos = 0;
    u32 n = numbers[i], odd = n - 1;
    prime[i] = n == 2 || n == 7 || n == 61;
    if (n < 2 || n % 2 == 0 || prime[i]) return;
    while (odd % 2 == 0) odd /= 2, ++twos;
    for (int k = 0; k < 3; ++k) {
        u64 power = 1, base = bases[k] % n;
        for (u32 e = odd; e; e >>= 1) {
            if (e & 1) power = power * base % n;
            base = base * base % n;
        }
        bool passes = power == 1 || power == n - 1;
        for (int step = 1; step < twos && !passes; ++step) {
            power = power * power % n;
            passes = power == n - 1;
        }
        if (!passes) return;
    }
    prime[i] = true;
}

extern "C" __global__ void greatest_common_divisor(const u32 *a, const u32 *b, u32 *out)
{
    int i = position();
    u32 x = a[i], y = b[i];
    while (y) {
        u32 rest = x % y;
        x = y;
        y = rest;
    }
    out[i] = x;
}

extern "C" __global__ void crc32(const u8 *data, int length, u32 *out)
{
    __shared__ u32 table[256];
    for (int n = threadIdx.x; n < 256; n += blockDim.x) {
        u32 value = n;
        for (int k = 0; k < 8; ++k) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
        table[n] = value;
    }
    __syncthreads();
    int i = position();
    u32 sum = ~0u;
    for (int k = 0; k < length; ++k) sum = sum >> 8 ^ table[(sum ^ data[i * length + k]) & 255];
    out[i] = ~sum;
}

__device__ u32 turned(u32 x, int by) { return __funnelshift_r(x, x, by); }

// The fractional parts of the roots of the primes are the input: 64 of cubes, 8 of squares. One block of the message
// for each thread, already padded.
extern "C" __global__ void sha256(const u32 *__restrict__ cubes, const u32 *__restrict__ squares, const u8 *messages,
                                  u32 *digests)
{
    int i = position();
    u32 w[64], state[8];
    for (int k = 0; k < 16; ++k) {
        const u8 *at = messages + 64 * i + 4 * k;
        w[k] = (u32)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
    }
    for (int k = 16; k < 64; ++k) {
        u32 a = w[k - 15], b = w[k - 2];
        w[k] = w[k - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3);
        w[k] += w[k - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    for (int k = 0; k < 8; ++k) state[k] = squares[k];
    for (int k = 0; k < 64; ++k) {
        u32 e = state[4], a = state[0];
        u32 first = state[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & state[5]) ^ (~e & state[6])) +
                    cubes[k] + w[k];
        u32 second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) +
                     ((a & state[1]) ^ (a & state[2]) ^ (state[1] & state[2]));
        for (int j = 7; j; --j) state[j] = state[j - 1];
        state[4] += first;
        state[0] = first + second;
    }
    for (int k = 0; k < 8; ++k) digests[8 * i + k] = state[k] + squares[k];
}
