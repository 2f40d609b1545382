// Matrix products of bf16 weights and activations on AMX tiles: 16 rows x 16 columns x 32 k per tile product, k ascending.
#pragma once

#include "gemm_amx.hpp"

namespace {

// Two panels of 16 rows (or one) against two tiles of 16 columns. `w` points at pairs [k / 2][16][2]; rows that are not there
// are computed from whatever lies behind the last and not stored.
template <bool TWO_PANELS, bool TWO_TILES>
RAMET_INLINE void tile_block(const uint16_t* a, const uint16_t* a2, int lda, const uint8_t* w, const uint8_t* w2, int steps,
                             float* c) {
    _tile_zero(0);
    if (TWO_TILES) _tile_zero(1);
    if (TWO_PANELS) _tile_zero(2);
    if (TWO_PANELS && TWO_TILES) _tile_zero(3);
    for (int s = 0; s < steps; ++s) {
        _tile_loadd(4, a + s * 32, lda * 2);
        _tile_loadd(6, w + s * 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (TWO_TILES) {
            _tile_loadd(7, w2 + s * 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (TWO_PANELS) {
            _tile_loadd(5, a2 + s * 32, lda * 2);
            _tile_dpbf16ps(2, 5, 6);
            if (TWO_TILES) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, 64);
    if (TWO_TILES) _tile_stored(1, c + 256, 64);
    if (TWO_PANELS) _tile_stored(2, c + 512, 64);
    if (TWO_PANELS && TWO_TILES) _tile_stored(3, c + 768, 64);
}

RAMET_INLINE void put_tile(const float* c, int rows, float* out, int ldo, bool accumulate) {
    for (int r = 0; r < rows && r < 16; ++r) {
        float* o = out + (size_t)r * ldo;
        st(o, accumulate ? ld(o) + ld(c + r * 16) : ld(c + r * 16));
    }
}

// Tiles for `rows` rows of a panel: fewer rows are less work, and leave the others' bits alone.
RAMET_INLINE void configure_bf16_tiles(int rows) {
    alignas(64) TileConfig c{};
    c.palette = 1;
    for (int i = 0; i < 8; ++i) {
        c.column_bytes[i] = 64;
        c.rows[i] = i < 6 ? (uint8_t)rows : 16;
    }
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

void gemm_tiles(const Weight& w, const Act& x, int row, int rows, int tile, int tiles, float* out, int ldo, bool add,
                void* scratch) {
    if (!w.pairs) return gemm_amx(w, x, row, rows, tile, tiles, out, ldo, add, scratch);
    float* c = (float*)(((uintptr_t)scratch + 63) / 64 * 64);
    const int steps = (w.k + 31) / 32;
    configure_bf16_tiles(rows < 16 ? rows : 16);
    for (int t = 0; t < tiles; t += 2) {
        const bool two_tiles = t + 1 < tiles;
        const uint8_t *p = w.tile(tile + t), *p2 = two_tiles ? w.tile(tile + t + 1) : p;
        for (int r = 0; r < rows; r += 32) {
            const bool two_panels = r + 16 < rows;
            const uint16_t* a = x.h + (size_t)(row + r) * x.ldh;
            const uint16_t* a2 = a + (size_t)16 * x.ldh;
            if (two_panels && two_tiles) tile_block<true, true>(a, a2, x.ldh, p, p2, steps, c);
            if (two_panels && !two_tiles) tile_block<true, false>(a, a2, x.ldh, p, p2, steps, c);
            if (!two_panels && two_tiles) tile_block<false, true>(a, a2, x.ldh, p, p2, steps, c);
            if (!two_panels && !two_tiles) tile_block<false, false>(a, a2, x.ldh, p, p2, steps, c);
            float* o = out + (size_t)r * ldo + t * TILE;
            put_tile(c, rows - r, o, ldo, add);
            if (two_tiles) put_tile(c + 256, rows - r, o + TILE, ldo, add);
            if (two_panels) put_tile(c + 512, rows - r - 16, o + (size_t)16 * ldo, ldo, add);
            if (two_panels && two_tiles) put_tile(c + 768, rows - r - 16, o + (size_t)16 * ldo + TILE, ldo, add);
        }
    }
    _tile_release();
}

}  // namespace
