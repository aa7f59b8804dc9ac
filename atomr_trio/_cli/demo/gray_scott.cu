// One step of the Gray-Scott reaction: two chemicals diffuse over a torus, and v feeds on u.
// The arithmetic of a cell depends on nothing but its neighbours, so two runs agree bit for bit.

struct Cell { float u, v; };

__device__ Cell react(const float *u, const float *v, int x, int y, int width, int height, float feed, float kill)
{
    int left = x == 0 ? width - 1 : x - 1, right = x == width - 1 ? 0 : x + 1;
    int above = (y == 0 ? height - 1 : y - 1) * width, below = (y == height - 1 ? 0 : y + 1) * width;
    int here = y * width;

    float around_u = 0.20f * (u[here + left] + u[here + right] + u[above + x] + u[below + x])
                   + 0.05f * (u[above + left] + u[above + right] + u[below + left] + u[below + right]);
    float around_v = 0.20f * (v[here + left] + v[here + right] + v[above + x] + v[below + x])
                   + 0.05f * (v[above + left] + v[above + right] + v[below + left] + v[below + right]);
    float cell_u = u[here + x], cell_v = v[here + x];
    float reaction = cell_u * cell_v * cell_v;
    return {cell_u + (around_u - cell_u) - reaction + feed * (1.0f - cell_u),
            cell_v + 0.5f * (around_v - cell_v) + reaction - (feed + kill) * cell_v};
}

extern "C" __global__ void step(const float *u, const float *v, float *next_u, float *next_v,
                                int width, int height, float feed, float kill)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    Cell cell = react(u, v, x, y, width, height, feed, kill);
    next_u[y * width + x] = cell.u;
    next_v[y * width + x] = cell.v;
}

// The same step with a bug in it: the cells of the lower half go wherever `wild` points.
extern "C" __global__ void rogue(const float *u, const float *v, float *next_u, float *next_v,
                                 int width, int height, float feed, float kill, float *wild)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    Cell cell = react(u, v, x, y, width, height, feed, kill);
    float *target = y < height / 2 ? next_u : wild;
    target[y * width + x] = cell.u;
    next_v[y * width + x] = cell.v;
}
