// Matrices: products, transposes, sparse rows, and solvers.

template <typename T, int TILE>
__global__ void multiply(const T *a, const T *b, T *c, int m, int n, int k)
{
    __shared__ T left[TILE][TILE], right[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    T sum = 0;
    for (int at = 0; at < k; at += TILE) {
        int x = at + threadIdx.x, y = at + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && x < k ? a[row * k + x] : T(0);
        right[threadIdx.y][threadIdx.x] = y < k && column < n ? b[y * n + column] : T(0);
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

// A tile that is one column wider than it need be, so that its columns lie in different banks.
template <typename T>
__global__ void transpose(const T *in, T *out, int width, int height)
{
    __shared__ T tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int k = 0; k < 16; k += blockDim.y)
        if (x < width && y + k < height) tile[threadIdx.y + k][threadIdx.x] = in[(y + k) * width + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    for (int k = 0; k < 16; k += blockDim.y)
        if (x < height && y + k < width) out[(y + k) * height + x] = tile[threadIdx.x][threadIdx.y + k];
}

// Rows of a matrix in compressed form, a warp for each.
extern "C" __global__ void sparse_times_vector(int rows, const int *begins, const int *columns, const float *values,
                                               const float *x, float *y)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int at = begins[row] + lane; at < begins[row + 1]; at += 32) sum += values[at] * x[columns[at]];
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (lane == 0) y[row] = sum;
}

extern "C" __global__ void jacobi_step(const double *a, const double *b, const double *x, double *next, int n)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    double rest = b[row];
    for (int k = 0; k < n; ++k)
        if (k != row) rest -= a[row * n + k] * x[k];
    next[row] = rest / a[row * n + row];
}

// Thomas: one tridiagonal system for each thread, interleaved so that neighbours read neighbouring words.
extern "C" __global__ void tridiagonal(const double *lower, const double *middle, const double *upper,
                                       const double *right, double *scratch, double *x, int n, int systems)
{
    int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= systems) return;
    double pivot = middle[s], value = right[s] / pivot;
    scratch[s] = upper[s] / pivot;
    x[s] = value;
    for (int i = 1; i < n; ++i) {
        int at = i * systems + s;
        pivot = middle[at] - lower[at] * scratch[at - systems];
        scratch[at] = upper[at] / pivot;
        x[at] = value = (right[at] - lower[at] * value) / pivot;
    }
    for (int i = n - 2; i >= 0; --i) {
        int at = i * systems + s;
        x[at] = value = x[at] - scratch[at] * value;
    }
}

// One small positive definite matrix for each thread, in registers or local memory: A = L L'.
template <int N>
__global__ void cholesky(const double *matrices, double *factors, int count)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= count) return;
    double a[N][N];
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) a[i][j] = matrices[(t * N + i) * N + j];
    for (int j = 0; j < N; ++j) {
        for (int k = 0; k < j; ++k) a[j][j] -= a[j][k] * a[j][k];
        a[j][j] = sqrt(a[j][j]);
        for (int i = j + 1; i < N; ++i) {
            for (int k = 0; k < j; ++k) a[i][j] -= a[i][k] * a[j][k];
            a[i][j] /= a[j][j];
            a[j][i] = 0;
        }
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) factors[(t * N + i) * N + j] = a[i][j];
}

// Elimination with row exchanges, a block for a matrix; the determinant comes out.
extern "C" __global__ void determinant(const double *matrices, double *determinants, int n)
{
    extern __shared__ double a[];
    __shared__ int pivot;
    int t = threadIdx.x;
    for (int i = t; i < n * n; i += blockDim.x) a[i] = matrices[blockIdx.x * n * n + i];
    double product = 1;
    for (int k = 0; k < n; ++k) {
        __syncthreads();
        if (t == 0) {
            pivot = k;
            for (int i = k + 1; i < n; ++i)
                if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
        }
        __syncthreads();
        if (pivot != k) {
            product = -product;
            for (int j = t; j < n; j += blockDim.x) {
                double kept = a[k * n + j];
                a[k * n + j] = a[pivot * n + j];
                a[pivot * n + j] = kept;
            }
        }
        __syncthreads();
        product *= a[k * n + k];
        int i = k + 1 + t;
        if (i < n) {
            double factor = a[i * n + k] / a[k * n + k];
            for (int j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
        }
    }
    if (t == 0) determinants[blockIdx.x] = product;
}
