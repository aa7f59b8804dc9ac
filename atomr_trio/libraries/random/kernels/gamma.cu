// Gamma variables as they are.

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
