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
