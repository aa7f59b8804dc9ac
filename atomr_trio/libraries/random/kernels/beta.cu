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
