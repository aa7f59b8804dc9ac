// Neighbourhoods: stencils with halos, a filter in constant memory, cells that live and die.

#define RADIUS 3
#define WIDTH 128

// A tile with its halo in shared memory; beyond the ends the outermost values go on.
extern "C" __global__ void stencil_1d(const float *x, float *y, int n)
{
    __shared__ float s[WIDTH + 2 * RADIUS];
    int i = blockIdx.x * WIDTH + threadIdx.x, t = threadIdx.x;
    s[t + RADIUS] = x[min(i, n - 1)];
    if (t < RADIUS) {
        s[t] = x[min(max(i - RADIUS, 0), n - 1)];
        s[t + WIDTH + RADIUS] = x[min(i + WIDTH, n - 1)];
    }
    __syncthreads();
    float sum = 0;
    for (int k = -RADIUS; k <= RADIUS; ++k) sum += s[t + RADIUS + k] * (RADIUS + 1 - abs(k));
    if (i < n) y[i] = sum;
}

__constant__ float filter[5][5] = {
    {1, 4, 7, 4, 1}, {4, 16, 26, 16, 4}, {7, 26, 41, 26, 7}, {4, 16, 26, 16, 4}, {1, 4, 7, 4, 1},
};

// Beyond the edges everything is zero.
extern "C" __global__ void convolve(const float *in, float *out, int width, int height)
{
    __shared__ float tile[20][20];
    int left = blockIdx.x * 16 - 2, top = blockIdx.y * 16 - 2;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 400; i += 256) {
        int x = left + i % 20, y = top + i / 20;
        tile[i / 20][i % 20] = x >= 0 && y >= 0 && x < width && y < height ? in[y * width + x] : 0.0f;
    }
    __syncthreads();
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
#pragma unroll
    for (int v = 0; v < 5; ++v)
#pragma unroll
        for (int u = 0; u < 5; ++u) sum += filter[v][u] * tile[threadIdx.y + v][threadIdx.x + u];
    out[y * width + x] = sum / 273;
}

// Conway's rules on a torus.
extern "C" __global__ void life(const unsigned char *now, unsigned char *next, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int alive = 0;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx)
            if (dx || dy) alive += now[(y + dy + height) % height * width + (x + dx + width) % width];
    next[y * width + x] = alive == 3 || (alive == 2 && now[y * width + x]);
}

// Heat in three dimensions; the boundary keeps its temperature.
extern "C" __global__ void heat(const double *now, double *next, int3 n, double rate)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= n.x || y >= n.y || z >= n.z) return;
    int i = (z * n.y + y) * n.x + x, row = n.x, layer = n.x * n.y;
    bool inside = x && y && z && x < n.x - 1 && y < n.y - 1 && z < n.z - 1;
    double here = now[i];
    next[i] = !inside ? here
                      : here + rate * (now[i - 1] + now[i + 1] + now[i - row] + now[i + row] + now[i - layer] +
                                       now[i + layer] - 6 * here);
}

// Distances by dynamic programming: a block walks the diagonals of the table, three of which are kept.
extern "C" __global__ void edit_distance(const char *a, const char *b, const int *lengths, int stride, int *distance)
{
    extern __shared__ int diagonals[];
    const char *left = a + blockIdx.x * stride, *right = b + blockIdx.x * stride;
    int m = lengths[2 * blockIdx.x], n = lengths[2 * blockIdx.x + 1], size = stride + 1;
    for (int d = 0; d <= m + n; ++d) {
        int *now = diagonals + d % 3 * size;
        int *last = diagonals + (d + 2) % 3 * size, *older = diagonals + (d + 1) % 3 * size;
        for (int i = max(0, d - n) + threadIdx.x; i <= min(d, m); i += blockDim.x) {
            int j = d - i;
            if (i == 0 || j == 0) now[i] = d;
            else now[i] = min(older[i - 1] + (left[i - 1] != right[j - 1]), min(last[i - 1], last[i]) + 1);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) distance[blockIdx.x] = diagonals[(m + n) % 3 * size + m];
}
