// The integer dot product of four activations with four weights of each of 16 columns, exact in every lane.
//
// Quad: four consecutive k of each column, as 64 unsigned bytes (byte 4 c + b is the b-th of column c) or as floats.
// Sum: what a block's products are added up in; a whole number, whatever its type.
#pragma once

#include "types.hpp"
#include "vec.hpp"

namespace {
using namespace ramet;

RAMET_INLINE int32_t four(const int8_t* x) {
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}

#if defined(__AVX512VNNI__)

constexpr int ROWS = 8;

using Sum = I;
RAMET_INLINE Sum start(int32_t x) { return seti(x); }
RAMET_INLINE F finish(Sum s) { return to_f(s); }

struct Quad {
    __m512i v;
};
RAMET_INLINE Quad ld_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
RAMET_INLINE void split(Quad packed, Quad& low, Quad& high) {
    const __m512i mask = _mm512_set1_epi8(15);
    low.v = _mm512_and_si512(packed.v, mask);
    high.v = _mm512_and_si512(_mm512_srli_epi16(packed.v, 4), mask);
}
template <WeightKind KIND>
RAMET_INLINE void ld_quads(const uint8_t* p, Quad (&q)[8]) {
    if (KIND == WeightKind::U4) {
        for (int j = 0; j < 4; ++j) split(ld_quad(p + 64 * j), q[j], q[j + 4]);
    } else {
        for (int j = 0; j < 8; ++j) q[j] = ld_quad(p + 64 * j);
    }
}
template <WeightKind>
RAMET_INLINE Sum dot(Sum acc, const Quad& w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four(x)))};
}

#elif defined(__AVX2__)

constexpr int ROWS = 4;

using Sum = I;
RAMET_INLINE Sum start(int32_t x) { return seti(x); }
RAMET_INLINE F finish(Sum s) { return to_f(s); }

struct Quad {
    __m256i v[2];
};
RAMET_INLINE Quad ld_quad(const uint8_t* p) {
    return {{_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}};
}
RAMET_INLINE void split(Quad packed, Quad& low, Quad& high) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < 2; ++i) {
        low.v[i] = _mm256_and_si256(packed.v[i], mask);
        high.v[i] = _mm256_and_si256(_mm256_srli_epi16(packed.v[i], 4), mask);
    }
}
template <WeightKind KIND>
RAMET_INLINE void ld_quads(const uint8_t* p, Quad (&q)[8]) {
    if (KIND == WeightKind::U4) {
        for (int j = 0; j < 4; ++j) split(ld_quad(p + 64 * j), q[j], q[j + 4]);
    } else {
        for (int j = 0; j < 8; ++j) q[j] = ld_quad(p + 64 * j);
    }
}
template <WeightKind KIND>
RAMET_INLINE Sum dot(Sum acc, const Quad& w, const int8_t* x) {
    const __m256i v = _mm256_set1_epi32(four(x));
    for (int i = 0; i < 2; ++i) {
#if defined(__AVXVNNI__)
        acc.v[i] = _mm256_dpbusd_avx_epi32(acc.v[i], w.v[i], v);
#else
        if (KIND == WeightKind::U4) {  // 15 * 127 * 2 fits into 16 bits
            const __m256i pairs = _mm256_maddubs_epi16(w.v[i], v);
            acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        } else {  // 255 * 127 * 2 does not: even and odd bytes apart, as 16-bit numbers
            const __m256i low = _mm256_set1_epi16(255);
            const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w.v[i], low), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w.v[i], 8), _mm256_srai_epi16(v, 8));
            acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_add_epi32(even, odd));
        }
#endif
    }
    return acc;
}

#else

// Without an integer dot product floats are faster, and as exact: a block's sum stays below 2^24.
#if defined(__aarch64__)
constexpr int ROWS = 4;
#else
constexpr int ROWS = 2;
#endif

using Sum = F;
RAMET_INLINE Sum start(int32_t x) { return set((float)x); }
RAMET_INLINE F finish(Sum s) { return s; }

struct Quad {
    F v[4];  // the b-th of each column's four
};
RAMET_INLINE Quad quad_of(const i4 (&bytes)[4], int shift, int mask) {
    Quad q;
    for (int b = 0; b < 4; ++b) RAMET_EACH(q.v[b].v[k] = __builtin_convertvector((bytes[k] >> (8 * b + shift)) & mask, f4))
    return q;
}
template <WeightKind KIND>
RAMET_INLINE void ld_quads(const uint8_t* p, Quad (&q)[8]) {
    for (int j = 0; j < (KIND == WeightKind::U4 ? 4 : 8); ++j) {
        i4 bytes[4];
        memcpy(bytes, p + 64 * j, 64);
        q[j] = quad_of(bytes, 0, KIND == WeightKind::U4 ? 15 : 255);
        if (KIND == WeightKind::U4) q[j + 4] = quad_of(bytes, 4, 15);
    }
}
template <WeightKind>
RAMET_INLINE Sum dot(Sum acc, const Quad& w, const int8_t* x) {
    for (int b = 0; b < 4; ++b) acc = acc + w.v[b] * set((float)x[b]);
    return acc;
}

#endif

}  // namespace
