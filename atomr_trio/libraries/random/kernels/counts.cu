// Numbers of events.
//
// The probabilities of single numbers are those of Loader, "Fast and accurate computation of binomial probabilities",
// 2000: nothing large cancels in them, however large the numbers are.

#define INLINE __device__ __forceinline__

#define TWO_PI 0x1.921fb54442d18p2

// These are seldom needed, and so not a part of every place that needs them.

// ln k! less Stirling's formula for it.
__device__ __noinline__ double stirling_error(double k)
{
    const double errors[16] = {
        0.0, 0.08106146679532726, 0.0413406959554093, 0.02767792568499834, 0.020790672103765093, 0.016644691189821193,
        0.013876128823070748, 0.01189670994589177, 0.010411265261972096, 0.009255462182712733, 0.00833056343336287,
        0.007573675487951841, 0.00694284010720953, 0.006408994188004207, 0.0059513701127588475, 0.005554733551962801};
    if (k < 16.0) return errors[(int)k];
    double inverse = 1.0 / k, square = inverse * inverse;
    return inverse * fma(square, fma(square, fma(square, -1.0 / 1680.0, 1.0 / 1260.0), -1.0 / 360.0), 1.0 / 12.0);
}

// x ln(x / mean) + mean - x, where `more` is x - mean.
__device__ __noinline__ double deviance(double x, double mean, double more)
{
    double v = more / (x + mean);
    if (!(fabs(v) < 0.1)) return x * log(x / mean) - more;
    double sum = more * v, part = 2.0 * x * v, square = v * v;
    for (int k = 3; k < 40; k += 2) {
        part *= square;
        double next = sum + part / k;
        if (next == sum) break;
        sum = next;
    }
    return sum;
}

// Below 10, the sums of the probabilities are compared with a uniform number. From 10 on: Hoermann, "The transformed
// rejection method for generating Poisson random variables", 1993, PTRS.
struct Poisson {
    double lam, start, whole, part, a, b, v, alpha;

    INLINE explicit Poisson(double lam) : lam(lam)
    {
        start = exp(-lam);
        whole = floor(lam);
        part = lam - whole;
        b = 0.931 + 2.53 * sqrt(lam);
        a = -0.059 + 0.02483 * b;
        v = 0.9277 - 3.6224 / (b - 2.0);
        alpha = 1.1239 + 1.1328 / (b - 3.4);
    }

    INLINE i64 draw(u64 key, u64 element) const
    {
        if (lam < 10.0) {
            Words words = block(key, element, 0, POISSON);
            double u = unit(words.x, words.y), chance = start;
            int k = 0;
            while (u > chance && k < 128) {
                u -= chance;
                chance *= lam / ++k;
            }
            return k;
        }
        for (u32 attempt = 0;; ++attempt) {
            Words words = block(key, element, attempt, POISSON);
            double u = unit(words.x, words.y) - 0.5, w = unit(words.z, words.w), near = 0.5 - fabs(u);
            double y = floor((2.0 * a / near + b) * u + part + 0.43);
            if (!(y >= -whole && y + whole < 0x1p63)) continue;
            if (near >= 0.07 && w <= v) return (i64)whole + (i64)y;
            if (near < 0.013 && w > near) continue;
            double k = whole + y;
            double chance = -lam;
            if (k > 0.0) chance = -stirling_error(k) - deviance(k, lam, y - part) - 0.5 * log(TWO_PI * k);
            if (log(w * alpha / (a / (near * near) + b)) <= chance) return (i64)whole + (i64)y;
        }
    }
};

extern "C" __global__ void philox_poisson(void *out, u64 count, u64 key, u64 position, u32 bytes, double lam)
{
    Poisson poisson(lam);
    for (u64 at = first(); at < count; at += step())
        put_whole(out, at, (u64)poisson.draw(key, position + at), bytes);
}

// Below a mean of 10, the sums of the probabilities are compared with a uniform number. From 10 on: Hoermann, "The
// generation of binomial random variates", 1993, BTRS.
struct Binomial {
    i64 n;
    double count, p, q, mean, whole, part, a, b, v, alpha, most;
    bool turned;

    INLINE Binomial(i64 n, double chance) : n(n), count((double)n)
    {
        turned = chance > 0.5;
        p = turned ? 1.0 - chance : chance;
        q = 1.0 - p;
        mean = count * p;
        if (mean < 10.0) {
            most = exp(count * log1p(-p));
            return;
        }
        double deviation = sqrt(mean * q);
        whole = floor(mean);
        part = mean - whole;
        b = 1.15 + 2.53 * deviation;
        a = -0.0873 + 0.0248 * b + 0.01 * p;
        v = 0.92 - 4.2 / b;
        alpha = (2.83 + 5.1 / b) * deviation;
        most = logarithm(floor(part + p));
    }

    // The logarithm of the probability of `whole` + y, but for what it has in common with all others.
    INLINE double logarithm(double y) const
    {
        double k = whole + y, others = count - k, more = y - part;
        if (k == 0.0) return count * log1p(-p) - stirling_error(count);
        if (others == 0.0) return count * log(p) - stirling_error(count);
        return -stirling_error(k) - stirling_error(others) - deviance(k, mean, more) -
               deviance(others, count - mean, -more) - 0.5 * log(TWO_PI * k * (others / count));
    }

    INLINE i64 draw(u64 key, u64 element, u32 category, u32 tag) const
    {
        i64 found = mean < 10.0 ? draw_few(key, element, category, tag) : draw_many(key, element, category, tag);
        return turned ? n - found : found;
    }

    INLINE i64 draw_few(u64 key, u64 element, u32 category, u32 tag) const
    {
        Words words = block(key, element, category << 8, tag);
        double u = unit(words.x, words.y), chance = most, odds = p / q;
        int k = 0;
        while (u > chance && k < n && k < 128) {
            u -= chance;
            chance *= (count - k) / (k + 1) * odds;
            ++k;
        }
        return k;
    }

    INLINE i64 draw_many(u64 key, u64 element, u32 category, u32 tag) const
    {
        for (u32 attempt = 0;; ++attempt) {
            Words words = block(key, element, category << 8 | (attempt & 0xFF), tag);
            double u = unit(words.x, words.y) - 0.5, w = unit(words.z, words.w), near = 0.5 - fabs(u);
            double y = floor((2.0 * a / near + b) * u + part + 0.5);
            if (!(y >= -whole && y <= count - whole)) continue;
            i64 k = (i64)whole + (i64)y;
            if (k > n) continue;
            if (near >= 0.07 && w <= v) return k;
            if (log(w * alpha / (a / (near * near) + b)) <= logarithm(y) - most) return k;
        }
    }
};

extern "C" __global__ void philox_binomial(void *out, u64 count, u64 key, u64 position, u32 bytes, i64 n, double p)
{
    Binomial binomial(n, p);
    for (u64 at = first(); at < count; at += step())
        put_whole(out, at, (u64)binomial.draw(key, position + at, 0, BINOMIAL), bytes);
}

// Each category has a binomial number of what those before it have left. The table has the probability of each among
// itself and those behind it.
extern "C" __global__ void philox_multinomial(
    void *out, u64 count, u64 key, u64 position, u32 bytes, const double *table, i64 n, u64 categories)
{
    for (u64 row = first(); row < count; row += step()) {
        i64 left = n;
        for (u64 category = 0; category < categories; ++category) {
            i64 found = left;
            if (left && category + 1 < categories)
                found = Binomial(left, table[category]).draw(key, position + row, (u32)category, MULTINOMIAL);
            put_whole(out, row * categories + category, (u64)found, bytes);
            left -= found;
        }
    }
}
