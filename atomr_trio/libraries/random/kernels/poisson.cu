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
