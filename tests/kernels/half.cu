// 16-bit floats by the instructions themselves: no header is needed.

typedef unsigned short u16;
typedef unsigned int u32;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

#define UNARY(instruction, x, r) asm(instruction " %0, %1;" : "=h"(r) : "h"(x))
#define BINARY(instruction, x, y, r) asm(instruction " %0, %1, %2;" : "=h"(r) : "h"(x), "h"(y))
#define PACKED(instruction, x, y, r) asm(instruction " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y))

#if __CUDA_ARCH__ >= 800

extern "C" __global__ void scalars(const u16 *a, const u16 *b, const u16 *c, u16 *out)
{
    int i = position();
    u16 x = a[i], y = b[i], z = c[i], *mine = out + 8 * i;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(mine[3]) : "h"(x), "h"(y), "h"(z));
    BINARY("add.f16", x, y, mine[0]);
    BINARY("sub.f16", x, y, mine[1]);
    BINARY("mul.f16", x, y, mine[2]);
    BINARY("min.f16", x, y, mine[4]);
    BINARY("max.f16", x, y, mine[5]);
    UNARY("neg.f16", x, mine[6]);
    UNARY("abs.f16", x, mine[7]);
}

extern "C" __global__ void pairs(const u32 *a, const u32 *b, const u32 *c, u32 *out)
{
    int i = position();
    u32 x = a[i], y = b[i], z = c[i], *mine = out + 8 * i;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(mine[3]) : "r"(x), "r"(y), "r"(z));
    PACKED("add.f16x2", x, y, mine[0]);
    PACKED("sub.f16x2", x, y, mine[1]);
    PACKED("mul.f16x2", x, y, mine[2]);
    PACKED("max.f16x2", x, y, mine[4]);
    PACKED("set.lt.f16x2.f16x2", x, y, mine[5]);
    PACKED("set.ge.u32.f16x2", x, y, mine[6]);
    PACKED("add.sat.f16x2", x, y, mine[7]);
}

#endif

extern "C" __global__ void conversions(const float *x, const int *n, u16 *halves, float *back, int *whole)
{
    int i = position();
    u16 *mine = halves + 5 * i;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(mine[0]) : "f"(x[i]));
    asm("cvt.rz.f16.f32 %0, %1;" : "=h"(mine[1]) : "f"(x[i]));
    asm("cvt.rp.f16.f32 %0, %1;" : "=h"(mine[2]) : "f"(x[i]));
    asm("cvt.rm.f16.f32 %0, %1;" : "=h"(mine[3]) : "f"(x[i]));
    asm("cvt.rn.f16.s32 %0, %1;" : "=h"(mine[4]) : "r"(n[i]));
    asm("cvt.f32.f16 %0, %1;" : "=f"(back[i]) : "h"(mine[0]));
    asm("cvt.rni.s32.f16 %0, %1;" : "=r"(whole[i]) : "h"(mine[0]));
}

#if __CUDA_ARCH__ >= 800

extern "C" __global__ void brain_floats(const float *x, const float *y, const float *z, u16 *out, u32 *both,
                                        float *back)
{
    int i = position();
    u16 a, b, c, *mine = out + 6 * i;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(a) : "f"(x[i]));
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(y[i]));
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(c) : "f"(z[i]));
    mine[0] = a;
    asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(mine[1]) : "h"(a), "h"(b), "h"(c));
    asm("fma.rn.relu.bf16 %0, %1, %2, %3;" : "=h"(mine[2]) : "h"(a), "h"(b), "h"(c));
    BINARY("max.bf16", a, b, mine[3]);
    UNARY("abs.bf16", a, mine[4]);
    asm("cvt.rz.bf16.f32 %0, %1;" : "=h"(mine[5]) : "f"(x[i]));
    u32 high_low, squared;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high_low) : "f"(x[i]), "f"(y[i]));
    asm("fma.rn.bf16x2 %0, %1, %1, %1;" : "=r"(squared) : "r"(high_low));
    both[2 * i] = high_low;
    both[2 * i + 1] = squared;
    back[i] = __uint_as_float((u32)a << 16);
}

#endif

// A row of sums of pairs, added up by one atomic for both halves.
extern "C" __global__ void atomic_pairs(const u32 *x, u32 *sum, u16 *single)
{
    int i = position();
    asm volatile("red.global.add.noftz.f16x2 [%0], %1;" ::"l"(sum + i % 4), "r"(x[i]) : "memory");
    asm volatile("red.global.add.noftz.f16 [%0], %1;" ::"l"(single), "h"((u16)(x[i] & 0xffff)) : "memory");
}
