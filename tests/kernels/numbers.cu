// Whole numbers that are long, prime or many: what an exact result is worth most for.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Eratosthenes' sieve of the odd numbers, a bit each, in shared memory; a block looks after 2048 numbers.
extern "C" __global__ void sieve(u32 *primes, const int *small, int count)
{
    __shared__ u32 composite[32];
    int first = blockIdx.x * 2048;
    if (threadIdx.x < 32) composite[threadIdx.x] = first == 0 && threadIdx.x == 0;
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += blockDim.x) {
        int p = small[k], at = max(p * p, (first + p - 1) / p * p);
        if (at % 2 == 0) at += p;
        for (; at < first + 2048; at += 2 * p) atomicOr(&composite[(at - first) / 64], 1u << (at - first) / 2 % 32);
    }
    __syncthreads();
    if (threadIdx.x < 32) primes[blockIdx.x * 32 + threadIdx.x] = ~composite[threadIdx.x];
}

// Montgomery's product a * b / 2 ** 64 modulo an odd m.
__device__ u64 montgomery(u64 a, u64 b, u64 m, u64 inverse)
{
    u64 low = a * b, high = __umul64hi(a, b), q = low * inverse, carried = __umul64hi(q, m);
    return high >= carried ? high - carried : high - carried + m;
}

__device__ u64 inverse_of_odd(u64 m)
{
    u64 x = m;
    for (int k = 0; k < 6; ++k) x *= 2 - m * x;
    return x;
}

__device__ u64 power(u64 base, u64 exponent, u64 m)
{
    u64 inverse = inverse_of_odd(m), one = (0 - m) % m, x = one, factor = base % m;
    for (int k = 0; k < 64; ++k) {
        factor <<= 1;
        if (factor >= m) factor -= m;
    }
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) x = montgomery(x, factor, m, inverse);
        factor = montgomery(factor, factor, m, inverse);
    }
    return montgomery(x, 1, m, inverse);
}

// Moduli below 2 ** 63.
extern "C" __global__ void modular_power(const u64 *base, const u64 *exponent, const u64 *modulus, u64 *out)
{
    int i = position();
    out[i] = power(base[i], exponent[i], modulus[i]);
}

// Miller's and Rabin's test of odd numbers, with bases that leave no doubt below 2 ** 64.
extern "C" __global__ void miller_rabin(const u64 *numbers, int *prime)
{
    const int bases[12] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    u64 n = numbers[position()];
    int twos = __ffsll(n - 1) - 1;
    bool fine = true;
    for (int k = 0; k < 12 && fine; ++k) {
        if (n == bases[k]) break;
        u64 x = power(bases[k], n - 1 >> twos, n);
        bool witness = x != 1 && x != n - 1;
        for (int j = 1; j < twos && witness; ++j) witness = (x = power(x, 2, n)) != n - 1;
        fine = !witness;
    }
    prime[position()] = fine;
}

// Numbers of 256 bits: the product of 512, by columns with a carry of three words.
extern "C" __global__ void long_product(const u64 *a, const u64 *b, u64 *out)
{
    a += 4 * position(), b += 4 * position(), out += 8 * position();
    u64 low = 0, middle = 0, high = 0;
    for (int column = 0; column < 8; ++column) {
        for (int j = max(0, column - 3); j <= min(3, column); ++j) {
            u64 x = a[j], y = b[column - j], below = x * y, above = __umul64hi(x, y);
            low += below;
            above += low < below;
            middle += above;
            high += middle < above;
        }
        out[column] = low;
        low = middle, middle = high, high = 0;
    }
}

// Decimal digits of a number of 128 bits, the last first, by long division in words of 32 bits.
extern "C" __global__ void decimal_digits(const uint4 *numbers, char *digits)
{
    uint4 n = numbers[position()];
    u32 w[4] = {n.x, n.y, n.z, n.w};
    for (int k = 0; k < 40; ++k) {
        u64 rest = 0;
        for (int j = 3; j >= 0; --j) {
            rest = rest << 32 | w[j];
            w[j] = (u32)(rest / 10);
            rest %= 10;
        }
        digits[40 * position() + k] = '0' + (int)rest;
    }
}

// Steps of Collatz's sequence down to 1: every lane has its own number of rounds.
extern "C" __global__ void collatz(int *steps)
{
    u64 n = position() + 1;
    int count = 0;
    for (; n != 1; ++count) n = n % 2 ? 3 * n + 1 : n / 2;
    steps[position()] = count;
}

// Ways to place queens on a board: a thread has the first two rows and searches the rest with a stack of bits.
extern "C" __global__ void queens(int n, u32 *ways)
{
    int first = threadIdx.x / n, second = threadIdx.x % n;
    if (first >= n || abs(first - second) < 2) return;
    u32 all = (1u << n) - 1, columns[16], left[16], right[16], open[16], count = 0;
    u32 a = 1u << first, b = 1u << second;
    columns[2] = a | b;
    left[2] = (a << 1 | b) << 1;
    right[2] = (a >> 1 | b) >> 1;
    open[2] = all & ~(columns[2] | left[2] | right[2]);
    for (int row = 2; row >= 2;) {
        u32 place = open[row] & -open[row];
        open[row] ^= place;
        if (!place) {
            --row;
        } else if (row == n - 1) {
            ++count;
        } else {
            columns[row + 1] = columns[row] | place;
            left[row + 1] = (left[row] | place) << 1;
            right[row + 1] = (right[row] | place) >> 1;
            ++row;
            open[row] = all & ~(columns[row] | left[row] | right[row]);
        }
    }
    atomicAdd(ways, count);
}

#define P 998244353u

__device__ u32 times(u32 a, u32 b) { return (u64)a * b % P; }

// The transform over the integers modulo a prime: 128 threads, 256 numbers; `root` has the order 256.
extern "C" __global__ void number_transform(const u32 *in, u32 *out, u32 root)
{
    __shared__ u32 s[256], powers[128];
    int t = threadIdx.x;
    in += 256 * blockIdx.x, out += 256 * blockIdx.x;
    for (int i = t; i < 256; i += 128) s[__brev(i) >> 24] = in[i];
    u32 x = 1, factor = root;
    for (int k = t; k; k >>= 1, factor = times(factor, factor)) x = k & 1 ? times(x, factor) : x;
    powers[t] = x;
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int k = t % half, low = t / half * 2 * half + k;
        u32 a = s[low], b = times(s[low + half], powers[k * (128 / half)]);
        s[low] = (a + b) % P;
        s[low + half] = (a + P - b) % P;
    }
    __syncthreads();
    for (int i = t; i < 256; i += 128) out[i] = s[i];
}

// The most value that fits into each weight: one row of the table is in shared memory and is written in place.
extern "C" __global__ void knapsack(const int *weights, const int *values, int items, int *best)
{
    __shared__ int row[256];
    int t = threadIdx.x;
    row[t] = 0;
    for (int k = 0; k < items; ++k) {
        __syncthreads();
        int with = t >= weights[k] ? row[t - weights[k]] + values[k] : 0;
        __syncthreads();
        row[t] = max(row[t], with);
    }
    best[t] = row[t];
}

// The permutation with a given number, in the order of a dictionary.
extern "C" __global__ void permutations(int *out)
{
    int rest = position(), places[6];
    for (int k = 5, base = 1; k >= 0; rest /= base, base += 1, --k) places[k] = base == 1 ? 0 : rest % base;
    u32 unused = 0x543210;
    for (int k = 0; k < 6; ++k) {
        int at = 4 * places[k];
        out[6 * position() + k] = unused >> at & 15;
        unused = unused & ((1u << at) - 1) | unused >> at + 4 << at;
    }
}

// A sum of doubles that loses nothing for long: the errors of all additions are summed beside it.
extern "C" __global__ void compensated_sum(const double *x, int n, double *out)
{
    const double *mine = x + position() * n;
    double sum = 0, errors = 0;
    for (int k = 0; k < n; ++k) {
        double next = sum + mine[k], part = next - sum;
        errors += (sum - (next - part)) + (mine[k] - part);
        sum = next;
    }
    out[position()] = sum + errors;
}

// Every occurrence of a word, by the table of Knuth, Morris and Pratt; threads look at stretches that overlap.
extern "C" __global__ void find_word(const char *text, int n, const char *word, int m, int each, int *found)
{
    __shared__ int longest[32];
    if (threadIdx.x == 0) {
        longest[0] = 0;
        for (int k = 1, match = 0; k < m; ++k) {
            while (match && word[k] != word[match]) match = longest[match - 1];
            longest[k] = match += word[k] == word[match];
        }
    }
    __syncthreads();
    int first = position() * each, end = min(first + each + m - 1, n);
    for (int at = first, match = 0; at < end; ++at) {
        while (match && (match == m || text[at] != word[match])) match = longest[match - 1];
        match += text[at] == word[match];
        if (match == m) found[at - m + 1] = 1;
    }
}
