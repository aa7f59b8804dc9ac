// Gamma variables and what is made of two of them.

// Box and Muller, 1958.
__device__ __forceinline__ double normal(u32 x, u32 y, u32 z)
{
    return sqrt(-2.0 * log(unit(x, y))) * cospi(2.0 * unit(z));
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. For a shape below 1, a variable of the
// shape above is multiplied with u^(1/shape), which may be too small for a number: so its logarithm is kept.
struct Gamma {
    double shape, d, c;

    __device__ __forceinline__ explicit Gamma(double shape) : shape(shape)
    {
        d = (shape < 1.0 ? shape + 1.0 : shape) - 1.0 / 3.0;
        c = 1.0 / sqrt(9.0 * d);
    }

    __device__ __forceinline__ double draw(u64 key, u64 element, u32 tag) const
    {
        for (u32 attempt = 0;; ++attempt) {
            Words words = block(key, element, attempt, tag);
            double x = normal(words.x, words.y, words.z), t = c * x, v = 1.0 + t;
            if (v <= 0.0) continue;
            v = v * v * v;
            double u = unit(words.w), square = x * x;
            if (u < 1.0 - 0.0331 * (square * square)) return d * v;
            // ln u < x^2 / 2 + d (1 - v + ln v), of which all but the powers of t from the fourth on cancels.
            double bound;
            if (fabs(t) < 0.01)
                bound = d * ((t * t) * (t * t)) * fma(t, fma(t, fma(t, fma(t, -0.375, 3.0 / 7.0), -0.5), 0.6), -0.75);
            else
                bound = 0.5 * square + d * (1.0 - v + log(v));
            if (log(u) < bound) return d * v;
        }
    }

    // The logarithm of u; of 1 for a shape from 1 on.
    __device__ __forceinline__ double draw_logarithm(u64 key, u64 element, u32 tag) const
    {
        if (shape >= 1.0) return 0.0;
        Words words = block(key, element, 0xFFFFFFFFu, tag);
        return log(unit(words.x, words.y));
    }
};

extern "C" __global__ void philox_gamma(
    void *out, u64 count, u64 key, u64 position, u32 bytes, double shape, double scale)
{
    Gamma gamma(shape);
    double log_scale = log(scale);
    for (u64 at = first(); at < count; at += step()) {
        u64 element = position + at;
        double x = 0.0;
        if (shape > 0.0) {
            x = gamma.draw(key, element, GAMMA);
            if (shape < 1.0) x = exp(log(x) + log_scale + gamma.draw_logarithm(key, element, GAMMA) / shape);
            else x *= scale;
        }
        put_real(out, at, x, bytes);
    }
}

// The first of two gamma variables over their sum.
extern "C" __global__ void philox_beta(void *out, u64 count, u64 key, u64 position, u32 bytes, double a, double b)
{
    Gamma one(a), other(b);
    for (u64 at = first(); at < count; at += step()) {
        u64 element = position + at;
        double ratio = other.draw(key, element, BETA_B) / one.draw(key, element, BETA_A);
        if (a < 1.0 || b < 1.0) {
            double log_a = one.draw_logarithm(key, element, BETA_A), log_b = other.draw_logarithm(key, element, BETA_B);
            double more = log_b / b - log_a / a;
            // Both are too large where a and b are tiny. Then one of them is all of the sum.
            if (isnan(more)) more = log_a * 0x1p500 * b > log_b * 0x1p500 * a ? -0x1p1023 : 0x1p1023;
            ratio = exp(log(ratio) + more);
        }
        put_real(out, at, 1.0 / (1.0 + ratio), bytes);
    }
}

// A normal variable over the root of a gamma variable of half the degrees of freedom, over that half.
extern "C" __global__ void philox_standard_t(void *out, u64 count, u64 key, u64 position, u32 bytes, double df)
{
    double half = fmax(0.5 * df, 0x1p-1074), log_half = log(half);
    Gamma gamma(half);
    for (u64 at = first(); at < count; at += step()) {
        u64 element = position + at;
        Words words = block(key, element, 0, T_NORMAL);
        double x = normal(words.x, words.y, words.z), g = gamma.draw(key, element, T_GAMMA);
        if (half >= 1.0) x *= sqrt(half / g);
        else if (x != 0.0) x *= exp(0.5 * (log_half - log(g) - gamma.draw_logarithm(key, element, T_GAMMA) / half));
        put_real(out, at, x, bytes);
    }
}
