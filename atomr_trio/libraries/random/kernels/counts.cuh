// Numbers of events.
//
// The probabilities of single numbers are those of Loader, "Fast and accurate computation of binomial probabilities",
// 2000: nothing large cancels in them, however large the numbers are.

#define INLINE __device__ __forceinline__

#define TWO_PI 0x1.921fb54442d18p2

__constant__ double SMALL_ERRORS[16] = {
    0.0, 0.08106146679532726, 0.0413406959554093, 0.02767792568499834, 0.020790672103765093, 0.016644691189821193,
    0.013876128823070748, 0.01189670994589177, 0.010411265261972096, 0.009255462182712733, 0.00833056343336287,
    0.007573675487951841, 0.00694284010720953, 0.006408994188004207, 0.0059513701127588475, 0.005554733551962801};

// ln k! less Stirling's formula for it. It is seldom called, as the next, and so is not a part of every place.
__device__ __noinline__ double stirling_error(double k)
{
    if (k < 16.0) return SMALL_ERRORS[(int)k];
    double inverse = 1.0 / k, square = inverse * inverse;
    return inverse * fma(square, fma(square, fma(square, -1.0 / 1680.0, 1.0 / 1260.0), -1.0 / 360.0), 1.0 / 12.0);
}

// x ln(x / mean) + mean - x, where `more` is x - mean.
__device__ __noinline__ double deviance(double x, double mean, double more)
{
    double v = more / (x + mean);
    if (!(fabs(v) < 0.1)) return x * log(x / mean) - more;
    double sum = more * v, part = 2.0 * x * v, square = v * v;
    for (int k = 3; k < 40; k += 2) {
        part *= square;
        double next = sum + part / k;
        if (next == sum) break;
        sum = next;
    }
    return sum;
}
