// Integers of a range, and choices.

// Lemire, "Fast random integer generation in an interval", 2019: all numbers are equally likely. A span of 0 is 2^64.
extern "C" __global__ void philox_integers(void *out, u64 count, u64 key, u64 position, u32 bytes, u64 lowest, u64 span)
{
    u64 least = span ? (0 - span) % span : 0;
    by_pairs(out, count, key, position, bytes, INTEGERS, [=](u64 element, u32 low, u32 high) {
        u64 bits = joined(low, high);
        for (u32 attempt = 1; bits * span < least; ++attempt) {
            Words words = block(key, element, attempt, INTEGERS);
            bits = joined(words.x, words.y);
        }
        return lowest + (span ? __umul64hi(bits, span) : bits);
    });
}

extern "C" __global__ void philox_bernoulli(void *out, u64 count, u64 key, u64 position, u32 bytes, double p)
{
    u64 bound = __double2ull_rz(p * 0x1p64);
    by_pairs(out, count, key, position, bytes, BERNOULLI, [=](u64, u32 low, u32 high) {
        return (u64)(p >= 1.0 || joined(low, high) < bound);
    });
}

// Walker, "An efficient method for generating discrete random variables with general distributions", 1977. The table
// has, for each of `categories`, the probability of 64 bits that it is kept, and behind these, what is taken otherwise.
extern "C" __global__ void philox_discrete(
    void *out, u64 count, u64 key, u64 position, u32 bytes, const u64 *table, u64 categories)
{
    by_pairs(out, count, key, position, bytes, DISCRETE, [=](u64, u32 low, u32 high) {
        u64 bits = joined(low, high), category = __umul64hi(bits, categories);
        return bits * categories < table[category] ? category : table[categories + category];
    });
}
