// Matrix products of quantised or float weights, written once for every lane.
//
// A tile of 16 columns is taken against up to ROWS rows at a time. Each (row, column) has one accumulator, to which the
// blocks are added in ascending order by the same operations whatever the number of rows: see types.hpp.
#pragma once

#include "dot.hpp"
#include "types.hpp"
#include "vec.hpp"

namespace {
using namespace ramet;

RAMET_INLINE F load_scales(const uint8_t* p, bool wide) { return wide ? ld((const float*)p) : ld_f16((const uint16_t*)p); }

// One tile against R rows. The flags are compile-time, so that each format has its own straight loop.
template <int R, WeightKind KIND, bool MINIMA, bool WIDE, bool HALVES>
__attribute__((noinline)) void quant_rows(const Weight& w, const uint8_t* p, const Act& x, int row, float* out, int ldo,
                                          bool accumulate) {
    constexpr int INTEGERS = KIND == WeightKind::U4 ? 256 : 512;
    constexpr int SCALES = WIDE ? 64 : 32;
    const int blocks = x.blocks();
    const int8_t* q = x.q + x.at(row, 0) * QBLOCK;  // rows [row, row + R) are of one panel
    const float* scale = x.scale + x.at(row, 0);
    const float* scaled = x.scaled + x.at(row, 0);
    const int32_t* sums = x.sums_at(row, 0);
    F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = set(0);
    for (int b = 0; b < blocks; ++b, p += w.block_bytes, q += TILE * QBLOCK, scale += TILE, scaled += TILE, sums += 2 * TILE) {
        if (R <= 2) __builtin_prefetch(p + 2048), __builtin_prefetch(p + 2048 + 64), __builtin_prefetch(p + 2048 + 128),
                    __builtin_prefetch(p + 2048 + 192), __builtin_prefetch(p + 2048 + 256);
        Quad wq[8];
        ld_quads<KIND>(p, wq);
        const uint8_t* s = p + INTEGERS;
        if (HALVES) {
            const F first = load_scales(s, WIDE), second = load_scales(s + SCALES, WIDE);
            for (int r = 0; r < R; ++r) {
                const int8_t* xr = q + r * QBLOCK;
                Sum lo = start(-w.zero * sums[r]), hi = start(-w.zero * sums[TILE + r]);
                for (int j = 0; j < 4; ++j) lo = dot<KIND>(lo, wq[j], xr + 4 * j);
                for (int j = 4; j < 8; ++j) hi = dot<KIND>(hi, wq[j], xr + 4 * j);
                const F a = set(scale[r]);
                acc[r] = fma(finish(lo) * first, a, acc[r]);
                acc[r] = fma(finish(hi) * second, a, acc[r]);
            }
            continue;
        }
        const F ws = load_scales(s, WIDE);
        const F wm = MINIMA ? load_scales(s + SCALES, WIDE) : set(0);
        Sum d[R];
        for (int r = 0; r < R; ++r) d[r] = MINIMA ? start(0) : start(-w.zero * (sums[r] + sums[TILE + r]));
        for (int j = 0; j < 8; ++j)
            for (int r = 0; r < R; ++r) d[r] = dot<KIND>(d[r], wq[j], q + r * QBLOCK + 4 * j);
        for (int r = 0; r < R; ++r) {
            acc[r] = fma(finish(d[r]) * ws, set(scale[r]), acc[r]);
            if (MINIMA) acc[r] = fma(wm, set(scaled[r]), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) {
        float* o = out + (size_t)r * ldo;
        st(o, accumulate ? ld(o) + acc[r] : acc[r]);
    }
}

template <int R, WeightKind KIND>
__attribute__((noinline)) void float_rows(const Weight& w, const uint8_t* p, const Act& x, int row, float* out, int ldo,
                                          bool accumulate) {
    const float* f = x.f + (size_t)row * x.ld;
    F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = set(0);
    for (int k = 0; k < w.k; ++k, p += w.block_bytes) {
        F v;
        if (KIND == WeightKind::F32) v = ld((const float*)p);
        if (KIND == WeightKind::F16) v = ld_f16((const uint16_t*)p);
        if (KIND == WeightKind::BF16) v = ld_bf16((const uint16_t*)p);
        for (int r = 0; r < R; ++r) acc[r] = fma(v, set(f[(size_t)r * x.ld + k]), acc[r]);
    }
    for (int r = 0; r < R; ++r) {
        float* o = out + (size_t)r * ldo;
        st(o, accumulate ? ld(o) + acc[r] : acc[r]);
    }
}

template <int R>
void rows_of_tile(const Weight& w, const uint8_t* p, const Act& x, int row, float* out, int ldo, bool add) {
    using K = WeightKind;
    switch (w.kind) {
        case K::F32:
            return float_rows<R, K::F32>(w, p, x, row, out, ldo, add);
        case K::F16:
            return float_rows<R, K::F16>(w, p, x, row, out, ldo, add);
        case K::BF16:
            return float_rows<R, K::BF16>(w, p, x, row, out, ldo, add);
        case K::U4:
            if (!w.minima) return quant_rows<R, K::U4, false, false, false>(w, p, x, row, out, ldo, add);
            if (w.wide) return quant_rows<R, K::U4, true, true, false>(w, p, x, row, out, ldo, add);
            return quant_rows<R, K::U4, true, false, false>(w, p, x, row, out, ldo, add);
        case K::U8:
            if (w.halves) return quant_rows<R, K::U8, false, true, true>(w, p, x, row, out, ldo, add);
            if (!w.minima) return quant_rows<R, K::U8, false, false, false>(w, p, x, row, out, ldo, add);
            if (w.wide) return quant_rows<R, K::U8, true, true, false>(w, p, x, row, out, ldo, add);
            return quant_rows<R, K::U8, true, false, false>(w, p, x, row, out, ldo, add);
    }
}

size_t gemm_scratch() { return 0; }

void gemm(const Weight& w, const Act& x, int row, int rows, int tile, int tiles, float* out, int ldo, bool add, void*) {
    for (int t = 0; t < tiles; ++t) {
        const uint8_t* p = w.tile(tile + t);
        float* o = out + t * TILE;
        int r = 0;
        for (; r + ROWS <= rows; r += ROWS) rows_of_tile<ROWS>(w, p, x, row + r, o + (size_t)r * ldo, ldo, add);
        if (ROWS > 4 && r + 4 <= rows) {
            rows_of_tile<4>(w, p, x, row + r, o + (size_t)r * ldo, ldo, add);
            r += 4;
        }
        if (r + 2 <= rows) {
            rows_of_tile<2>(w, p, x, row + r, o + (size_t)r * ldo, ldo, add);
            r += 2;
        }
        for (; r < rows; ++r) rows_of_tile<1>(w, p, x, row + r, o + (size_t)r * ldo, ldo, add);
    }
}

}  // namespace
