// Sixteen floats (F) and sixteen int32 (I) at a time, in the registers of the lane that includes this header.
//
// The same operations in the same order stand behind every name, so a kernel written with them gives the same bits in
// the AVX-512 and AVX2 lanes (the portable lane rounds the product of a fused multiply-add where the target has none).
// Everything here has internal linkage: each lane is compiled with its own flags, and no two may share a function.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "types.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define RAMET_INLINE static inline __attribute__((always_inline))

// A kernel that is a member of a type.
#define RAMET_STATIC static inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)

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

#elif defined(__AVX2__)

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

#else

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
struct F {
    f4 v[4];
};
struct I {
    i4 v[4];
};

#define RAMET_EACH(expr)          \
    for (int k = 0; k < 4; ++k) { \
        expr;                     \
    }
RAMET_INLINE F ld(const float* p) {
    F r;
    memcpy(&r, p, 64);
    return r;
}
RAMET_INLINE void st(float* p, F a) { memcpy(p, &a, 64); }
RAMET_INLINE F set(float x) {
    F r;
    RAMET_EACH(r.v[k] = (f4{x, x, x, x}))
    return r;
}
RAMET_INLINE F operator+(F a, F b) {
    RAMET_EACH(a.v[k] += b.v[k])
    return a;
}
RAMET_INLINE F operator-(F a, F b) {
    RAMET_EACH(a.v[k] -= b.v[k])
    return a;
}
RAMET_INLINE F operator*(F a, F b) {
    RAMET_EACH(a.v[k] *= b.v[k])
    return a;
}
RAMET_INLINE F operator/(F a, F b) {
    RAMET_EACH(a.v[k] /= b.v[k])
    return a;
}
#if defined(__FMA__) || defined(__aarch64__)
RAMET_INLINE F fma(F a, F b, F c) {
    RAMET_EACH(for (int j = 0; j < 4; ++j) c.v[k][j] = __builtin_fmaf(a.v[k][j], b.v[k][j], c.v[k][j]))
    return c;
}
RAMET_INLINE F fnma(F a, F b, F c) {
    RAMET_EACH(for (int j = 0; j < 4; ++j) c.v[k][j] = __builtin_fmaf(-a.v[k][j], b.v[k][j], c.v[k][j]))
    return c;
}
#else
RAMET_INLINE F fma(F a, F b, F c) {
    RAMET_EACH(c.v[k] += a.v[k] * b.v[k])
    return c;
}
RAMET_INLINE F fnma(F a, F b, F c) {
    RAMET_EACH(c.v[k] -= a.v[k] * b.v[k])
    return c;
}
#endif
// As the machine instruction does: b where the two do not compare.
RAMET_INLINE F max(F a, F b) {
    RAMET_EACH(a.v[k] = a.v[k] > b.v[k] ? a.v[k] : b.v[k])
    return a;
}
RAMET_INLINE F min(F a, F b) {
    RAMET_EACH(a.v[k] = a.v[k] < b.v[k] ? a.v[k] : b.v[k])
    return a;
}
RAMET_INLINE F abs(F a) {
    RAMET_EACH(a.v[k] = (f4)((i4)a.v[k] & 0x7fffffff))
    return a;
}
RAMET_INLINE F if_less(F x, F y, F a, F b) {
    RAMET_EACH(a.v[k] = x.v[k] < y.v[k] ? a.v[k] : b.v[k])
    return a;
}
RAMET_INLINE F to_f(I a) {
    F r;
    RAMET_EACH(r.v[k] = __builtin_convertvector(a.v[k], f4))
    return r;
}
RAMET_INLINE I to_i(F a) {
    I r;  // nearest, ties to even, for |a| < 2^22: all that is asked of it
    RAMET_EACH(r.v[k] = __builtin_convertvector((a.v[k] + 12582912.0f) - 12582912.0f, i4))
    return r;
}
RAMET_INLINE I ldi(const int32_t* p) {
    I r;
    memcpy(&r, p, 64);
    return r;
}
RAMET_INLINE I seti(int32_t x) {
    I r;
    RAMET_EACH(r.v[k] = (i4{x, x, x, x}))
    return r;
}
RAMET_INLINE I operator+(I a, I b) {
    RAMET_EACH(a.v[k] += b.v[k])
    return a;
}
RAMET_INLINE void st_i8(int8_t* p, I a) {
    RAMET_EACH(for (int j = 0; j < 4; ++j) p[4 * k + j] = (int8_t)a.v[k][j])
}
RAMET_INLINE F ld_i8(const int8_t* p) {
    F r;
    RAMET_EACH(for (int j = 0; j < 4; ++j) r.v[k][j] = p[4 * k + j])
    return r;
}
RAMET_INLINE F ld_f16(const uint16_t* p) {
    F r;
    RAMET_EACH(for (int j = 0; j < 4; ++j) r.v[k][j] = f16_to_f32(p[4 * k + j]))
    return r;
}
RAMET_INLINE void st_f16(uint16_t* p, F a) {
    RAMET_EACH(for (int j = 0; j < 4; ++j) p[4 * k + j] = f32_to_f16(a.v[k][j]))
}
RAMET_INLINE F ld_bf16(const uint16_t* p) {
    F r;
    RAMET_EACH(for (int j = 0; j < 4; ++j) r.v[k][j] = bf16_to_f32(p[4 * k + j]))
    return r;
}
RAMET_INLINE float sum(F a) {
    f4 c = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return (c[0] + c[2]) + (c[1] + c[3]);
}
RAMET_INLINE float largest(F a) {
    float r = a.v[0][0];
    RAMET_EACH(for (int j = 0; j < 4; ++j) r = a.v[k][j] > r ? a.v[k][j] : r)
    return r;
}
RAMET_INLINE int32_t sum(I a) {
    i4 c = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

// Sixteen doubles.
struct D {
    double v[16];
};
RAMET_INLINE D nought() { return D{}; }
RAMET_INLINE D operator+(D a, F b) {
    float x[16];
    st(x, b);
    for (int i = 0; i < 16; ++i) a.v[i] += (double)x[i];
    return a;
}
RAMET_INLINE void st(double* p, D a) { memcpy(p, a.v, sizeof a.v); }

#endif

RAMET_INLINE double sum(D a) {
    double x[16];
    st(x, a);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) x[i] += x[i + step];
    return x[0];
}

// The first n of 16 numbers, `rest` behind them; n may be more.
RAMET_INLINE F ld_or(const float* p, int n, float rest) {
    if (n >= 16) return ld(p);
    float x[16];
    for (int i = 0; i < 16; ++i) x[i] = i < n ? p[i] : rest;
    return ld(x);
}
RAMET_INLINE void st_some(float* p, F a, int n) {
    if (n >= 16) return st(p, a);
    float x[16];
    st(x, a);
    for (int i = 0; i < n; ++i) p[i] = x[i];
}

// p * 2^n, but 0 where x < low; n stands in the low bits of `shifted` = n + 1.5 * 2^23, p is in [0.5, 2]
constexpr float ROUNDER = 12582912.0f;
#if defined(__AVX512F__)
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(
        _mm512_maskz_add_epi32(_mm512_cmp_ps_mask(x.v, low.v, _CMP_NLT_UQ), _mm512_castps_si512(p.v), n))};
}
#elif defined(__AVX2__)
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    F r;
    for (int i = 0; i < 2; ++i) {
        const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted.v[i]), 23);
        r.v[i] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v[i]), n));
    }
    return if_less(x, low, set(0.0f), r);
}
#else
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    F r;
    RAMET_EACH(r.v[k] = (f4)((i4)p.v[k] + ((i4)shifted.v[k] << 23)))
    return if_less(x, low, set(0.0f), r);
}
#endif

// exp(x), within 2 ulp; exactly 1 at 0; 0 below -87; x > 88 gives exp(88).
RAMET_INLINE F exp(F x) {
    const F low = set(-87.0f);
    const F clamped = min(x, set(88.0f));
    const F shifted = fma(clamped, set(1.44269504f), set(ROUNDER));
    const F n = shifted - set(ROUNDER);
    F r = fnma(n, set(0.693359375f), clamped);
    r = fnma(n, set(-2.12194440e-4f), r);
    F p = set(1.0f / 5040);
    p = fma(p, r, set(1.0f / 720));
    p = fma(p, r, set(1.0f / 120));
    p = fma(p, r, set(1.0f / 24));
    p = fma(p, r, set(1.0f / 6));
    p = fma(p, r, set(0.5f));
    p = fma(p, r, set(1.0f));
    p = fma(p, r, set(1.0f));
    return power_or_zero(p, shifted, x, low);
}

// 2^x for x <= 0, within 2 ulp; exactly 1 at 0; 0 below -126. The polynomial is the best of degree 5 on [-0.5, 0.5].
RAMET_INLINE F exp2_negative(F x) {
    const F low = set(-126.0f);
    const F shifted = x + set(ROUNDER);
    const F r = x - (shifted - set(ROUNDER));
    F p = set(0.001326472548f);
    p = fma(p, r, set(0.009671512779f));
    p = fma(p, r, set(0.05550733749f));
    p = fma(p, r, set(0.2402224208f));
    p = fma(p, r, set(0.6931469776f));
    p = fma(p, r, set(1.0f));
    return power_or_zero(p, shifted, x, low);
}

}  // namespace
