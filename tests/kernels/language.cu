// What C++ adds: calls of every kind, templates, virtual functions, switches, state that outlives a launch.

typedef unsigned long long u64;

__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// --- calls -----------------------------------------------------------------------------------------------------------

struct Triple { int a; double b; float c[3]; };

__noinline__ __device__ Triple changed(Triple t, int by)
{
    t.a *= by;
    t.b += by;
    t.c[by % 3] = -1;
    return t;
}

extern "C" __global__ void not_inlined(int *ints, double *doubles, float *floats)
{
    int i = position();
    Triple t = {i, 0.5, {1, 2, 3}};
    Triple u = i % 2 ? changed(t, i) : changed(changed(t, 2), i + 1);
    ints[i] = u.a;
    doubles[i] = u.b;
    floats[i] = u.c[0] * 100 + u.c[1] * 10 + u.c[2];
}

__noinline__ __device__ int ackermann(int m, int n)
{
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

__noinline__ __device__ bool odd(unsigned n);
__noinline__ __device__ bool even(unsigned n) { return n == 0 || odd(n - 1); }
__noinline__ __device__ bool odd(unsigned n) { return n != 0 && even(n - 1); }

extern "C" __global__ void recursion(int *out, bool *parity)
{
    int i = position();
    out[i] = ackermann(i % 3, i / 8 % 4);
    parity[i] = even(i % 11);
}

typedef float (*Function)(float, float);
__device__ float plus(float a, float b) { return a + b; }
__device__ float minus(float a, float b) { return a - b; }
__device__ float product(float a, float b) { return a * b; }
__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ Function functions[4] = {plus, minus, product, larger};

extern "C" __global__ void function_pointers(const int *which, const float *x, float *out)
{
    int i = position();
    Function chosen = functions[which[i]];
    out[i] = chosen(x[i], functions[3 - which[i]](x[i], 2));
}

struct Shape
{
    __device__ virtual ~Shape() {}
    __device__ virtual double area() const = 0;
    __device__ virtual int corners() const { return 4; }
};
struct Square : Shape
{
    double side;
    __device__ Square(double side) : side(side) {}
    __device__ double area() const override { return side * side; }
};
struct Triangle : Shape
{
    double base, height;
    __device__ Triangle(double base, double height) : base(base), height(height) {}
    __device__ double area() const override { return base * height / 2; }
    __device__ int corners() const override { return 3; }
};

extern "C" __global__ void virtual_calls(const double *x, double *areas, int *corners)
{
    int i = position();
    Square square(x[i]);
    Triangle triangle(x[i], i);
    const Shape *shape = i % 3 ? (const Shape *)&triangle : &square;
    areas[i] = shape->area();
    corners[i] = shape->corners();
}

template <typename Operation>
__device__ void each(int *values, int n, Operation operation)
{
    for (int k = 0; k < n; ++k) values[k] = operation(values[k], k);
}

extern "C" __global__ void lambdas(int *out, int factor)
{
    int i = position(), seen = 0;
    int values[6] = {1, 2, 3, 4, 5, 6};
    each(values, 6, [=](int v, int k) { return v * factor + i * k; });
    each(values, 6, [&](int v, int k) { seen += v; return v - k; });
    out[2 * i] = seen;
    out[2 * i + 1] = values[i % 6];
}

// --- templates -------------------------------------------------------------------------------------------------------

namespace math
{
template <int N>
struct Factorial { static const u64 value = N * Factorial<N - 1>::value; };
template <>
struct Factorial<0> { static const u64 value = 1; };

template <typename T, int N>
__global__ void polynomial(const T *x, T *out, T scale)
{
    int i = position();
    T sum = 0;
#pragma unroll
    for (int k = N; k >= 0; --k) sum = sum * x[i] + T(k + 1);
    out[i] = sum * scale + T(Factorial<N>::value % 100);
}
}

template <typename... Numbers>
__device__ long long total(Numbers... numbers) { return (0 + ... + (long long)numbers); }

template <typename T>
__global__ void variadic(const T *x, long long *out)
{
    int i = position();
    if constexpr (sizeof(T) == 1) out[i] = total(x[i], 1000000007, 'a');
    else out[i] = total(x[i], x[i] * 2, (short)-5, 1ll << 40);
}

// --- control ---------------------------------------------------------------------------------------------------------

// Dense cases, so that the compiler writes a table of jumps.
extern "C" __global__ void switch_table(const int *op, const int *x, int *out)
{
    int i = position(), r = x[i];
    switch (op[i]) {
    case 0: r += out[i]; break;
    case 1: r *= 7; break;
    case 2: r = -r; break;
    case 3: r <<= 2;
    case 4: r ^= 0x55; break;
    case 5: while (r > 100) r /= 3; break;
    case 6: r = r % 13; break;
    case 7: r = out[(i * 3) % 64]; break;
    case 8: for (int k = 0; k < i % 5; ++k) r += k * k; break;
    case 9: r |= 0x700; break;
    case 10: return;
    case 11: r = __popc(r); break;
    default: r = -1;
    }
    out[64 + i] = r;
}

// A machine for small programs: accumulate, jump, loop, stop.
extern "C" __global__ void interpreter(const int2 *program, int length, const int *inputs, int *outputs)
{
    int i = position(), registers[4] = {inputs[i], 0, 1, 0};
    for (int at = 0, steps = 0; at < length && steps < 500; ++steps) {
        int2 instruction = program[at++];
        int a = instruction.y & 3, b = instruction.y >> 2 & 3, value = instruction.y >> 4;
        switch (instruction.x) {
        case 0: registers[a] = value; break;
        case 1: registers[a] += registers[b]; break;
        case 2: registers[a] -= registers[b]; break;
        case 3: registers[a] *= registers[b]; break;
        case 4: if (registers[a] != 0) at = value; break;
        case 5: if (registers[a] < registers[b]) at = value; break;
        case 6: registers[a] = registers[b]; break;
        case 7: at = length; break;
        }
    }
    outputs[i] = registers[3];
}

// Loops left from the middle, in ways that no loop construct has.
extern "C" __global__ void tangled(const unsigned *x, int *out)
{
    int i = position(), count = 0;
    unsigned v = x[i];
again:
    if (v % 7 == 3) goto inside;
    while (v > 1) {
        v = v % 2 ? v * 3 + 1 : v / 2;
inside:
        if (++count > 60) goto done;
        if (v % 11 == 5) {
            v += 2;
            goto again;
        }
        for (int k = 0; k < 3; ++k) {
            if (v == 4) goto done;
            if (k == 1 && v % 5 == 0) break;
            count += k;
        }
    }
    count += 1000;
done:
    out[i] = count;
}

// --- memory of the module --------------------------------------------------------------------------------------------

__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__constant__ struct { char name[6]; double weight; } elements[3] = {
    {"iron", 55.845}, {"gold", 196.967}, {"neon", 20.18},
};
__device__ int launches = 100;
__device__ double table[4] = {0.5, 0.25};
__device__ int *where = &launches;

extern "C" __global__ void constants(int *out, double *weights)
{
    int i = position();
    out[i] = primes[i % 8] * primes[(i * 5 + 3) % 8] + elements[i % 3].name[i % 4];
    weights[i] = elements[(i + 1) % 3].weight + table[i % 4];
}

// Adds to a variable of the module, through a pointer that is one too.
extern "C" __global__ void remember(int by) { atomicAdd(where, by); }
extern "C" __global__ void recall(int *out) { *out = launches; launches = 100; }

union Bits { float single; unsigned natural; unsigned char bytes[4]; };
struct Packed { unsigned low : 5; int middle : 11; unsigned high : 16; };

extern "C" __global__ void bit_fields(const unsigned *x, unsigned *out, float *floats)
{
    int i = position();
    Bits bits;
    bits.natural = x[i];
    bits.bytes[3] = (bits.bytes[3] & 0x80) | 0x3f;
    floats[i] = bits.single;
    Packed p = {x[i] & 31, (int)(x[i] >> 5 & 2047), x[i] >> 16};
    p.high += 3;
    p.middle -= 1;
    out[2 * i] = p.low + 100 * p.high;
    out[2 * i + 1] = (unsigned)p.middle;
}

extern "C" __global__ void holds_what_it_asserts(const int *x, int *out)
{
    int i = position();
    assert(x[i] >= 0 && "only natural numbers");
    out[i] = x[i] + 1;
}

// Every thread takes memory from the heap of the device, builds a list in it, and gives it back.
struct Node { int value; Node *next; };

extern "C" __global__ void linked_lists(int *out)
{
    int i = position(), sum = 0;
    Node *head = nullptr;
    for (int k = 0; k <= i % 7; ++k) {
        Node *node = (Node *)malloc(sizeof(Node));
        if (!node) { sum = -1000000; break; }
        *node = Node{k * i, head};
        head = node;
    }
    for (int weight = 1; head; ++weight) {
        sum += weight * head->value;
        Node *next = head->next;
        free(head);
        head = next;
    }
    out[i] = sum;
}
