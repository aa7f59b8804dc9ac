// Graphs in compressed rows, and structures that many threads change at once.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// One level of a breadth-first search: the vertices of this level put unseen neighbours into the next.
extern "C" __global__ void next_level(const int *begins, const int *ends, int *levels, int level, int n)
{
    int v = position();
    if (v >= n || *(volatile int *)&levels[v] != level) return;
    for (int at = begins[v]; at < begins[v + 1]; ++at) atomicCAS(&levels[ends[at]], -1, level + 1);
}

// Bellman's and Ford's shortest paths by one block, until a round changes nothing.
extern "C" __global__ void shortest_paths(const int *begins, const int *ends, const int *weights, int *distances, int n,
                                          int *rounds)
{
    int changed, count = 0;
    do {
        changed = 0;
        for (int v = threadIdx.x; v < n; v += blockDim.x) {
            int mine = atomicAdd(&distances[v], 0);
            if (mine == 0x7fffffff) continue;
            for (int at = begins[v]; at < begins[v + 1]; ++at)
                changed |= atomicMin(&distances[ends[at]], mine + weights[at]) > mine + weights[at];
        }
        ++count;
    } while (__syncthreads_or(changed));
    if (threadIdx.x == 0) *rounds = count;
}

// Floyd's and Warshall's distances between all of 32 vertices, in shared memory.
extern "C" __global__ void all_distances(float *distances)
{
    __shared__ float d[32][33];
    int row = threadIdx.y, column = threadIdx.x;
    d[row][column] = distances[row * 32 + column];
    d[row + 16][column] = distances[(row + 16) * 32 + column];
    for (int k = 0; k < 32; ++k) {
        __syncthreads();
        for (int r = row; r < 32; r += 16) d[r][column] = fminf(d[r][column], d[r][k] + d[k][column]);
    }
    distances[row * 32 + column] = d[row][column];
    distances[(row + 16) * 32 + column] = d[row + 16][column];
}

__device__ int root_of(int *parents, int v)
{
    int parent = atomicAdd(&parents[v], 0);
    while (parent != v) {
        int above = atomicAdd(&parents[parent], 0);
        atomicCAS(&parents[v], parent, above);
        v = parent;
        parent = above;
    }
    return v;
}

// A forest of sets, a thread for each edge: the higher root is hung below the lower one, whoever comes first.
extern "C" __global__ void union_find(const int2 *edges, int n, int *parents)
{
    int i = position();
    if (i >= n) return;
    int a = edges[i].x, b = edges[i].y;
    while ((a = root_of(parents, a)) != (b = root_of(parents, b))) {
        int high = max(a, b), low = min(a, b);
        if (atomicCAS(&parents[high], high, low) == high) break;
    }
}

extern "C" __global__ void flatten_sets(int *parents, int n)
{
    int i = position();
    if (i < n) atomicExch(&parents[i], root_of(parents, i));
}

// A step of the random surfer: each page gathers what the pages that point to it give.
extern "C" __global__ void page_rank(const int *begins, const int *from, const double *shares, const double *ranks,
                                     double *next, double damping, int n)
{
    int v = position();
    if (v >= n) return;
    double sum = 0;
    for (int at = begins[v]; at < begins[v + 1]; ++at) sum += ranks[from[at]] * shares[from[at]];
    next[v] = (1 - damping) / n + damping * sum;
}

// Triangles: a warp for each vertex of 64, whose rows are sets of bits; every triangle is seen six times.
extern "C" __global__ void triangles(const u64 *rows, u32 *count)
{
    int vertex = position() / 32, lane = threadIdx.x % 32;
    u32 mine = 0;
    for (int other = lane; other < 64; other += 32)
        if (rows[vertex] >> other & 1) mine += __popcll(rows[vertex] & rows[other]);
    for (int step = 16; step; step /= 2) mine += __shfl_down_sync(0xffffffffu, mine, step);
    if (lane == 0) atomicAdd(count, mine);
}

// Jones' and Plassmann's colours: who has the highest rank among its uncoloured neighbours takes the least free colour.
extern "C" __global__ void colours(const int *begins, const int *ends, const int *ranks, volatile int *colours, int n)
{
    int v = threadIdx.x;
    bool waiting = v < n;
    while (__syncthreads_or(waiting)) {
        bool first = waiting;
        u32 used = 0;
        for (int at = waiting ? begins[v] : 0; at < (waiting ? begins[v + 1] : 0); ++at) {
            int colour = colours[ends[at]];
            if (colour < 0) first &= ranks[v] > ranks[ends[at]];
            else used |= 1u << colour;
        }
        __syncthreads();
        if (first) {
            colours[v] = __ffs(~used) - 1;
            waiting = false;
        }
    }
}

__device__ u32 scattered(u32 x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

#define FREE 0xffffffffu

// A table with open addresses: the first to write a key owns its place, everyone counts there.
extern "C" __global__ void count_keys(const u32 *keys, int n, u32 *table, u32 *counts, u32 size)
{
    int i = position();
    if (i >= n) return;
    for (u32 at = scattered(keys[i]) % size;; at = (at + 1) % size) {
        u32 found = atomicCAS(&table[at], FREE, keys[i]);
        if (found != FREE && found != keys[i]) continue;
        atomicAdd(&counts[at], 1);
        return;
    }
}

extern "C" __global__ void look_up(const u32 *wanted, int n, const u32 *table, const u32 *counts, u32 size, u32 *found)
{
    int i = position();
    if (i >= n) return;
    u32 at = scattered(wanted[i]) % size;
    while (table[at] != FREE && table[at] != wanted[i]) at = (at + 1) % size;
    found[i] = table[at] == FREE ? 0 : counts[at];
}

// Bloom's filter: three bits for each key.
extern "C" __global__ void bloom_filter(const u32 *keys, u32 *bits, u32 size)
{
    u32 hash = scattered(keys[position()]), step = scattered(hash) | 1;
    for (int k = 0; k < 3; ++k, hash += step) atomicOr(&bits[hash % size / 32], 1u << hash % size % 32);
}

// Treiber's stack: the head holds a node and a number that changes with every push, so that no swap is mistaken.
extern "C" __global__ void stack_of_nodes(u64 *head, int *nexts, int *popped, int *count)
{
    int mine = position() + 1;
    u64 old = atomicAdd(head, 0), next;
    do {
        next = old;
        atomicExch(&nexts[mine], (int)(u32)old);
        __threadfence();
        old = atomicCAS(head, next, ((next >> 32) + 1) << 32 | mine);
    } while (old != next);
    if (mine % 2) return;
    old = atomicAdd(head, 0);
    do {
        next = old;
        if (!(u32)next) return;
        int below = atomicAdd(&nexts[(u32)next], 0);
        old = atomicCAS(head, next, ((next >> 32) + 1) << 32 | (u32)below);
    } while (old != next);
    popped[atomicAdd(count, 1)] = (u32)next;
}

// A ring that half of the blocks fill and the other half empty; a place's turn says whose it is next.
extern "C" __global__ void ring(u32 *turns, int *places, u32 *heads, int size, int each, int *out)
{
    bool producer = blockIdx.x % 2 == 0;
    for (int k = 0; k < each; ++k) {
        u32 ticket = atomicAdd(&heads[producer], 1), lap = ticket / size, at = ticket % size;
        while (atomicAdd(&turns[at], 0) != 2 * lap + !producer) {}
        __threadfence();
        if (producer) atomicExch(&places[at], (int)ticket * 3 + 1);
        else out[ticket] = atomicAdd(&places[at], 0);
        __threadfence();
        atomicAdd(&turns[at], 1);
    }
}

// A heap of the largest values in local memory, and then the largest of all threads, one after the other.
extern "C" __global__ void largest(const int *x, int each, int *out)
{
    __shared__ u64 best;
    int heap[8], count = 0;
    for (int k = 0; k < each; ++k) {
        int value = x[threadIdx.x * each + k], at;
        if (count < 8) {
            for (at = count++; at && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
        } else {
            if (value <= heap[0]) continue;
            at = 0;
            for (int child; (child = 2 * at + 1) < 8; at = child) {
                if (child + 1 < 8 && heap[child + 1] < heap[child]) ++child;
                if (heap[child] >= value) break;
                heap[at] = heap[child];
            }
        }
        heap[at] = value;
    }
    for (int k = 0; k < 8; ++k) {
        int place = 0;
        for (int j = 1; j < 8; ++j) place = heap[j] > heap[place] ? j : place;
        if (threadIdx.x == 0) best = 0;
        __syncthreads();
        u64 mine = (u64)(u32)(heap[place] ^ 0x80000000) << 32 | threadIdx.x << 8 | place;
        atomicMax(&best, mine);
        __syncthreads();
        if (best == mine) heap[place] = -2147483647 - 1;
        if (threadIdx.x == 0) out[k] = (int)(best >> 32) ^ 0x80000000;
        __syncthreads();
    }
}

// Many readers or one writer: readers add 1 to the lock, a writer takes it from 0 to the highest bit.
extern "C" __global__ void readers_and_writers(u32 *lock, volatile int *pair, int *torn, int each)
{
    bool writer = threadIdx.x == 0;
    int wrong = 0;
    for (int k = 0; k < each; ++k) {
        for (bool done = false; !done;) {
            if (writer && atomicCAS(lock, 0, 0x80000000u) == 0) {
                __threadfence();
                pair[0] += 1;
                pair[1] -= 1;
                __threadfence();
                atomicAnd(lock, 0x7fffffffu);
                done = true;
            } else if (!writer) {
                if (!(atomicAdd(lock, 1) & 0x80000000u)) {
                    __threadfence();
                    wrong += pair[0] + pair[1] != 0;
                    done = true;
                }
                __threadfence();
                atomicSub(lock, 1);
            }
        }
    }
    atomicAdd(torn, wrong);
}
