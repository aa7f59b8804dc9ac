// Digests, ciphers and codes: words of 32 and 64 bits, bytes, tables, and threads that take very different ways.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u32 rotate(u32 x, int by) { return __funnelshift_l(x, x, by); }
__device__ u64 rotate(u64 x, int by) { return by ? x << by | x >> (64 - by) : x; }
__device__ int position() { return blockIdx.x * blockDim.x + threadIdx.x; }

// RFC 1321. A thread for each message of at most 55 bytes, so that it fits into one block with its length.
extern "C" __global__ void md5(const u8 *messages, const int *lengths, u32 *digests, const u32 *sines)
{
    const int turns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    int i = position(), length = lengths[i];
    u32 w[16] = {};
    for (int k = 0; k < length; ++k) w[k / 4] |= (u32)messages[56 * i + k] << 8 * (k % 4);
    w[length / 4] |= 0x80u << 8 * (length % 4);
    w[14] = 8 * length;
    u32 a = 0x67452301, b = 0xefcdab89, c = 0x98badcfe, d = 0x10325476;
    for (int k = 0; k < 64; ++k) {
        u32 f;
        int g;
        switch (k / 16) {
        case 0: f = (b & c) | (~b & d), g = k; break;
        case 1: f = (d & b) | (~d & c), g = 5 * k + 1; break;
        case 2: f = b ^ c ^ d, g = 3 * k + 5; break;
        default: f = c ^ (b | ~d), g = 7 * k;
        }
        f += a + sines[k] + w[g % 16];
        a = d, d = c, c = b;
        b += rotate(f, turns[k / 16][k % 4]);
    }
    u32 *mine = digests + 4 * i;
    mine[0] = a + 0x67452301, mine[1] = b + 0xefcdab89, mine[2] = c + 0x98badcfe, mine[3] = d + 0x10325476;
}

// FIPS 202: SHA3-256 of messages of 64 bytes. The constants of the rounds come out of the shift register themselves.
extern "C" __global__ void sha3(const u64 *messages, u64 *digests)
{
    int i = position();
    u64 s[25] = {};
    for (int k = 0; k < 8; ++k) s[k] = messages[8 * i + k];
    s[8] = 6;
    s[16] = 1ull << 63;
    u32 shifting = 1;
    for (int round = 0; round < 24; ++round) {
        u64 sums[5], old = s[1];
        for (int x = 0; x < 5; ++x) sums[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
        for (int x = 0; x < 25; ++x) s[x] ^= sums[(x + 4) % 5] ^ rotate(sums[(x + 1) % 5], 1);
        old = s[1];
        for (int step = 0, x = 1, y = 0; step < 24; ++step) {
            int next = (2 * x + 3 * y) % 5;
            x = y, y = next;
            u64 kept = s[x + 5 * y];
            s[x + 5 * y] = rotate(old, (step + 1) * (step + 2) / 2 % 64);
            old = kept;
        }
        for (int y = 0; y < 25; y += 5) {
            u64 row[5];
            for (int x = 0; x < 5; ++x) row[x] = s[y + x];
            for (int x = 0; x < 5; ++x) s[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        for (int bit = 0; bit < 7; ++bit) {
            if (shifting & 1) s[0] ^= 1ull << ((1 << bit) - 1);
            shifting = shifting << 1 ^ (shifting >> 7) * 0x171;
        }
    }
    for (int k = 0; k < 4; ++k) digests[4 * i + k] = s[k];
}

// RFC 8439: four lanes work on one block of the key stream, a column each, and shift rows between them.
extern "C" __global__ void chacha20(const u32 *key, const u32 *nonce, const u32 *text, u32 *out)
{
    const u32 constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, ALL = 0xffffffffu;
    int column = threadIdx.x % 4, counter = position() / 4;
    u32 first[4] = {constants[column], key[column], key[4 + column], column ? nonce[column - 1] : (u32)counter}, s[4];
    for (int k = 0; k < 4; ++k) s[k] = first[k];
    for (int half = 0; half < 20; ++half) {
        s[0] += s[1], s[3] = rotate(s[3] ^ s[0], 16);
        s[2] += s[3], s[1] = rotate(s[1] ^ s[2], 12);
        s[0] += s[1], s[3] = rotate(s[3] ^ s[0], 8);
        s[2] += s[3], s[1] = rotate(s[1] ^ s[2], 7);
        int to_diagonals = half % 2 ? -1 : 1;
        for (int k = 1; k < 4; ++k) s[k] = __shfl_sync(ALL, s[k], column + to_diagonals * k + 4, 4);
    }
    text += 16 * counter + column, out += 16 * counter + column;
    for (int k = 0; k < 4; ++k) out[4 * k] = (s[k] + first[k]) ^ text[4 * k];
}

__device__ u8 doubled(u8 x) { return x << 1 ^ (x >> 7) * 0x1b; }

__device__ u8 field_product(u8 x, u8 y)
{
    u8 product = 0;
    for (; y; y >>= 1, x = doubled(x)) product ^= y & 1 ? x : 0;
    return product;
}

// FIPS 197: AES-128, a block of 16 bytes for each thread; the block of threads computes the table of substitutions.
extern "C" __global__ void aes128(const u8 *key, const u8 *text, u8 *cipher)
{
    __shared__ u8 box[256];
    for (int x = threadIdx.x; x < 256; x += blockDim.x) {
        u8 inverse = 1, square = x;
        for (int k = 1; k < 8; ++k) inverse = field_product(inverse, square = field_product(square, square));
        u32 twice = inverse | inverse << 8;
        box[x] = twice ^ twice >> 4 ^ twice >> 5 ^ twice >> 6 ^ twice >> 7 ^ 0x63;
    }
    __syncthreads();
    u8 k[16], s[16], constant = 1;
    for (int j = 0; j < 16; ++j) s[j] = text[16 * position() + j] ^ (k[j] = key[j]);
    for (int round = 1; round <= 10; ++round, constant = doubled(constant)) {
        u8 moved[16];
        for (int j = 0; j < 16; ++j) moved[j] = box[s[(j + 4 * (j % 4)) % 16]];
        for (int j = 0; j < 4; ++j) k[j] ^= box[k[12 + (j + 1) % 4]] ^ (j ? 0 : constant);
        for (int j = 4; j < 16; ++j) k[j] ^= k[j - 4];
        for (int j = 0; j < 16; ++j) {
            const u8 *column = moved + j / 4 * 4;
            u8 one = column[j % 4], two = column[(j + 1) % 4], all = column[0] ^ column[1] ^ column[2] ^ column[3];
            s[j] = k[j] ^ (round < 10 ? one ^ all ^ doubled(one ^ two) : one);
        }
    }
    for (int j = 0; j < 16; ++j) cipher[16 * position() + j] = s[j];
}

// RFC 1950: each thread sums a stretch, and the sums are put together as if the bytes had come one by one.
extern "C" __global__ void adler32(const u8 *bytes, int n, int each, u32 *out)
{
    __shared__ u64 plain[128], weighted[128];
    u64 a = 0, b = 0;
    int first = threadIdx.x * each;
    for (int i = first; i < min(n, first + each); ++i) a += bytes[i], b += (u64)bytes[i] * (n - i);
    plain[threadIdx.x] = a, weighted[threadIdx.x] = b;
    for (int half = 64; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            plain[threadIdx.x] += plain[threadIdx.x + half];
            weighted[threadIdx.x] += weighted[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) *out = (u32)((weighted[0] + n) % 65521) << 16 | (u32)((plain[0] + 1) % 65521);
}

__constant__ char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// RFC 4648: three bytes become four characters; what is missing at the end is marked.
extern "C" __global__ void base64(const u8 *bytes, int n, uchar4 *out)
{
    int i = position(), first = 3 * i;
    if (first >= n) return;
    bool second = first + 1 < n, third = first + 2 < n;
    u32 word = bytes[first] << 16 | (second ? bytes[first + 1] << 8 : 0) | (third ? bytes[first + 2] : 0);
    out[i] = make_uchar4(ALPHABET[word >> 18], ALPHABET[word >> 12 & 63], second ? ALPHABET[word >> 6 & 63] : '=',
                         third ? ALPHABET[word & 63] : '=');
}

// Lempel and Ziv's method: bytes as they are, or copies of what came before, which may overlap themselves.
extern "C" __global__ void unpack_copies(const u8 *packed, const int *begins, u8 *out, int size)
{
    int i = position();
    u8 *mine = out + i * size;
    int at = 0;
    for (const u8 *code = packed + begins[i]; code < packed + begins[i + 1];) {
        int count = *code++;
        if (count < 128) {
            while (count--) mine[at++] = *code++;
            continue;
        }
        int back = *code++;
        for (count -= 128; count--; ++at) mine[at] = mine[at - back];
    }
}

// A prefix code as a table of nodes: a positive child is a node, any other the negative of a symbol.
extern "C" __global__ void unpack_prefix_code(const u32 *bits, const int *begins, const int2 *nodes, u8 *out, int each)
{
    int i = position(), at = begins[i];
    for (int k = 0; k < each; ++k) {
        int node = 0;
        do {
            int2 children = nodes[node];
            node = bits[at / 32] >> at % 32 & 1 ? children.y : children.x;
            ++at;
        } while (node > 0);
        out[i * each + k] = -node;
    }
}

// Runs of equal bytes become their lengths: a thread that begins a run counts the beginnings before its own.
extern "C" __global__ void run_lengths(const u8 *x, int n, u8 *values, int *lengths, int *count)
{
    __shared__ int before[257];
    int t = threadIdx.x;
    bool begins = t < n && (t == 0 || x[t] != x[t - 1]);
    int mine = begins;
    for (int step = 1; step < 256; step *= 2) {
        before[t] = mine;
        __syncthreads();
        if (t >= step) mine += before[t - step];
        __syncthreads();
    }
    int *first = before;
    if (begins) first[mine - 1] = t;
    if (t == 255) first[*count = mine] = n;
    __syncthreads();
    if (begins) {
        values[mine - 1] = x[t];
        lengths[mine - 1] = first[mine] - t;
    }
}

// Points along Hilbert's curve of the order 5, from their numbers.
extern "C" __global__ void hilbert(int2 *places)
{
    int i = position(), x = 0, y = 0;
    for (int side = 1, rest = i; side < 32; side *= 2, rest /= 4) {
        int right = rest / 2 & 1, up = (rest ^ right) & 1;
        if (!up) {
            if (right) x = side - 1 - x, y = side - 1 - y;
            int kept = x;
            x = y, y = kept;
        }
        x += side * right, y += side * up;
    }
    places[i] = make_int2(x, y);
}
