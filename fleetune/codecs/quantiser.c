/* int8 and int4 in groups of 64 elements, optionally rotated, in one pass over the memory of a core.
 *
 * quantization.py defines what is computed, and its torch code gives the same bits: products are rounded once, sums
 * are exact. Compile without contraction of products and sums, and without fast math. native.py calls what is exported;
 * a function whose arguments change gets another name, so that a library of older code is not used.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "products are not rounded to float here"
#endif

#define INLINE static inline __attribute__((always_inline))

enum { GROUP = 64, GRID_BITS = 17, GROUP_BITS = 6, LEVELS = 127, PACKED_LEVELS = 7 };
#define SMALLEST 0x1p-100f
#define LARGE_SCALE 0x7180 /* 2^100 as bfloat16 */
#define TO_INTEGER 0x1.8p23f /* a sum with it has no place for a fraction, and the integer in its lowest bits */

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float power_of_two(int32_t exponent) { return float_of((uint32_t)(exponent + 127) << 23); }

/* Bits of the largest magnitude: as integers, NaN is above infinity, and infinity above all numbers. */
INLINE uint32_t largest_magnitude(const float *group) {
    int32_t most = 0;
    for (int i = 0; i < GROUP; i++) {
        int32_t magnitude = (int32_t)(bits_of(group[i]) & 0x7FFFFFFF);
        most = magnitude > most ? magnitude : most;
    }
    return (uint32_t)most;
}

/* Vectors of 32 bytes; where registers are shorter, a compiler makes several of each. */
typedef float floats __attribute__((vector_size(32)));
typedef int32_t words __attribute__((vector_size(32)));
typedef int16_t shorts __attribute__((vector_size(32)));
#ifdef __clang__
#define SHUFFLED(vector, integers, ...) __builtin_shufflevector(vector, vector, __VA_ARGS__)
#else
#define SHUFFLED(vector, integers, ...) __builtin_shuffle(vector, (integers){__VA_ARGS__})
#endif

/* The product with Sylvester's matrix takes a step for each bit of the index: of two elements whose index differs in
 * that bit, the first becomes their sum, the second the first less the second. Here for the bits above a vector's. */
#define STEPS_BETWEEN_VECTORS(vectors, type)                                \
    for (int bit = COUNT(vectors) / 2; bit; bit /= 2)                \
        for (int i = 0; i < COUNT(vectors); i++)                 \
            if (!(i & bit)) {                                               \
                type first = (vectors)[i], second = (vectors)[i + bit];     \
                (vectors)[i] = first + second;                              \
                (vectors)[i + bit] = first - second;                        \
            }
#define COUNT(vectors) ((int)(sizeof(vectors) / sizeof(vectors)[0]))

INLINE void rotate_floats(float *group) {
    floats v[GROUP / 8];
    memcpy(v, group, sizeof v);
    STEPS_BETWEEN_VECTORS(v, floats)
    for (int i = 0; i < GROUP / 8; i++) {
        v[i] = SHUFFLED(v[i], words, 1, 0, 3, 2, 5, 4, 7, 6) + v[i] * (floats){1, -1, 1, -1, 1, -1, 1, -1};
        v[i] = SHUFFLED(v[i], words, 2, 3, 0, 1, 6, 7, 4, 5) + v[i] * (floats){1, 1, -1, -1, 1, 1, -1, -1};
        v[i] = SHUFFLED(v[i], words, 4, 5, 6, 7, 0, 1, 2, 3) + v[i] * (floats){1, 1, 1, 1, -1, -1, -1, -1};
    }
    memcpy(group, v, sizeof v);
}

/* Sums of 64 codes are below 2^15. */
INLINE void rotate_shorts(int16_t *group) {
    shorts v[GROUP / 16];
    memcpy(v, group, sizeof v);
    STEPS_BETWEEN_VECTORS(v, shorts)
    for (int i = 0; i < GROUP / 16; i++) {
        v[i] = SHUFFLED(v[i], shorts, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14) +
               v[i] * (shorts){1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1};
        v[i] = SHUFFLED(v[i], shorts, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13) +
               v[i] * (shorts){1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1};
        v[i] = SHUFFLED(v[i], shorts, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11) +
               v[i] * (shorts){1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1};
        v[i] = SHUFFLED(v[i], shorts, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7) +
               v[i] * (shorts){1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1};
    }
    memcpy(group, v, sizeof v);
}

INLINE void encode_group(const float *given, int packed, int rotated, uint8_t *codes, uint16_t *scale, float *largest) {
    float group[GROUP];
    uint32_t most = largest_magnitude(given), whole[GROUP];
    float unit = 1.0f;
    *largest = float_of(most);
    int used = *largest >= SMALLEST;
    if (rotated) {
        int32_t exponent = (int32_t)(most >> 23) - 126;
        exponent = exponent < -99 ? -99 : exponent > 128 ? 128 : exponent;
        float to_grid = power_of_two(GRID_BITS - exponent);
        for (int i = 0; i < GROUP; i++) group[i] = (given[i] * to_grid + TO_INTEGER) - TO_INTEGER;
        rotate_floats(group);
        most = largest_magnitude(group);
        unit = power_of_two(exponent - GRID_BITS - GROUP_BITS);
        given = group;
    }
    float step = float_of(((bits_of(float_of(most) / (packed ? PACKED_LEVELS : LEVELS)) + 0xFFFF) >> 16) << 16);
    float factor = used ? 1.0f / step : 0.0f;
    *scale = used ? (uint16_t)(bits_of(step * unit) >> 16) : 0;
    for (int i = 0; i < GROUP; i++) whole[i] = bits_of(given[i] * factor + TO_INTEGER);
    if (packed) {
        uint8_t low[GROUP];
        for (int i = 0; i < GROUP; i++) low[i] = (uint8_t)whole[i];
        for (int i = 0; i < GROUP / 2; i++) codes[i] = (uint8_t)((low[2 * i] & 15) | low[2 * i + 1] << 4);
    } else
        for (int i = 0; i < GROUP; i++) codes[i] = (uint8_t)whole[i];
}

INLINE void decode_group(const uint8_t *codes, int packed, int rotated, uint16_t scale, int large, float *elements) {
    float factor = float_of((uint32_t)scale << 16);
    int16_t whole[GROUP];
    if (packed)
        for (int i = 0; i < GROUP / 2; i++) {
            whole[2 * i] = (int16_t)(((codes[i] & 15) ^ 8) - 8);
            whole[2 * i + 1] = (int16_t)(((codes[i] >> 4) ^ 8) - 8);
        }
    else
        for (int i = 0; i < GROUP; i++) whole[i] = (int16_t)((codes[i] ^ 128) - 128);
    if (rotated) rotate_shorts(whole);
    for (int i = 0; i < GROUP; i++) elements[i] = (float)whole[i] * factor;
    if (rotated && !large)
        for (int i = 0; i < GROUP; i++) elements[i] += 0.0f; /* no zero is negative, as in a sum of products */
    if (large)
        for (int i = 0; i < GROUP; i++) {
            elements[i] = elements[i] > FLT_MAX ? FLT_MAX : elements[i];
            elements[i] = elements[i] < -FLT_MAX ? -FLT_MAX : elements[i];
        }
}

INLINE void encode_rows(const float *rows, int64_t samples, int64_t elements, int packed, int rotated, uint8_t *codes,
                        uint16_t *scales, float *largest) {
    for (int64_t sample = 0; sample < samples; sample++) {
        int64_t left = elements;
        for (; left >= GROUP; left -= GROUP) {
            encode_group(rows, packed, rotated, codes, scales++, largest++);
            rows += GROUP;
            codes += packed ? GROUP / 2 : GROUP;
        }
        if (left) {
            float padded[GROUP] = {0};
            uint8_t whole[GROUP];
            int64_t kept = rotated ? GROUP : left, size = packed ? (kept + 1) / 2 : kept;
            memcpy(padded, rows, (size_t)left * sizeof *rows);
            encode_group(padded, packed, rotated, whole, scales++, largest++);
            memcpy(codes, whole, (size_t)size);
            rows += left;
            codes += size;
        }
    }
}

INLINE void decode_rows(const uint8_t *codes, const uint16_t *scales, int64_t samples, int64_t elements, int packed,
                        int rotated, float *rows) {
    int64_t groups = samples * ((elements + GROUP - 1) / GROUP);
    int large = 0;
    for (int64_t i = 0; i < groups; i++) large |= (scales[i] & 0x7FFF) >= LARGE_SCALE;
    for (int64_t sample = 0; sample < samples; sample++) {
        int64_t left = elements;
        for (; left >= GROUP; left -= GROUP) {
            decode_group(codes, packed, rotated, *scales++, large, rows);
            rows += GROUP;
            codes += packed ? GROUP / 2 : GROUP;
        }
        if (left) {
            float padded[GROUP];
            uint8_t whole[GROUP] = {0};
            int64_t kept = rotated ? GROUP : left, size = packed ? (kept + 1) / 2 : kept;
            memcpy(whole, codes, (size_t)size);
            decode_group(whole, packed, rotated, *scales++, large, padded);
            memcpy(rows, padded, (size_t)left * sizeof *rows);
            rows += left;
            codes += size;
        }
    }
}

/* A compiler makes each of the four codecs its own code. */
INLINE void encode(const float *rows, int64_t samples, int64_t elements, int packed, int rotated, uint8_t *codes,
                   uint16_t *scales, float *largest) {
    if (packed && rotated)
        encode_rows(rows, samples, elements, 1, 1, codes, scales, largest);
    else if (packed)
        encode_rows(rows, samples, elements, 1, 0, codes, scales, largest);
    else if (rotated)
        encode_rows(rows, samples, elements, 0, 1, codes, scales, largest);
    else
        encode_rows(rows, samples, elements, 0, 0, codes, scales, largest);
}

INLINE void decode(const uint8_t *codes, const uint16_t *scales, int64_t samples, int64_t elements, int packed,
                   int rotated, float *rows) {
    if (packed && rotated)
        decode_rows(codes, scales, samples, elements, 1, 1, rows);
    else if (packed)
        decode_rows(codes, scales, samples, elements, 1, 0, rows);
    else if (rotated)
        decode_rows(codes, scales, samples, elements, 0, 1, rows);
    else
        decode_rows(codes, scales, samples, elements, 0, 0, rows);
}

/* The library may be built on another processor than it runs on: wide vectors are used where they are found. */
#if defined(__x86_64__) && defined(__GNUC__)
#define AVX2_FOUND __builtin_cpu_supports("avx2")
#define WITH_AVX2 __attribute__((target("avx2")))
#else
#define AVX2_FOUND 0
#define WITH_AVX2
#endif

static WITH_AVX2 void encode_avx2(const float *rows, int64_t samples, int64_t elements, int packed, int rotated,
                                  uint8_t *codes, uint16_t *scales, float *largest) {
    encode(rows, samples, elements, packed, rotated, codes, scales, largest);
}

static WITH_AVX2 void decode_avx2(const uint8_t *codes, const uint16_t *scales, int64_t samples, int64_t elements,
                                  int packed, int rotated, float *rows) {
    decode(codes, scales, samples, elements, packed, rotated, rows);
}

/* rows: float32 [samples, elements]. codes: [samples, bytes]. scales: bfloat16 [samples, groups]. largest: float32 of
 * each group. */
void fleetune_quantise(const float *rows, int64_t samples, int64_t elements, int packed, int rotated, uint8_t *codes,
                       uint16_t *scales, float *largest) {
    if (AVX2_FOUND)
        encode_avx2(rows, samples, elements, packed, rotated, codes, scales, largest);
    else
        encode(rows, samples, elements, packed, rotated, codes, scales, largest);
}

void fleetune_dequantise(const uint8_t *codes, const uint16_t *scales, int64_t samples, int64_t elements, int packed,
                         int rotated, float *rows) {
    if (AVX2_FOUND)
        decode_avx2(codes, scales, samples, elements, packed, rotated, rows);
    else
        decode(codes, scales, samples, elements, packed, rotated, rows);
}
