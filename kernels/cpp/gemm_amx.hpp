// Quantised matmul on AMX tiles: 16 rows x 16 columns x one block of 32 k per tile product.
#pragma once

#include "gemm.hpp"

namespace {
using namespace ramet;

struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

// Tiles 0 to 3: int32 results, 16 x 16. 4, 5: activations, 16 rows of 32 bytes. 6, 7: weights, 8 rows of 16 quads.
RAMET_INLINE void configure_gemm_tiles() {
    alignas(64) TileConfig c{};
    c.palette = 1;
    for (int i = 0; i < 8; ++i) {
        c.column_bytes[i] = i == 4 || i == 5 ? 32 : 64;
        c.rows[i] = i >= 6 ? 8 : 16;
    }
    __asm__ volatile("" : : "r"(&c) : "memory");  // the intrinsic tells the compiler of its first eight bytes only
    _tile_loadconfig(&c);
}

constexpr int AMX_ROWS = 16;
constexpr int AMX_LEAST_ROWS = 6;   // fewer are done faster without tiles
constexpr int AMX_MOST_BLOCKS = 512;  // of a row: what fits into the scratch

// A tile of weights as the products read it: signed bytes [8][16][4] per block, and scales and minima as floats.
struct Unpacked {
    int8_t* q;      // [blocks][512]
    float* scale;   // [blocks][16]
    float* minima;  // [blocks][16]
};

size_t gemm_amx_scratch() { return (size_t)AMX_MOST_BLOCKS * (512 + 128) + 4 * 16 * 64 + 128; }

void unpack(const Weight& w, const uint8_t* p, int blocks, const Unpacked& to) {
    const __m512i zero = _mm512_set1_epi8((char)w.zero);
    const int integers = w.kind == WeightKind::U4 ? 256 : 512, step = w.wide ? 64 : 32;
    for (int b = 0; b < blocks; ++b, p += w.block_bytes) {
        int8_t* q = to.q + b * 512;
        for (size_t ahead = 0; ahead < w.block_bytes; ahead += 64) __builtin_prefetch(p + 2048 + ahead);
        if (w.kind == WeightKind::U4) {
            for (int j = 0; j < 4; ++j) {
                Quad low, high;
                split(ld_quad(p + 64 * j), low, high);
                _mm512_store_si512(q + 64 * j, _mm512_sub_epi8(low.v, zero));
                _mm512_store_si512(q + 256 + 64 * j, _mm512_sub_epi8(high.v, zero));
            }
        } else {
            for (int j = 0; j < 8; ++j)
                _mm512_store_si512(q + 64 * j, _mm512_sub_epi8(_mm512_loadu_si512(p + 64 * j), zero));
        }
        st(to.scale + b * 16, load_scales(p + integers, w.wide));
        if (w.minima) st(to.minima + b * 16, load_scales(p + integers + step, w.wide));
    }
}

// The product of one block into tile `T` and from there into c.
template <int T>
RAMET_INLINE void amx_product(const int8_t* q, const int8_t* w, int32_t* c) {
    if (T == 0) {
        _tile_zero(0);
        _tile_loadd(4, q, QBLOCK);
        _tile_loadd(6, w, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_stored(0, c, 64);
    } else {
        _tile_zero(1);
        _tile_loadd(5, q, QBLOCK);
        _tile_loadd(7, w, 64);
        _tile_dpbssd(1, 5, 7);
        _tile_stored(1, c + 256, 64);
    }
}

// Adds block products in c to the accumulators of 16 rows.
template <bool MINIMA>
RAMET_INLINE void amx_scale(F (&acc)[AMX_ROWS], const int32_t* c, const float* ws, const float* wm, const float* scale,
                            const float* scaled) {
    const F s = ld(ws);
    const F m = MINIMA ? ld(wm) : set(0);
#pragma GCC unroll 16
    for (int r = 0; r < AMX_ROWS; ++r) {
        acc[r] = fma(to_f(ldi(c + r * 16)) * s, set(scale[r]), acc[r]);
        if (MINIMA) acc[r] = fma(m, set(scaled[r]), acc[r]);
    }
}

template <bool MINIMA>
__attribute__((noinline)) void amx_rows(const Unpacked& w, const Act& x, int row, int rows, float* out, int ldo,
                                        bool accumulate, int32_t* c) {
    const int blocks = x.blocks();
    const int8_t* q = x.q + x.at(row, 0) * QBLOCK;
    const float* scale = x.scale + x.at(row, 0);
    const float* scaled = x.scaled + x.at(row, 0);
    const int8_t* wq = w.q;
    const float *ws = w.scale, *wm = w.minima;
    F acc[AMX_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < AMX_ROWS; ++r) acc[r] = set(0);
    // The product of block b + 1 runs while block b is scaled.
    amx_product<0>(q, wq, c);
    int b = 0;
    for (; b + 2 < blocks; b += 2) {
        amx_product<1>(q + 512, wq + 512, c);
        amx_scale<MINIMA>(acc, c, ws, wm, scale, scaled);
        amx_product<0>(q + 1024, wq + 1024, c);
        amx_scale<MINIMA>(acc, c + 256, ws + 16, wm + 16, scale + 16, scaled + 16);
        q += 1024, wq += 1024, ws += 32, wm += 32, scale += 32, scaled += 32;
    }
    if (b + 1 < blocks) amx_product<1>(q + 512, wq + 512, c);
    amx_scale<MINIMA>(acc, c, ws, wm, scale, scaled);
    if (b + 1 < blocks) amx_scale<MINIMA>(acc, c + 256, ws + 16, wm + 16, scale + 16, scaled + 16);
#pragma GCC unroll 16
    for (int r = 0; r < AMX_ROWS; ++r) {
        if (r >= rows) break;
        float* o = out + (size_t)r * ldo;
        st(o, accumulate ? ld(o) + acc[r] : acc[r]);
    }
}

void gemm_amx(const Weight& w, const Act& x, int row, int rows, int tile, int tiles, float* out, int ldo, bool add,
              void* scratch) {
    const int blocks = x.blocks();
    if (!w.quantised() || w.halves || rows < AMX_LEAST_ROWS || blocks > AMX_MOST_BLOCKS) {
        gemm(w, x, row, rows, tile, tiles, out, ldo, add, scratch);
        return;
    }
    uint8_t* at = (uint8_t*)(((uintptr_t)scratch + 63) / 64 * 64);
    int32_t* c = (int32_t*)at;
    at += 2 * 16 * 64;
    const Unpacked u{(int8_t*)at, (float*)(at + (size_t)blocks * 512), (float*)(at + (size_t)blocks * 576)};
    configure_gemm_tiles();
    for (int t = 0; t < tiles; ++t) {
        unpack(w, w.tile(tile + t), blocks, u);
        for (int r = 0; r < rows; r += AMX_ROWS) {
            const int here = rows - r < AMX_ROWS ? rows - r : AMX_ROWS;
            float* o = out + (size_t)r * ldo + t * TILE;
            if (w.minima) {
                amx_rows<true>(u, x, row + r, here, o, ldo, add, c);
            } else {
                amx_rows<false>(u, x, row + r, here, o, ldo, add, c);
            }
        }
    }
    _tile_release();
}

}  // namespace
