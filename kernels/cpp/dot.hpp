// The integer dot product of four activations with four weights of each of 16 columns, exact in every lane.
//
// Quad: 64 unsigned bytes, byte 4 c + b being the b-th of four consecutive k of column c.
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

struct Quad {
    __m512i v;
};
RAMET_INLINE Quad ld_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
RAMET_INLINE void split(Quad packed, Quad& low, Quad& high) {
    const __m512i mask = _mm512_set1_epi8(15);
    low.v = _mm512_and_si512(packed.v, mask);
    high.v = _mm512_and_si512(_mm512_srli_epi16(packed.v, 4), mask);
}
template <WeightKind>
RAMET_INLINE I dot(I acc, Quad w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four(x)))};
}

#elif defined(__AVX2__)

constexpr int ROWS = 4;

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
RAMET_INLINE I dot(I acc, Quad w, const int8_t* x) {
    const __m256i v = _mm256_set1_epi32(four(x));
    for (int i = 0; i < 2; ++i) {
        if (KIND == WeightKind::U4) {  // 15 * 127 * 2 fits into 16 bits
            const __m256i pairs = _mm256_maddubs_epi16(w.v[i], v);
            acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        } else {  // 255 * 127 * 2 does not: even and odd bytes apart, as 16-bit numbers
            const __m256i low = _mm256_set1_epi16(255);
            const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w.v[i], low), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w.v[i], 8), _mm256_srai_epi16(v, 8));
            acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_add_epi32(even, odd));
        }
    }
    return acc;
}

#else

constexpr int ROWS = 4;

struct Quad {
    uint8_t v[64];
};
RAMET_INLINE Quad ld_quad(const uint8_t* p) {
    Quad q;
    memcpy(q.v, p, 64);
    return q;
}
RAMET_INLINE void split(Quad packed, Quad& low, Quad& high) {
    for (int i = 0; i < 64; ++i) {
        low.v[i] = packed.v[i] & 15;
        high.v[i] = packed.v[i] >> 4;
    }
}
template <WeightKind>
RAMET_INLINE I dot(I acc, Quad w, const int8_t* x) {
    const int32_t x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
    RAMET_EACH(i4 bytes; memcpy(&bytes, w.v + 16 * k, 16); acc.v[k] += (bytes & 255) * x0 +
                                                                    ((bytes >> 8) & 255) * x1 +
                                                                    ((bytes >> 16) & 255) * x2 +
                                                                    ((bytes >> 24) & 255) * x3)
    return acc;
}

#endif

}  // namespace
