// Words, and uniform numbers.

extern "C" __global__ void philox_bits(u32 *out, u64 count, u64 key, u64 position)
{
    by_words(out, count, key, position, [](Words w) { return Four<u32>{{w.x, w.y, w.z, w.w}}; });
}

// Rounding may not go beyond the end of the interval.
__device__ __forceinline__ float between(float u, float low, float high)
{
    float x = fmaf(u, high - low, low);
    return high >= low ? fminf(x, high) : fmaxf(x, high);
}
__device__ __forceinline__ double between(double u, double low, double high)
{
    double x = fma(u, high - low, low);
    return high >= low ? fmin(x, high) : fmax(x, high);
}

extern "C" __global__ void philox_uniform_float32(
    float *out, u64 count, u64 key, u64 position, double lower, double upper)
{
    float low = (float)lower, high = (float)upper;
    by_words(out, count, key, position, [=](Words w) {
        return Four<float>{{between(unit32(w.x), low, high), between(unit32(w.y), low, high),
                            between(unit32(w.z), low, high), between(unit32(w.w), low, high)}};
    });
}

extern "C" __global__ void philox_uniform_float64(
    double *out, u64 count, u64 key, u64 position, double low, double high)
{
    by_halves(out, count, key, position, [=](Words w) {
        return Two<double>{{between(unit(w.x, w.y), low, high), between(unit(w.z, w.w), low, high)}};
    });
}
