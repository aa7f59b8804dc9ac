// Distributions whose inverse is known: each element is a function of one number of 53 bits.

extern "C" __global__ void philox_exponential(void *out, u64 count, u64 key, u64 position, u32 bytes, double scale)
{
    by_pairs(out, count, key, position, bytes, EXPONENTIAL, [=](u64, u32 low, u32 high) {
        return -log(unit(low, high)) * scale;
    });
}

// Both halves come from the numbers near 0, which are dense: the cotangent of an angle between 0 and a right one.
extern "C" __global__ void philox_cauchy(
    void *out, u64 count, u64 key, u64 position, u32 bytes, double loc, double scale)
{
    by_pairs(out, count, key, position, bytes, CAUCHY, [=](u64, u32 low, u32 high) {
        u64 bits = joined(low, high);
        double angle = ((double)(bits >> 12) + 0.5) * 0x1p-53, sine, cosine;
        sincospi(angle, &sine, &cosine);
        double x = cosine / sine;
        return fma(bits & 1 ? -x : x, scale, loc);
    });
}
