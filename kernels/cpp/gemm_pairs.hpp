// Matrix products of bf16 weights and activations by the bf16 dot product: sums over k in ascending pairs.
#pragma once

#include "gemm.hpp"
#include "pairs.hpp"

namespace {

// R rows against C tiles of 16 columns.
template <int R, int C>
__attribute__((noinline)) void pair_rows(const Weight& w, int tile, const Act& x, int row, float* out, int ldo,
                                         bool accumulate) {
    const uint16_t* h = x.h + (size_t)row * x.ldh;
    const uint8_t* p = w.tile(tile);
    __m512 acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
    for (int k = 0; k < w.k; k += 2, p += w.block_bytes) {
        __m512bh v[C];
        for (int c = 0; c < C; ++c) v[c] = (__m512bh)_mm512_loadu_si512(p + c * w.tile_bytes);
        for (int r = 0; r < R; ++r) {
            const __m512bh a = pair_everywhere(h + (size_t)r * x.ldh + k);
            for (int c = 0; c < C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], v[c], a);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            float* o = out + (size_t)r * ldo + c * TILE;
            st(o, accumulate ? ld(o) + F{acc[r][c]} : F{acc[r][c]});
        }
}

template <int C>
void pair_tiles(const Weight& w, int tile, const Act& x, int row, int rows, float* out, int ldo, bool add) {
    int r = 0;
    for (; r + 6 <= rows; r += 6) pair_rows<6, C>(w, tile, x, row + r, out + (size_t)r * ldo, ldo, add);
    for (; r + 2 <= rows; r += 2) pair_rows<2, C>(w, tile, x, row + r, out + (size_t)r * ldo, ldo, add);
    for (; r < rows; ++r) pair_rows<1, C>(w, tile, x, row + r, out + (size_t)r * ldo, ldo, add);
}

void gemm_pairs(const Weight& w, const Act& x, int row, int rows, int tile, int tiles, float* out, int ldo, bool add,
                void* scratch) {
    if (!w.pairs) return gemm(w, x, row, rows, tile, tiles, out, ldo, add, scratch);
    int t = 0;
    for (; t + 4 <= tiles; t += 4) pair_tiles<4>(w, tile + t, x, row, rows, out + t * TILE, ldo, add);
    for (; t < tiles; ++t) pair_tiles<1>(w, tile + t, x, row, rows, out + t * TILE, ldo, add);
}

}  // namespace
