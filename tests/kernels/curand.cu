// The device side of cuRAND: numbers that each thread draws from a generator of its own.

#include <curand_kernel.h>

typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Each thread draws from a subsequence of its own: bits, then uniform numbers, then normal ones.
template <class State>
__global__ void draws(u64 seed, u64 offset, unsigned *bits, float *uniform, float *normal, int count)
{
    int i = position();
    State state;
    curand_init(seed, i, offset, &state);
    for (int k = 0; k < count; ++k) bits[i * count + k] = curand(&state);
    for (int k = 0; k < count; ++k) uniform[i * count + k] = curand_uniform(&state);
    for (int k = 0; k < count; ++k) normal[i * count + k] = curand_normal(&state);
}

// States in memory, from which several launches draw.
template <class State>
__global__ void seeded(u64 seed, State *states) { curand_init(seed, position(), 0, &states[position()]); }

template <class State>
__global__ void continued(State *states, unsigned *bits, int first, int count, int stride)
{
    State state = states[position()];
    for (int k = 0; k < count; ++k) bits[position() * stride + first + k] = curand(&state);
    states[position()] = state;
}

// Four at a time, doubles, and the whole numbers that a Poisson process counts.
extern "C" __global__ void philox_forms(u64 seed, uint4 *four, double *uniform, unsigned *counts, float mean)
{
    int i = position();
    curandStatePhilox4_32_10_t state;
    curand_init(seed, i, 0, &state);
    four[i] = curand4(&state);
    for (int k = 0; k < 4; ++k) uniform[i * 4 + k] = curand_uniform_double(&state);
    for (int k = 0; k < 4; ++k) counts[i * 4 + k] = curand_poisson(&state, mean);
}

// An estimate of pi: how many of a thread's points are inside of the circle.
extern "C" __global__ void points_in_circle(u64 seed, int points, unsigned *inside)
{
    curandStateXORWOW_t state;
    curand_init(seed, position(), 0, &state);
    unsigned found = 0;
    for (int k = 0; k < points; ++k) {
        float x = curand_uniform(&state), y = curand_uniform(&state);
        found += x * x + y * y <= 1.0f;
    }
    atomicAdd(inside, found);
}
