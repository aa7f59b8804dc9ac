extern "C" __global__ void k3878796521(const char *in, u64 *out, int p, float q, u64 r) {
int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, t = x + blockDim.x * (y + blockDim.y * z);
int b = blockIdx.x + gridDim.x * blockIdx.y, i = b * 20 + t;
u64 *memory = out + 480;
i8 i8_0 = ((const i8 *)(in + 0))[i];
i8 i8_1 = ((const i8 *)(in + 32))[i];
u8 u8_0 = ((const u8 *)(in + 64))[i];
u8 u8_1 = ((const u8 *)(in + 96))[i];
i16 i16_0 = ((const i16 *)(in + 128))[i];
i16 i16_1 = ((const i16 *)(in + 176))[i];
u16 u16_0 = ((const u16 *)(in + 224))[i];
u16 u16_1 = ((const u16 *)(in + 272))[i];
i32 i32_0 = ((const i32 *)(in + 320))[i];
i32 i32_1 = ((const i32 *)(in + 400))[i];
u32 u32_0 = ((const u32 *)(in + 480))[i];
u32 u32_1 = ((const u32 *)(in + 560))[i];
i64 i64_0 = ((const i64 *)(in + 640))[i];
i64 i64_1 = ((const i64 *)(in + 800))[i];
u64 u64_0 = ((const u64 *)(in + 960))[i];
u64 u64_1 = ((const u64 *)(in + 1120))[i];
f16 f16_0 = ((const f16 *)(in + 1280))[i];
f16 f16_1 = ((const f16 *)(in + 1328))[i];
bf16 bf16_0 = ((const bf16 *)(in + 1376))[i];
bf16 bf16_1 = ((const bf16 *)(in + 1424))[i];
f32 f32_0 = ((const f32 *)(in + 1472))[i];
f32 f32_1 = ((const f32 *)(in + 1552))[i];
f64 f64_0 = ((const f64 *)(in + 1632))[i];
f64 f64_1 = ((const f64 *)(in + 1792))[i];
for (int v1 = 0; v1 < ((i32)__double2int_rz(f64_0) & 7); v1++) {
    if ((((u16_0 > u16_1) && (u8_1 <= u8_1)) && (__uint_as_float(0x3a83126fu) >= f32_1))) {
        u8_1 = quotient<u8>((((q >= f32_1) && (u8_0 <= u8_0)) ? (u8)(u8_0 > u8_1 ? u8_0 : u8_1) : remains<u8>(u8_0, u8_0)), (u8)~(u8)((u32)(u8)0xc4ull << (u8_1 & 7)));
        if (((i8)__float2int_rz(((f32)bf16_0)) > (i8)((u32)(i8)0x36ull << ((i8)0x61ull & 7)))) break;
    } else {
        if (((u16)i64_0 < (u16)(u16_1 < 0 ? (u32)0 - (u32)u16_1 : (u32)u16_1))) break;
        u8_0 = (u8)__float2int_rz((fmax(f32_1, __uint_as_float(0x409e8171u)) + fmin(f32_0, f32_1)));
    }
}
i16_0 = (i16)quotient<u8>((u8)(u8_0 >> (u8_1 & 7)), (u8)u16_1);
atomicMin(((u32 *)(memory + 0)) + ((i32)(b < 0 ? (u32)0 - (u32)b : (u32)b) & 7), (u32)(u64)((u64)(u64)0xb261d36a898f1542ull << (r & 63)));
atomicAdd(((f64 *)(memory + 4)) + ((i32)(t > z ? t : z) & 7), (f64)(__hadd(x, t) & 63));
for (int v2 = 0; v2 < ((i32)__float2int_rz(((f32)bf16_1)) & 7); v2++) {
    if (((i16_0 > i16_0) && (r <= (u64)0x7cb677218346202aull))) continue;
}
out[0 + i] = word(i8_0);
out[20 + i] = word(i8_1);
out[40 + i] = word(u8_0);
out[60 + i] = word(u8_1);
out[80 + i] = word(i16_0);
out[100 + i] = word(i16_1);
out[120 + i] = word(u16_0);
out[140 + i] = word(u16_1);
out[160 + i] = word(i32_0);
out[180 + i] = word(i32_1);
out[200 + i] = word(u32_0);
out[220 + i] = word(u32_1);
out[240 + i] = word(i64_0);
out[260 + i] = word(i64_1);
out[280 + i] = word(u64_0);
out[300 + i] = word(u64_1);
out[320 + i] = word(f16_0);
out[340 + i] = word(f16_1);
out[360 + i] = word(bf16_0);
out[380 + i] = word(bf16_1);
out[400 + i] = word(f32_0);
out[420 + i] = word(f32_1);
out[440 + i] = word(f64_0);
out[460 + i] = word(f64_1);
}