// Images: neighbourhoods in shared memory, and a ray tracer.

typedef unsigned char u8;
typedef unsigned int u32;

#define COLUMN (blockIdx.x * blockDim.x + threadIdx.x)
#define ROW (blockIdx.y * blockDim.y + threadIdx.y)

// A tile of 16 by 16 pixels with a border of one, which repeats the edge of the image.
__device__ void read_tile(const u8 *image, int width, int height, u8 tile[18][18])
{
    int left = blockIdx.x * 16 - 1, top = blockIdx.y * 16 - 1;
    for (int k = threadIdx.y * 16 + threadIdx.x; k < 18 * 18; k += 256) {
        int x = min(max(left + k % 18, 0), width - 1), y = min(max(top + k / 18, 0), height - 1);
        tile[k / 18][k % 18] = image[y * width + x];
    }
    __syncthreads();
}

// Sobel's gradient, as the sum of the two absolute values.
extern "C" __global__ void sobel(const u8 *image, int width, int height, short *edges)
{
    __shared__ u8 tile[18][18];
    read_tile(image, width, height, tile);
    int x = COLUMN, y = ROW, i = threadIdx.x, j = threadIdx.y;
    if (x >= width || y >= height) return;
    int right = tile[j][i + 2] + 2 * tile[j + 1][i + 2] + tile[j + 2][i + 2];
    int left = tile[j][i] + 2 * tile[j + 1][i] + tile[j + 2][i];
    int below = tile[j + 2][i] + 2 * tile[j + 2][i + 1] + tile[j + 2][i + 2];
    int above = tile[j][i] + 2 * tile[j][i + 1] + tile[j][i + 2];
    edges[y * width + x] = abs(right - left) + abs(below - above);
}

// The median of nine by a network of exchanges.
extern "C" __global__ void median(const u8 *image, int width, int height, u8 *out)
{
    __shared__ u8 tile[18][18];
    read_tile(image, width, height, tile);
    int v[9];
    for (int k = 0; k < 9; ++k) v[k] = tile[threadIdx.y + k / 3][threadIdx.x + k % 3];
    for (int pass = 0; pass < 9; ++pass) {
        for (int k = pass % 2; k < 8; k += 2) {
            int low = min(v[k], v[k + 1]);
            v[k + 1] = max(v[k], v[k + 1]);
            v[k] = low;
        }
    }
    if (COLUMN < width && ROW < height) out[ROW * width + COLUMN] = v[4];
}

// Opening by a square of nine: the darkest neighbour, then the brightest of those.
extern "C" __global__ void opening(const u8 *image, int width, int height, u8 *out)
{
    __shared__ u8 dark[16][16];
    int x = (int)(blockIdx.x * 14 + threadIdx.x) - 1, y = (int)(blockIdx.y * 14 + threadIdx.y) - 1;
    int least = 255, most = 0;
    bool inside = x >= 0 && x < width && y >= 0 && y < height;
    for (int k = 0; k < 9; ++k) {
        int i = min(max(x + k % 3 - 1, 0), width - 1), j = min(max(y + k / 3 - 1, 0), height - 1);
        least = min(least, (int)image[j * width + i]);
    }
    dark[threadIdx.y][threadIdx.x] = inside ? least : 0;
    __syncthreads();
    if (!inside || threadIdx.x % 15 == 0 || threadIdx.y % 15 == 0) return;
    for (int k = 0; k < 9; ++k) most = max(most, (int)dark[threadIdx.y + k / 3 - 1][threadIdx.x + k % 3 - 1]);
    out[y * width + x] = most;
}

// A row of the summed area table: a warp scans 32 pixels at a time and carries the sum on.
extern "C" __global__ void sums_of_rows(const int *in, int width, int *out)
{
    const int *row = in + blockIdx.x * width;
    int carried = 0, lane = threadIdx.x;
    for (int first = 0; first < width; first += 32) {
        int sum = first + lane < width ? row[first + lane] : 0;
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += before;
        }
        if (first + lane < width) out[(first + lane) * gridDim.x + blockIdx.x] = sum + carried;
        carried += __shfl_sync(0xffffffffu, sum, 31);
    }
}

// Squared distances to the nearest lit pixel of the same column; then, of those, the exact ones in the plane.
extern "C" __global__ void distance_in_columns(const u8 *lit, int width, int height, int *squares)
{
    int x = COLUMN, gap = 1000;
    if (x >= width) return;
    for (int y = 0; y < height; ++y) squares[y * width + x] = gap = lit[y * width + x] ? 0 : gap + 1;
    for (int y = height - 1; y >= 0; --y) {
        gap = lit[y * width + x] ? 0 : gap + 1;
        int nearest = min(gap, squares[y * width + x]);
        squares[y * width + x] = nearest * nearest;
    }
}

extern "C" __global__ void distance_in_plane(const int *squares, int width, int height, int *distances)
{
    int x = COLUMN, y = ROW, best = 0x7fffffff;
    if (x >= width || y >= height) return;
    for (int k = 0; k < width; ++k) best = min(best, squares[y * width + k] + (x - k) * (x - k));
    distances[y * width + x] = best;
}

// The reversible wavelet of Haar on rows of 128, level by level; whole numbers stay whole.
extern "C" __global__ void haar(int *rows)
{
    __shared__ int s[128];
    int t = threadIdx.x, *row = rows + 128 * blockIdx.x;
    s[t] = row[t];
    s[t + 64] = row[t + 64];
    for (int half = 64; half; half /= 2) {
        __syncthreads();
        int even = s[2 * t % 128], difference = s[(2 * t + 1) % 128] - even, mean = even + (difference >> 1);
        __syncthreads();
        if (t < half) {
            s[t] = mean;
            s[half + t] = difference;
        }
    }
    __syncthreads();
    row[t] = s[t];
    row[t + 64] = s[t + 64];
}

// The cosine transform of 8 by 8 pixels, rows and then columns, by a table that a launch before it fills.
extern "C" __global__ void fill_cosines(float (*table)[8])
{
    int k = threadIdx.y, n = threadIdx.x;
    table[k][n] = cospif((2 * n + 1) * k / 16.0f) * (k ? 0.5f : 0.35355339f);
}

extern "C" __global__ void cosine_transform(const float (*table)[8], const float *blocks, float *out)
{
    __shared__ float in[8][8], half[8][8];
    int x = threadIdx.x, y = threadIdx.y;
    float sum = 0;
    in[y][x] = blocks[64 * blockIdx.x + 8 * y + x];
    __syncthreads();
    for (int n = 0; n < 8; ++n) sum += table[x][n] * in[y][n];
    half[y][x] = sum;
    __syncthreads();
    sum = 0;
    for (int n = 0; n < 8; ++n) sum += table[y][n] * half[n][x];
    out[64 * blockIdx.x + 8 * y + x] = sum;
}

// Enlarging by two linear interpolations, pixels being squares.
extern "C" __global__ void resize(const float *in, int width, int height, float *out, int wide, int high)
{
    int x = COLUMN, y = ROW;
    if (x >= wide || y >= high) return;
    float u = fminf(fmaxf((x + 0.5f) * width / wide - 0.5f, 0), width - 1);
    float v = fminf(fmaxf((y + 0.5f) * height / high - 0.5f, 0), height - 1);
    int left = min((int)u, width - 2), top = min((int)v, height - 2);
    const float *at = in + top * width + left;
    float upper = at[0] + (u - left) * (at[1] - at[0]), lower = at[width] + (u - left) * (at[width + 1] - at[width]);
    out[y * wide + x] = upper + (v - top) * (lower - upper);
}

struct Vector {
    double x, y, z;
    __device__ Vector operator+(Vector o) const { return {x + o.x, y + o.y, z + o.z}; }
    __device__ Vector operator-(Vector o) const { return {x - o.x, y - o.y, z - o.z}; }
    __device__ Vector operator*(double k) const { return {x * k, y * k, z * k}; }
    __device__ double dot(Vector o) const { return x * o.x + y * o.y + z * o.z; }
    __device__ Vector unit() const { return *this * (1 / sqrt(dot(*this))); }
};

struct Sphere {
    Vector centre;
    double radius, mirror;
};

#define NOTHING 1e30

__device__ double hit(const Sphere *spheres, int count, Vector from, Vector along, int &which)
{
    double nearest = NOTHING;
    for (int k = 0; k < count; ++k) {
        Vector to = spheres[k].centre - from;
        double middle = to.dot(along), under = middle * middle - to.dot(to) + spheres[k].radius * spheres[k].radius;
        if (under <= 0) continue;
        double distance = middle - sqrt(under);
        if (distance > 1e-6 && distance < nearest) {
            nearest = distance;
            which = k;
        }
    }
    return nearest;
}

__device__ double colour(const Sphere *spheres, int count, Vector from, Vector along, int depth)
{
    int which = 0;
    double distance = hit(spheres, count, from, along, which);
    if (distance == NOTHING) return 0.5 + 0.5 * along.y;
    const Sphere &sphere = spheres[which];
    Vector at = from + along * distance, normal = (at - sphere.centre) * (1 / sphere.radius);
    Vector light = Vector{1, 2, -1}.unit();
    int shading;
    double lit = hit(spheres, count, at, light, shading) == NOTHING ? fmax(normal.dot(light), 0.0) : 0;
    double own = 0.1 + 0.9 * lit;
    if (depth == 0) return own;
    Vector mirrored = along - normal * (2 * along.dot(normal));
    return own * (1 - sphere.mirror) + sphere.mirror * colour(spheres, count, at, mirrored, depth - 1);
}

// Rays through the pixels of a screen; mirrors call the function again.
extern "C" __global__ void ray_tracer(const Sphere *spheres, int count, double *image, int width, int height, int depth)
{
    int x = COLUMN, y = ROW;
    if (x >= width || y >= height) return;
    Vector along = Vector{(x + 0.5) / width - 0.5, 0.5 - (y + 0.5) / height, 1}.unit();
    image[y * width + x] = colour(spheres, count, {0, 0, -3}, along, depth);
}
