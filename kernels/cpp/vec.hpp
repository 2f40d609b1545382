// Sixteen floats (F) and sixteen int32 (I) at a time, in the registers of the lane that includes this header.
//
// The same operations in the same order stand behind every name, so a kernel written with them gives the same bits in
// the AVX-512 and AVX2 lanes (the portable lane rounds the product of a fused multiply-add where the target has none).
// Everything here has internal linkage: each lane is compiled with its own flags, and no two may share a function.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "inline.hpp"
#include "types.hpp"

#if defined(__AVX512F__)
#include "vec_avx512.hpp"
#elif defined(__AVX2__)
#include "vec_avx2.hpp"
#else
#include "vec_portable.hpp"
#endif

namespace {

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

// Adding it leaves the nearest whole number in the low bits.
constexpr float ROUNDER = 12582912.0f;

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
