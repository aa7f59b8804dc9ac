// Layers of networks: attention in tiles, products of small integers, and losses with their gradients.

#define INFINITE __int_as_float(0x7f800000)
#define ALL 0xffffffffu

__device__ float sum_of_warp(float x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

// Attention that looks back only, by tiles of 32 keys in shared memory: the scores are never stored as a whole.
extern "C" __global__ void flash_attention(const float *q, const float *k, const float *v, float *out, int n)
{
    __shared__ float keys[32][33], values[32][33], queries[8][32];
    int lane = threadIdx.x, row = blockIdx.x * 8 + threadIdx.y;
    float most = -INFINITE, sum = 0, result = 0;
    queries[threadIdx.y][lane] = q[row * 32 + lane] * rsqrtf(32.0f);
    for (int first = 0; first <= blockIdx.x * 8 + 7; first += 32) {
        __syncthreads();
        for (int j = threadIdx.y; j < 32; j += 8) {
            bool there = first + j < n;
            keys[j][lane] = there ? k[(first + j) * 32 + lane] : 0;
            values[j][lane] = there ? v[(first + j) * 32 + lane] : 0;
        }
        __syncthreads();
        float score = 0;
        for (int d = 0; d < 32; ++d) score += queries[threadIdx.y][d] * keys[lane][d];
        if (first + lane > row) score = -INFINITE;
        float higher = score;
        for (int step = 16; step; step /= 2) higher = fmaxf(higher, __shfl_xor_sync(ALL, higher, step));
        higher = fmaxf(higher, most);
        if (higher == -INFINITE) continue;
        float weight = expf(score - higher), shrink = expf(most - higher);
        sum = sum * shrink + sum_of_warp(weight);
        result *= shrink;
        for (int j = 0; j < 32; ++j) result += __shfl_sync(ALL, weight, j) * values[j][lane];
        most = higher;
    }
    out[row * 32 + lane] = result / sum;
}

// Rows of 64, divided by the root of their mean square.
extern "C" __global__ void rms_norm(const float2 *x, const float2 *gain, float2 *out)
{
    int lane = threadIdx.x, at = (blockIdx.x * blockDim.y + threadIdx.y) * 32 + lane;
    float2 mine = x[at], by = gain[lane];
    float scale = rsqrtf(sum_of_warp(mine.x * mine.x + mine.y * mine.y) / 64 + 1e-6f);
    out[at] = make_float2(mine.x * scale * by.x, mine.y * scale * by.y);
}

// Rotary positions: pairs of numbers turn by angles that depend on the place.
extern "C" __global__ void rotary(float2 *x, int pairs)
{
    int place = blockIdx.x, k = threadIdx.x;
    float sine, cosine, angle = place * exp2f(-13.287712f * k / pairs);
    sincosf(angle, &sine, &cosine);
    float2 old = x[place * pairs + k];
    x[place * pairs + k] = make_float2(old.x * cosine - old.y * sine, old.x * sine + old.y * cosine);
}

// The loss of a row of 100 scores, and its gradient.
extern "C" __global__ void cross_entropy(const float *scores, const int *labels, float *losses, float *gradients)
{
    const float *row = scores + 100 * blockIdx.x;
    float most = -INFINITE, sum = 0;
    for (int k = threadIdx.x; k < 100; k += 32) most = fmaxf(most, row[k]);
    for (int step = 16; step; step /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, step));
    for (int k = threadIdx.x; k < 100; k += 32) sum += expf(row[k] - most);
    sum = sum_of_warp(sum);
    int label = labels[blockIdx.x];
    for (int k = threadIdx.x; k < 100; k += 32)
        gradients[100 * blockIdx.x + k] = expf(row[k] - most) / sum - (k == label);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + most - row[label];
}

// A convolution of planes by 3 by 3 weights, with zeros around, and the largest of 2 by 2 results.
extern "C" __global__ void convolve_and_pool(const float *in, const float *weights, const float *bias, float *out,
                                             int planes, int size)
{
    int x = threadIdx.x, y = threadIdx.y, filter = blockIdx.x, half = size / 2;
    float best = 0;
    for (int corner = 0; corner < 4; ++corner) {
        float sum = bias[filter];
        for (int plane = 0; plane < planes; ++plane) {
            for (int k = 0; k < 9; ++k) {
                int i = 2 * x + corner % 2 + k % 3 - 1, j = 2 * y + corner / 2 + k / 3 - 1;
                if (i < 0 || j < 0 || i >= size || j >= size) continue;
                sum += in[(plane * size + j) * size + i] * weights[(filter * planes + plane) * 9 + k];
            }
        }
        best = fmaxf(best, sum);
    }
    out[(filter * half + y) * half + x] = best;
}

// A product of bytes, four at a time, with a scale and a shift for each row: whole numbers until the end.
extern "C" __global__ void product_of_bytes(const int *a, const int *b, const int *shifts, signed char *out, int words)
{
    int row = threadIdx.y, column = threadIdx.x, sum = 0;
    for (int k = 0; k < words; ++k) sum = __dp4a(a[row * words + k], b[column * words + k], sum);
    sum = (sum + (1 << shifts[row] - 1)) >> shifts[row];
    out[row * blockDim.x + column] = min(max(sum, -128), 127);
}

// Gradients of a table of words: rows that are used several times are added to by several threads.
extern "C" __global__ void embedding_gradient(const int *words, const float *gradients, float *table)
{
    atomicAdd(&table[words[blockIdx.x] * 32 + threadIdx.x], gradients[blockIdx.x * 32 + threadIdx.x]);
}

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// Steps of a cell with long short-term memory: 16 cells, 64 gates, the state in shared memory.
extern "C" __global__ void lstm(const float *inputs, const float *weights, float *out, int steps)
{
    __shared__ float state[16], gates[64];
    int t = threadIdx.x;
    float memory = 0;
    if (t < 16) state[t] = 0;
    for (int step = 0; step < steps; ++step) {
        __syncthreads();
        float sum = inputs[step * 64 + t];
        for (int k = 0; k < 16; ++k) sum += weights[t * 16 + k] * state[k];
        gates[t] = t / 16 == 2 ? tanhf(sum) : sigmoid(sum);
        __syncthreads();
        if (t < 16) {
            memory = gates[16 + t] * memory + gates[t] * gates[32 + t];
            out[step * 16 + t] = state[t] = gates[48 + t] * tanhf(memory);
        }
    }
}

// Four-bit weights with a scale for every 32 of them, times a vector; a warp for each row.
extern "C" __global__ void four_bits(const unsigned *packed, const float *scales, const float *x, float *out,
                                     int groups)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float sum = 0;
    for (int group = lane; group < groups; group += 32) {
        float part = 0;
        for (int word = 0; word < 4; ++word)
            for (int k = 0; k < 8; ++k)
                part += (int)(packed[(row * groups + group) * 4 + word] >> 4 * k & 15) * x[group * 32 + word * 8 + k] -
                        8 * x[group * 32 + word * 8 + k];
        sum += part * scales[row * groups + group];
    }
    sum = sum_of_warp(sum);
    if (lane == 0) out[row] = sum;
}
