// Vectors of the lanes with AVX-512: see vec.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.hpp"

namespace {

struct F {
    __m512 v;
};
struct I {
    __m512i v;
};

RAMET_INLINE F ld(const float* p) { return {_mm512_loadu_ps(p)}; }
RAMET_INLINE void st(float* p, F a) { _mm512_storeu_ps(p, a.v); }
RAMET_INLINE F set(float x) { return {_mm512_set1_ps(x)}; }
RAMET_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
RAMET_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
RAMET_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
RAMET_INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
RAMET_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
RAMET_INLINE F fnma(F a, F b, F c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
RAMET_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
RAMET_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
RAMET_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
// a where x < y, else b
RAMET_INLINE F if_less(F x, F y, F a, F b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
RAMET_INLINE F to_f(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
RAMET_INLINE I to_i(F a) { return {_mm512_cvtps_epi32(a.v)}; }
RAMET_INLINE I ldi(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
RAMET_INLINE I seti(int32_t x) { return {_mm512_set1_epi32(x)}; }
RAMET_INLINE I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
RAMET_INLINE void st_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
RAMET_INLINE F ld_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
RAMET_INLINE F ld_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
RAMET_INLINE void st_f16(uint16_t* p, F a) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
RAMET_INLINE F ld_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
RAMET_INLINE float sum(F a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
RAMET_INLINE float largest(F a) { return _mm512_reduce_max_ps(a.v); }
RAMET_INLINE int32_t sum(I a) { return _mm512_reduce_add_epi32(a.v); }

// Sixteen doubles.
struct D {
    __m512d v[2];
};
RAMET_INLINE D nought() { return {{_mm512_setzero_pd(), _mm512_setzero_pd()}}; }
RAMET_INLINE D operator+(D a, F b) {
    return {{_mm512_add_pd(a.v[0], _mm512_cvtps_pd(_mm512_castps512_ps256(b.v))),
             _mm512_add_pd(a.v[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1)))}};
}
RAMET_INLINE void st(double* p, D a) {
    _mm512_storeu_pd(p, a.v[0]);
    _mm512_storeu_pd(p + 8, a.v[1]);
}

// p * 2^n, but 0 where x < low; n stands in the low bits of `shifted` = n + 1.5 * 2^23, p is in [0.5, 2]
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(
        _mm512_maskz_add_epi32(_mm512_cmp_ps_mask(x.v, low.v, _CMP_NLT_UQ), _mm512_castps_si512(p.v), n))};
}

}  // namespace
