// The products of attention on AMX tiles: 16 queries x 16 keys, or columns, x 32 numbers of bf16 per tile product.
#pragma once

#include "pairs.hpp"

namespace {

// Tiles 0 to 3: results, 16 x 16 floats. 4, 5: queries or probabilities, 16 rows of 32. 6, 7: 16 rows of 16 pairs.
RAMET_INLINE void configure_attention_tiles() {
    alignas(64) TileConfig c{};
    c.palette = 1;
    for (int i = 0; i < 8; ++i) {
        c.column_bytes[i] = 64;
        c.rows[i] = 16;
    }
    _tile_loadconfig(&c);
}

// Needs a head size that is a multiple of 32. A tile product takes 16 rows whatever the number of queries: rows beyond it
// are computed and not used.
struct TileProducts : PairProducts {
    static constexpr bool VALUES_TOGETHER = true;
    static void begin() { configure_attention_tiles(); }
    static void end() { _tile_release(); }

    static void scores(const uint16_t* const* keys, int tiles, int width, const uint16_t* q, int q0, int q1, float* s) {
        for (int i = q0; i < q1; i += 16) {
            const uint16_t* rows = q + (size_t)i * width;
            float* out = s + (size_t)i * SEGMENT;
            if (width == 64 && tiles == 4) {  // four results at a time: a product waits for no other
                _tile_loadd(4, rows, 128);
                _tile_loadd(5, rows + 32, 128);
                _tile_zero(0);
                _tile_loadd(6, keys[0], 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_zero(1);
                _tile_loadd(7, keys[1], 64);
                _tile_dpbf16ps(1, 4, 7);
                _tile_zero(2);
                _tile_loadd(6, keys[2], 64);
                _tile_dpbf16ps(2, 4, 6);
                _tile_zero(3);
                _tile_loadd(7, keys[3], 64);
                _tile_dpbf16ps(3, 4, 7);
                _tile_loadd(6, keys[0] + 512, 64);
                _tile_dpbf16ps(0, 5, 6);
                _tile_loadd(7, keys[1] + 512, 64);
                _tile_dpbf16ps(1, 5, 7);
                _tile_loadd(6, keys[2] + 512, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_loadd(7, keys[3] + 512, 64);
                _tile_dpbf16ps(3, 5, 7);
                _tile_stored(0, out, SEGMENT * 4);
                _tile_stored(1, out + 16, SEGMENT * 4);
                _tile_stored(2, out + 32, SEGMENT * 4);
                _tile_stored(3, out + 48, SEGMENT * 4);
                continue;
            }
            for (int t = 0; t < tiles; ++t) {
                _tile_zero(0);
                for (int e = 0; e < width; e += 32) {
                    _tile_loadd(4, rows + e, width * 2);
                    _tile_loadd(6, keys[t] + (size_t)e * TILE, 64);
                    _tile_dpbf16ps(0, 4, 6);
                }
                _tile_stored(0, out + t * TILE, SEGMENT * 4);
            }
        }
    }

    static void weigh(const uint16_t* const* values, int tiles, int width, const uint16_t* p, int q0, int q1, float* out) {
        const uint16_t* v = values[0];
        const bool second = tiles > 2;
        for (int i = q0; i < q1; i += 16) {
            _tile_loadd(4, p + (size_t)i * SEGMENT, SEGMENT * 2);
            _tile_loadd(5, p + (size_t)i * SEGMENT + 32, SEGMENT * 2);
            float* to = out + (size_t)i * width;
            if (width == 64 && second) {
                const uint16_t* v2 = v + 32 * 64;
                _tile_zero(0);
                _tile_loadd(6, v, 256);
                _tile_dpbf16ps(0, 4, 6);
                _tile_zero(1);
                _tile_loadd(7, v + 32, 256);
                _tile_dpbf16ps(1, 4, 7);
                _tile_zero(2);
                _tile_loadd(6, v + 64, 256);
                _tile_dpbf16ps(2, 4, 6);
                _tile_zero(3);
                _tile_loadd(7, v + 96, 256);
                _tile_dpbf16ps(3, 4, 7);
                _tile_loadd(6, v2, 256);
                _tile_dpbf16ps(0, 5, 6);
                _tile_loadd(7, v2 + 32, 256);
                _tile_dpbf16ps(1, 5, 7);
                _tile_loadd(6, v2 + 64, 256);
                _tile_dpbf16ps(2, 5, 6);
                _tile_loadd(7, v2 + 96, 256);
                _tile_dpbf16ps(3, 5, 7);
                _tile_stored(0, to, 256);
                _tile_stored(1, to + 16, 256);
                _tile_stored(2, to + 32, 256);
                _tile_stored(3, to + 48, 256);
                continue;
            }
            for (int e = 0; e < width; e += 32) {
                _tile_zero(0);
                _tile_loadd(6, v + e * 2, width * 4);
                _tile_dpbf16ps(0, 4, 6);
                _tile_zero(1);
                _tile_loadd(7, v + e * 2 + 32, width * 4);
                _tile_dpbf16ps(1, 4, 7);
                if (second) {
                    _tile_loadd(6, v + e * 2 + (size_t)32 * width, width * 4);
                    _tile_dpbf16ps(0, 5, 6);
                    _tile_loadd(7, v + e * 2 + 32 + (size_t)32 * width, width * 4);
                    _tile_dpbf16ps(1, 5, 7);
                }
                _tile_stored(0, to + e, width * 4);
                _tile_stored(1, to + e + 16, width * 4);
            }
        }
    }
};

void attend_tiles(const AttentionArgs& a, void* scratch) {
    a.kv->pairs && a.kv->width % 32 == 0 ? attend<TileProducts>(a, scratch) : attend_pairs_or_floats(a, scratch);
}

}  // namespace
