// Gamma variables.

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
