// Vectors of the lanes with AVX2: see vec.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.hpp"

namespace {

struct F {
    __m256 v[2];
};
struct I {
    __m256i v[2];
};

#define RAMET_PAIR(expr0, expr1) {{expr0, expr1}}
RAMET_INLINE F ld(const float* p) { return RAMET_PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
RAMET_INLINE void st(float* p, F a) {
    _mm256_storeu_ps(p, a.v[0]);
    _mm256_storeu_ps(p + 8, a.v[1]);
}
RAMET_INLINE F set(float x) { return RAMET_PAIR(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
RAMET_INLINE F operator+(F a, F b) {
    return RAMET_PAIR(_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F operator-(F a, F b) {
    return RAMET_PAIR(_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F operator*(F a, F b) {
    return RAMET_PAIR(_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F operator/(F a, F b) {
    return RAMET_PAIR(_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F fma(F a, F b, F c) {
    return RAMET_PAIR(_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1]));
}
RAMET_INLINE F fnma(F a, F b, F c) {
    return RAMET_PAIR(_mm256_fnmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fnmadd_ps(a.v[1], b.v[1], c.v[1]));
}
RAMET_INLINE F max(F a, F b) {
    return RAMET_PAIR(_mm256_max_ps(a.v[0], b.v[0]), _mm256_max_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F min(F a, F b) {
    return RAMET_PAIR(_mm256_min_ps(a.v[0], b.v[0]), _mm256_min_ps(a.v[1], b.v[1]));
}
RAMET_INLINE F abs(F a) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return RAMET_PAIR(_mm256_and_ps(a.v[0], m), _mm256_and_ps(a.v[1], m));
}
RAMET_INLINE F if_less(F x, F y, F a, F b) {
    return RAMET_PAIR(_mm256_blendv_ps(b.v[0], a.v[0], _mm256_cmp_ps(x.v[0], y.v[0], _CMP_LT_OQ)),
                      _mm256_blendv_ps(b.v[1], a.v[1], _mm256_cmp_ps(x.v[1], y.v[1], _CMP_LT_OQ)));
}
RAMET_INLINE F to_f(I a) { return RAMET_PAIR(_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])); }
RAMET_INLINE I to_i(F a) { return RAMET_PAIR(_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1])); }
RAMET_INLINE I ldi(const int32_t* p) {
    return RAMET_PAIR(_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8)));
}
RAMET_INLINE I seti(int32_t x) { return RAMET_PAIR(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
RAMET_INLINE I operator+(I a, I b) {
    return RAMET_PAIR(_mm256_add_epi32(a.v[0], b.v[0]), _mm256_add_epi32(a.v[1], b.v[1]));
}
RAMET_INLINE void st_i8(int8_t* p, I a) {
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.v[0], a.v[1]), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
RAMET_INLINE F ld_i8(const int8_t* p) {
    __m128i b = _mm_loadu_si128((const __m128i*)p);
    return RAMET_PAIR(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))));
}
RAMET_INLINE F ld_f16(const uint16_t* p) {
    return RAMET_PAIR(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
                      _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8))));
}
RAMET_INLINE void st_f16(uint16_t* p, F a) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
RAMET_INLINE F ld_bf16(const uint16_t* p) {
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
    return RAMET_PAIR(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)));
}
RAMET_INLINE float sum(F a) {
    __m256 b = _mm256_add_ps(a.v[0], a.v[1]);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
RAMET_INLINE float largest(F a) {
    __m256 b = _mm256_max_ps(a.v[0], a.v[1]);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
RAMET_INLINE int32_t sum(I a) {
    __m256i b = _mm256_add_epi32(a.v[0], a.v[1]);
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

// Sixteen doubles.
struct D {
    __m256d v[4];
};
RAMET_INLINE D nought() {
    D d;
    for (int i = 0; i < 4; ++i) d.v[i] = _mm256_setzero_pd();
    return d;
}
RAMET_INLINE D operator+(D a, F b) {
    for (int i = 0; i < 2; ++i) {
        a.v[2 * i] = _mm256_add_pd(a.v[2 * i], _mm256_cvtps_pd(_mm256_castps256_ps128(b.v[i])));
        a.v[2 * i + 1] = _mm256_add_pd(a.v[2 * i + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(b.v[i], 1)));
    }
    return a;
}
RAMET_INLINE void st(double* p, D a) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}

// p * 2^n, but 0 where x < low; n stands in the low bits of `shifted` = n + 1.5 * 2^23, p is in [0.5, 2]
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    F r;
    for (int i = 0; i < 2; ++i) {
        const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted.v[i]), 23);
        r.v[i] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v[i]), n));
    }
    return if_less(x, low, set(0.0f), r);
}

}  // namespace
