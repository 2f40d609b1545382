// Vectors of the portable lane, through the compiler's own: see vec.hpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "inline.hpp"

namespace {

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
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

// p * 2^n, but 0 where x < low; n stands in the low bits of `shifted` = n + 1.5 * 2^23, p is in [0.5, 2]. Where x < low the sum may
// pass the range of a number, which unsigned ones may do.
RAMET_INLINE F power_or_zero(F p, F shifted, F x, F low) {
    F r;
    RAMET_EACH(r.v[k] = (f4)((u4)p.v[k] + ((u4)shifted.v[k] << 23)))
    return if_less(x, low, set(0.0f), r);
}

}  // namespace
