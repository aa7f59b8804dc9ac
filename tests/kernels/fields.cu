// Fields on grids, and small systems of equations: double precision, and steps that follow each other.

typedef unsigned int u32;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

__constant__ int CX[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, CY[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
__constant__ double WEIGHTS[9] = {4. / 9, 1. / 9, 1. / 9, 1. / 9, 1. / 9, 1. / 36, 1. / 36, 1. / 36, 1. / 36};

// A step of the lattice Boltzmann method with nine directions (D2Q9) on a torus: gather, relax, write.
extern "C" __global__ void lattice_boltzmann(const double *in, double *out, int width, int height, double rate)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, cells = width * height;
    if (x >= width || y >= height) return;
    double f[9], density = 0, ux = 0, uy = 0;
    for (int k = 0; k < 9; ++k) {
        int from = (y - CY[k] + height) % height * width + (x - CX[k] + width) % width;
        f[k] = in[k * cells + from];
        density += f[k];
        ux += CX[k] * f[k];
        uy += CY[k] * f[k];
    }
    ux /= density, uy /= density;
    for (int k = 0; k < 9; ++k) {
        double along = CX[k] * ux + CY[k] * uy;
        double rest = WEIGHTS[k] * density * (1 + 3 * along + 4.5 * along * along - 1.5 * (ux * ux + uy * uy));
        out[k * cells + y * width + x] = f[k] + rate * (rest - f[k]);
    }
}

// Gauss's and Seidel's relaxation in two colours, in place; the boundary stays.
extern "C" __global__ void red_and_black(double *u, int n, int colour)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x + 1, y = blockIdx.y * blockDim.y + threadIdx.y + 1;
    if (x >= n - 1 || y >= n - 1 || (x + y) % 2 != colour) return;
    double *at = u + y * n + x;
    *at = 0.25 * (at[-1] + at[1] + at[-n] + at[n]);
}

// A string that is fixed at both ends: many steps by one block, both times in shared memory.
extern "C" __global__ void string_of_a_guitar(double *displacement, int steps, double courant)
{
    __shared__ double times[2][128];
    int t = threadIdx.x;
    times[0][t] = times[1][t] = displacement[t];
    for (int k = 0; k < steps; ++k) {
        double *now = times[k % 2], *next = times[1 - k % 2];
        __syncthreads();
        if (t && t < 127) next[t] = 2 * now[t] - next[t] + courant * (now[t - 1] - 2 * now[t] + now[t + 1]);
    }
    __syncthreads();
    displacement[t] = times[steps % 2][t];
}

// Ising's spins by the heat bath, half of the board at a time; chance is a hash of place and step.
extern "C" __global__ void ising(signed char *spins, int n, int step, const u32 *thresholds)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n || (x + y) % 2 != step % 2) return;
    int sum = spins[y * n + (x + 1) % n] + spins[y * n + (x + n - 1) % n] + spins[(y + 1) % n * n + x] +
              spins[(y + n - 1) % n * n + x];
    u32 chance = (u32)(step * n * n + y * n + x);
    chance = (chance ^ chance >> 16) * 0x7feb352du;
    chance = (chance ^ chance >> 15) * 0x846ca68bu;
    chance ^= chance >> 16;
    spins[y * n + x] = chance < thresholds[sum / 2 + 2] ? 1 : -1;
}

// Grains topple until the pile is at rest; the end does not depend on the order.
extern "C" __global__ void sand_pile(int *grains, int n)
{
    bool toppled = true;
    while (__syncthreads_or(toppled)) {
        toppled = false;
        for (int i = threadIdx.x; i < n * n; i += blockDim.x) {
            int x = i % n, y = i / n, many = atomicAdd(&grains[i], 0) / 4;
            if (many == 0) continue;
            toppled = true;
            atomicSub(&grains[i], 4 * many);
            if (x > 0) atomicAdd(&grains[i - 1], many);
            if (x < n - 1) atomicAdd(&grains[i + 1], many);
            if (y > 0) atomicAdd(&grains[i - n], many);
            if (y < n - 1) atomicAdd(&grains[i + n], many);
        }
    }
}

__device__ double3 lorenz_slope(double3 p)
{
    return make_double3(10 * (p.y - p.x), p.x * (28 - p.z) - p.y, p.x * p.y - 8.0 / 3 * p.z);
}

__device__ double3 moved(double3 p, double3 slope, double by)
{
    return make_double3(p.x + by * slope.x, p.y + by * slope.y, p.z + by * slope.z);
}

// Lorenz's attractor by Runge's and Kutta's method of the fourth order.
extern "C" __global__ void lorenz(double3 *points, int steps, double step)
{
    double3 p = points[position()];
    while (steps--) {
        double3 a = lorenz_slope(p), b = lorenz_slope(moved(p, a, step / 2));
        double3 c = lorenz_slope(moved(p, b, step / 2)), d = lorenz_slope(moved(p, c, step));
        p = moved(moved(moved(moved(p, a, step / 6), b, step / 3), c, step / 3), d, step / 6);
    }
    points[position()] = p;
}

__device__ double sum_over_block(double x)
{
    __shared__ double sums[2];
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    return sums[0] + sums[1];
}

// Conjugate gradients for 64 unknowns; the matrix is in compressed rows.
extern "C" __global__ void conjugate_gradients(const int *begins, const int *columns, const double *values,
                                               const double *right, double *x, int *rounds)
{
    __shared__ double direction[64];
    int t = threadIdx.x, count = 0;
    double r = right[t], mine = 0, length = sum_over_block(r * r), limit = 1e-24 * length;
    direction[t] = r;
    for (; length > limit && count < 200; ++count) {
        __syncthreads();
        double applied = 0;
        for (int at = begins[t]; at < begins[t + 1]; ++at) applied += values[at] * direction[columns[at]];
        double alpha = length / sum_over_block(applied * direction[t]);
        mine += alpha * direction[t];
        r -= alpha * applied;
        double next = sum_over_block(r * r);
        direction[t] = r + next / length * direction[t];
        length = next;
    }
    x[t] = mine;
    if (t == 0) *rounds = count;
}

// Gauss's elimination with pivots, a system of six equations for each thread, in local memory.
extern "C" __global__ void eliminate(const double *systems, double *solutions)
{
    double a[6][7];
    for (int k = 0; k < 42; ++k) a[k / 7][k % 7] = systems[42 * position() + k];
    for (int k = 0; k < 6; ++k) {
        int pivot = k;
        for (int row = k + 1; row < 6; ++row) pivot = fabs(a[row][k]) > fabs(a[pivot][k]) ? row : pivot;
        for (int column = k; column < 7; ++column) {
            double kept = a[k][column];
            a[k][column] = a[pivot][column];
            a[pivot][column] = kept;
        }
        for (int row = 0; row < 6; ++row) {
            double factor = row == k ? 0 : a[row][k] / a[k][k];
            for (int column = k; column < 7; ++column) a[row][column] -= factor * a[k][column];
        }
    }
    for (int k = 0; k < 6; ++k) solutions[6 * position() + k] = a[k][6] / a[k][k];
}

// Jacobi's rotations: the eigenvalues of symmetric 4 by 4 matrices, in ascending order.
extern "C" __global__ void eigenvalues(const double *matrices, double *values)
{
    double a[4][4];
    for (int k = 0; k < 16; ++k) a[k / 4][k % 4] = matrices[16 * position() + k];
    for (int sweep = 0; sweep < 8; ++sweep) {
        for (int p = 0; p < 3; ++p) {
            for (int q = p + 1; q < 4; ++q) {
                if (fabs(a[p][q]) < 1e-300) continue;
                double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
                double t = copysign(1.0, theta) / (fabs(theta) + sqrt(theta * theta + 1));
                double c = rsqrt(t * t + 1), s = t * c;
                for (int k = 0; k < 4; ++k) {
                    double left = a[k][p], right = a[k][q];
                    a[k][p] = c * left - s * right, a[k][q] = s * left + c * right;
                }
                for (int k = 0; k < 4; ++k) {
                    double above = a[p][k], below = a[q][k];
                    a[p][k] = c * above - s * below, a[q][k] = s * above + c * below;
                }
            }
        }
    }
    for (int k = 0; k < 4; ++k) {
        int rank = 0;
        for (int j = 0; j < 4; ++j) rank += a[j][j] < a[k][k] || (a[j][j] == a[k][k] && j < k);
        values[4 * position() + rank] = a[k][k];
    }
}

// Householder's reflections: the triangle of a 16 by 8 matrix, a warp for each matrix, a lane for each column.
extern "C" __global__ void triangle_of_reflections(const double *matrices, double *triangles)
{
    __shared__ double a[16][8], reflector[16];
    int column = threadIdx.x;
    for (int row = 0; row < 16; ++row) a[row][column] = matrices[128 * blockIdx.x + 8 * row + column];
    for (int k = 0; k < 8; ++k) {
        __syncthreads();
        double square = 0, length, dot = 0;
        for (int row = k; row < 16; ++row) square += a[row][k] * a[row][k];
        length = -copysign(sqrt(square), a[k][k]);
        double scale = 1 / (square - a[k][k] * length);
        for (int row = k + column; row < 16; row += 8) reflector[row] = a[row][k] - (row == k ? length : 0);
        __syncthreads();
        for (int row = k; row < 16; ++row) dot += reflector[row] * a[row][column];
        for (int row = k; row < 16 && column >= k; ++row) a[row][column] -= scale * dot * reflector[row];
    }
    for (int row = 0; row < 8; ++row)
        triangles[64 * blockIdx.x + 8 * row + column] = row <= column ? a[row][column] : 0;
}

// Simpson's rule, halved again and again where it is not yet good, with a stack of intervals for each thread.
extern "C" __global__ void adaptive_quadrature(const double *powers, double *areas, double tolerance)
{
    double power = powers[position()], stack[40][2], area = 0;
    int depth = 0;
    stack[depth][0] = 0, stack[depth++][1] = 1;
    while (depth) {
        double a = stack[--depth][0], b = stack[depth][1], h = b - a, values[5];
        for (int k = 0; k < 5; ++k) values[k] = pow(a + 0.25 * k * h, power);
        double rough = h / 6 * (values[0] + 4 * values[2] + values[4]);
        double fine = h / 12 * (values[0] + 4 * values[1] + 2 * values[2] + 4 * values[3] + values[4]);
        if (fabs(fine - rough) < 15 * tolerance * h || depth > 37) {
            area += fine + (fine - rough) / 15;
        } else {
            double middle = 0.5 * (a + b);
            stack[depth][0] = a, stack[depth++][1] = middle;
            stack[depth][0] = middle, stack[depth++][1] = b;
        }
    }
    areas[position()] = area;
}
