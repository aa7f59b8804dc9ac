// What neural networks are made of.

#define ALL 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

// Over a block; every thread must call it, and gets the result. `combine` is + or max, and says what is neutral.
struct Sum
{
    static __device__ float combine(float a, float b) { return a + b; }
    static __device__ float neutral() { return 0; }
};
struct Most
{
    static __device__ float combine(float a, float b) { return fmaxf(a, b); }
    static __device__ float neutral() { return -INFINITE; }
};

template <typename Operation>
__device__ float over_block(float v)
{
    __shared__ float parts[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    for (int step = 16; step; step /= 2) v = Operation::combine(v, __shfl_xor_sync(ALL, v, step));
    __syncthreads();
    if (lane == 0) parts[warp] = v;
    __syncthreads();
    v = lane < warps ? parts[lane] : Operation::neutral();
    for (int step = 16; step; step /= 2) v = Operation::combine(v, __shfl_xor_sync(ALL, v, step));
    return v;
}

// One block for each row.
extern "C" __global__ void softmax(const float *in, float *out, int width)
{
    const float *row = in + blockIdx.x * width;
    float most = -INFINITE, sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, row[i]);
    most = over_block<Most>(most);
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += expf(row[i] - most);
    sum = over_block<Sum>(sum);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[blockIdx.x * width + i] = expf(row[i] - most) / sum;
}

extern "C" __global__ void layer_norm(const float *in, const float *gain, const float *bias, float *out, int width)
{
    const float *row = in + blockIdx.x * width;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
    float mean = over_block<Sum>(sum) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(over_block<Sum>(squares) / width + 1e-5f);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[blockIdx.x * width + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}

extern "C" __global__ void gelu(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}

// One head of attention, a warp for each query; the softmax is kept up to date while keys go by.
extern "C" __global__ void attention(const float *q, const float *k, const float *v, float *out, int keys)
{
    int query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float mine = q[query * 32 + lane] * rsqrtf(32.0f), most = -INFINITE, sum = 0, value = 0;
    for (int at = 0; at < keys; ++at) {
        float score = mine * k[at * 32 + lane];
        for (int step = 16; step; step /= 2) score += __shfl_xor_sync(ALL, score, step);
        float higher = fmaxf(most, score), shrink = expf(most - higher), weight = expf(score - higher);
        sum = sum * shrink + weight;
        value = value * shrink + weight * v[at * 32 + lane];
        most = higher;
    }
    out[query * 32 + lane] = value / sum;
}

// Each point to its nearest centre; sums and counts of the centres' points, for the next step.
extern "C" __global__ void nearest_centre(const float2 *points, int n, const float2 *centres, int count, int *labels,
                                          int *sizes)
{
    extern __shared__ float2 near[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) near[i] = centres[i];
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float least = INFINITE;
    int label = 0;
    for (int k = 0; k < count; ++k) {
        float x = points[i].x - near[k].x, y = points[i].y - near[k].y, distance = x * x + y * y;
        if (distance < least) {
            least = distance;
            label = k;
        }
    }
    labels[i] = label;
    atomicAdd(&sizes[label], 1);
}

// Adam, in place.
extern "C" __global__ void adam(float *weights, const float *gradients, float *first, float *second, float rate,
                                int step, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float g = gradients[i];
    float m = first[i] = 0.9f * first[i] + 0.1f * g;
    float v = second[i] = 0.999f * second[i] + 0.001f * g * g;
    float m_unbiased = m / (1 - powf(0.9f, (float)step)), v_unbiased = v / (1 - powf(0.999f, (float)step));
    weights[i] -= rate * m_unbiased / (sqrtf(v_unbiased) + 1e-8f);
}
