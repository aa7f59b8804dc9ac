// Normal numbers by the method of Box and Muller, "A note on the generation of random normal deviates", 1958, with the
// roundings of cuRAND, and their exponentials.

__device__ __forceinline__ Two<float> normal_pair(u32 x, u32 y)
{
    float u = unit32(x), v = fmaf((float)y, 0x1.921fb6p-30f, 0x1.921fb6p-31f), s = sqrtf(-2.0f * logf(u)), a, b;
    sincosf(v, &a, &b);
    return Two<float>{{s * a, s * b}};
}

__device__ __forceinline__ Two<double> normal_pair(Words w)
{
    double v = (double)((u64)w.z ^ ((u64)w.w << 21)) * 0x1p-52 + 0x1p-53, a, b;
    double s = sqrt(-2.0 * log(unit(w.x, w.y)));
    sincospi(v, &a, &b);
    return Two<double>{{s * a, s * b}};
}

template <class After>
__device__ __forceinline__ void normals(
    float *out, u64 count, u64 key, u64 position, double mean, double deviation, After after)
{
    float loc = (float)mean, scale = (float)deviation;
    by_words(out, count, key, position, [=](Words w) {
        Two<float> a = normal_pair(w.x, w.y), b = normal_pair(w.z, w.w);
        return Four<float>{{after(fmaf(a.v[0], scale, loc)), after(fmaf(a.v[1], scale, loc)),
                            after(fmaf(b.v[0], scale, loc)), after(fmaf(b.v[1], scale, loc))}};
    });
}

template <class After>
__device__ __forceinline__ void normals(
    double *out, u64 count, u64 key, u64 position, double loc, double scale, After after)
{
    by_halves(out, count, key, position, [=](Words w) {
        Two<double> a = normal_pair(w);
        return Two<double>{{after(fma(a.v[0], scale, loc)), after(fma(a.v[1], scale, loc))}};
    });
}

extern "C" __global__ void philox_normal_float32(
    float *out, u64 count, u64 key, u64 position, double loc, double scale)
{
    normals(out, count, key, position, loc, scale, [](float x) { return x; });
}

extern "C" __global__ void philox_normal_float64(
    double *out, u64 count, u64 key, u64 position, double loc, double scale)
{
    normals(out, count, key, position, loc, scale, [](double x) { return x; });
}

extern "C" __global__ void philox_lognormal_float32(
    float *out, u64 count, u64 key, u64 position, double mean, double sigma)
{
    normals(out, count, key, position, mean, sigma, [](float x) { return expf(x); });
}

extern "C" __global__ void philox_lognormal_float64(
    double *out, u64 count, u64 key, u64 position, double mean, double sigma)
{
    normals(out, count, key, position, mean, sigma, [](double x) { return exp(x); });
}
