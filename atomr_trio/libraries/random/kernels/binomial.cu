// Below a mean of 10, the sums of the probabilities are compared with a uniform number. From 10 on: Hoermann, "The
// generation of binomial random variates", 1993, BTRS. Half of its candidates are compared with their probability, as a
// part of the largest one. Where n and p are the same for all elements, each block makes a table of those about the mean.
const int TABLE = 1024;
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

    // Their number, up to 7 deviations about the mean.
    INLINE int table_size() const { return (int)fmin(fmin(count + 1.0, 14.0 * sqrt(mean * q) + 2.0), (double)TABLE); }
    INLINE double table_start() const
    {
        return fmin(fmax(whole - (double)(table_size() / 2), 0.0), count + 1.0 - (double)table_size());
    }

    INLINE i64 draw(u64 key, u64 element, u32 category, u32 tag, const double *table, double start, int size) const
    {
        i64 found = mean < 10.0 ? draw_few(key, element, category, tag)
                                : draw_many(key, element, category, tag, table, start, size);
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

    INLINE i64 draw_many(u64 key, u64 element, u32 category, u32 tag, const double *table, double start, int size) const
    {
        for (u32 attempt = 0;; ++attempt) {
            Words words = block(key, element, category << 8 | (attempt & 0xFF), tag);
            double u = unit(words.x, words.y) - 0.5, w = unit(words.z, words.w), near = 0.5 - fabs(u);
            double y = floor((2.0 * a / near + b) * u + part + 0.5);
            if (!(y >= -whole && y <= count - whole)) continue;
            i64 k = (i64)whole + (i64)y;
            if (k > n) continue;
            if (near >= 0.07 && w <= v) return k;
            double hat = a / (near * near) + b, place = whole + y - start;
            if (place >= 0.0 && place < (double)size) {
                if (w * alpha <= table[(int)place] * hat) return k;
            } else if (log(w * alpha / hat) <= logarithm(y) - most) {
                return k;
            }
        }
    }
};

extern "C" __global__ void philox_binomial(void *out, u64 count, u64 key, u64 position, u32 bytes, i64 n, double p)
{
    __shared__ double table[TABLE];
    Binomial binomial(n, p);
    int size = 0;
    double start = 0.0;
    if (binomial.mean >= 10.0) {
        size = binomial.table_size();
        start = binomial.table_start();
        for (int each = threadIdx.x; each < size; each += blockDim.x)
            table[each] = exp(binomial.logarithm(start + (double)each - binomial.whole) - binomial.most);
    }
    __syncthreads();
    for (u64 at = first(); at < count; at += step())
        put_whole(out, at, (u64)binomial.draw(key, position + at, 0, BINOMIAL, table, start, size), bytes);
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
                found = Binomial(left, table[category])
                            .draw(key, position + row, (u32)category, MULTINOMIAL, nullptr, 0.0, 0);
            put_whole(out, row * categories + category, (u64)found, bytes);
            left -= found;
        }
    }
}
