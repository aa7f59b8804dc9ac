// Sorting and searching.

// A block sorts as many keys as it has threads, twice over.
extern "C" __global__ void bitonic_sort(float *keys)
{
    __shared__ float s[512];
    int t = threadIdx.x;
    s[t] = keys[blockIdx.x * 512 + t];
    s[t + 256] = keys[blockIdx.x * 512 + t + 256];
    for (int size = 2; size <= 512; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            __syncthreads();
            int low = 2 * t - (t & (step - 1)), high = low + step;
            bool ascending = (low & size) == 0;
            if ((s[low] > s[high]) == ascending) {
                float kept = s[low];
                s[low] = s[high];
                s[high] = kept;
            }
        }
    __syncthreads();
    keys[blockIdx.x * 512 + t] = s[t];
    keys[blockIdx.x * 512 + t + 256] = s[t + 256];
}

// Neighbours are exchanged, pairs of even and of odd places in turn, until nothing changes.
extern "C" __global__ void odd_even_sort(int *keys, int n, int *rounds)
{
    extern __shared__ int s[];
    int t = threadIdx.x, round = 0;
    for (int i = t; i < n; i += blockDim.x) s[i] = keys[i];
    __syncthreads();
    for (bool changed = true; changed; ++round) {
        changed = false;
        for (int parity = 0; parity < 2; ++parity) {
            int i = 2 * t + parity;
            if (i + 1 < n && s[i] > s[i + 1]) {
                int kept = s[i];
                s[i] = s[i + 1];
                s[i + 1] = kept;
                changed = true;
            }
            __syncthreads();
        }
        changed = __syncthreads_or(changed);
    }
    for (int i = t; i < n; i += blockDim.x) keys[i] = s[i];
    if (t == 0) *rounds = round;
}

// Radix sort, one bit a step: zeros keep their order, and so do ones behind them.
extern "C" __global__ void radix_sort(unsigned *keys, unsigned *places)
{
    __shared__ unsigned s[256], from[256];
    __shared__ int ones_before[257];
    int t = threadIdx.x;
    unsigned key = keys[t], place = t;
    for (int bit = 0; bit < 32; ++bit) {
        int one = key >> bit & 1;
        ones_before[t + 1] = one;
        if (t == 0) ones_before[0] = 0;
        for (int step = 1; step < 257; step *= 2) {
            __syncthreads();
            int other = t + 1 >= step ? ones_before[t + 1 - step] : 0;
            __syncthreads();
            ones_before[t + 1] += other;
        }
        __syncthreads();
        int before = ones_before[t], zeros = 256 - ones_before[256];
        int target = one ? zeros + before : t - before;
        s[target] = key;
        from[target] = place;
        __syncthreads();
        key = s[t];
        place = from[t];
        __syncthreads();
    }
    keys[t] = key;
    places[t] = place;
}

// Each thread finds the place of its key among all others; equal keys keep their order.
extern "C" __global__ void rank_sort(const double *keys, double *sorted, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double mine = keys[i];
    int rank = 0;
    for (int k = 0; k < n; ++k) rank += keys[k] < mine || (keys[k] == mine && k < i);
    sorted[rank] = mine;
}

extern "C" __global__ void binary_search(const long long *sorted, int n, const long long *wanted, int *lower,
                                         int *upper, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    for (int side = 0; side < 2; ++side) {
        int begin = 0, end = n;
        while (begin < end) {
            int middle = (begin + end) / 2;
            bool right = side ? sorted[middle] <= wanted[i] : sorted[middle] < wanted[i];
            if (right) begin = middle + 1;
            else end = middle;
        }
        (side ? upper : lower)[i] = begin;
    }
}

// Quicksort with a stack of its own in local memory; each thread sorts a row.
extern "C" __global__ void quicksort(int *rows, int n)
{
    int *row = rows + (blockIdx.x * blockDim.x + threadIdx.x) * n;
    int stack[64], top = 0;
    stack[top++] = 0;
    stack[top++] = n - 1;
    while (top) {
        int high = stack[--top], low = stack[--top];
        if (low >= high) continue;
        int pivot = row[(low + high) / 2], i = low, j = high;
        while (i <= j) {
            while (row[i] < pivot) ++i;
            while (row[j] > pivot) --j;
            if (i <= j) {
                int kept = row[i];
                row[i++] = row[j];
                row[j--] = kept;
            }
        }
        // The larger part first, so that the stack stays small.
        bool left_larger = j - low > high - i;
        stack[top++] = left_larger ? low : i;
        stack[top++] = left_larger ? j : high;
        stack[top++] = left_larger ? i : low;
        stack[top++] = left_larger ? high : j;
    }
}

// Two sorted rows become one: a thread finds by bisection how many values of each row come before its own stretch.
extern "C" __global__ void merge(const int *a, int m, const int *b, int n, int *out, int each)
{
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
    if (first >= m + n) return;
    int low = max(0, first - n), high = min(first, m);
    while (low < high) {
        int middle = (low + high) / 2;
        if (a[middle] <= b[first - 1 - middle]) low = middle + 1;
        else high = middle;
    }
    int i = low, j = first - low;
    for (int k = first; k < min(first + each, m + n); ++k)
        out[k] = j >= n || (i < m && a[i] <= b[j]) ? a[i++] : b[j++];
}
