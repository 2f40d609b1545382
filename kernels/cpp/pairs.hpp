// The products of attention in bf16, two numbers at a time (vdpbf16ps): sums over e, or over keys, in ascending pairs.
#pragma once

#include <string.h>

#include "types.hpp"
#include "vec.hpp"

namespace {
using namespace ramet;

RAMET_INLINE __m512bh pair_everywhere(const uint16_t* p) {
    int32_t v;
    memcpy(&v, p, 4);
    return (__m512bh)_mm512_set1_epi32(v);
}

struct PairProducts {
    using Number = uint16_t;
    static constexpr bool VALUES_TOGETHER = false;

    RAMET_STATIC bool stored_as_number(const Kv& kv) { return kv.type == KvType::BF16; }
    RAMET_STATIC void st_number(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }

    // n stored numbers (a multiple of 16) as bf16; int8 is exact in it.
    RAMET_STATIC void widen(const Kv& kv, const uint8_t* from, size_t n, uint16_t* to) {
        if (kv.type == KvType::BF16) {
            for (size_t i = 0; i < n; i += 32) _mm512_storeu_si512(to + i, _mm512_loadu_si512((const uint16_t*)from + i));
        } else {
            for (size_t i = 0; i < n; i += 16) st_number(to + i, ld_i8((const int8_t*)from + i));
        }
    }

    // Values of `count` slots of a tile to another tile: 1, or from even slots to even ones.
    RAMET_STATIC void copy_values(int width, const uint16_t* from, int slot, int count, uint16_t* to, int there) {
        from += (size_t)(slot / 2) * 2 * width + slot % 2;
        to += (size_t)(there / 2) * 2 * width + there % 2;
        if (count > 1) {
            memcpy(to, from, sizeof(uint16_t) * count * width);
        } else {
            for (int e = 0; e < width; ++e) to[2 * e] = from[2 * e];
        }
    }

    // Slots from `from` on of a tile of values become zero.
    RAMET_STATIC void clear_values(int width, uint16_t* tile, int from) {
        if (from % 2)
            for (int e = 0; e < width; ++e) tile[((size_t)(from / 2) * width + e) * 2 + 1] = 0;
        for (int i = (from + 1) / 2 * 2 * width; i < TILE * width; i += 32) _mm512_storeu_si512(tile + i, _mm512_setzero_si512());
    }

    template <int R>
    RAMET_STATIC void score_rows(const uint16_t* keys, int width, const uint16_t* q, float* s) {
        __m512 acc[R];
        for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
        for (int e = 0; e < width; e += 2) {
            const __m512bh k = (__m512bh)_mm512_loadu_si512(keys + (size_t)e * TILE);
            for (int r = 0; r < R; ++r) acc[r] = _mm512_dpbf16_ps(acc[r], k, pair_everywhere(q + (size_t)r * width + e));
        }
        for (int r = 0; r < R; ++r) _mm512_storeu_ps(s + (size_t)r * SEGMENT, acc[r]);
    }

    static void scores(const uint16_t* const* keys, int tiles, int width, const uint16_t* q, int q0, int q1, float* s) {
        for (int t = 0; t < tiles; ++t) {
            int i = q0;
            for (; i + 12 <= q1; i += 12)
                score_rows<12>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
            for (; i + 3 <= q1; i += 3)
                score_rows<3>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
            for (; i < q1; ++i) score_rows<1>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
        }
    }

    // R queries against C times 16 columns of the values.
    template <int R, int C>
    RAMET_STATIC void weigh_rows(const uint16_t* const* values, int tiles, int width, const uint16_t* p, float* out, int e) {
        __m512 acc[R][C];
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < TILE; i += 2) {
                __m512bh v[C];
                for (int c = 0; c < C; ++c)
                    v[c] = (__m512bh)_mm512_loadu_si512(values[t] + (size_t)i * width + (e + c * 16) * 2);
                for (int r = 0; r < R; ++r) {
                    const __m512bh x = pair_everywhere(p + (size_t)r * SEGMENT + t * TILE + i);
                    for (int c = 0; c < C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], v[c], x);
                }
            }
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) _mm512_storeu_ps(out + (size_t)r * width + e + c * 16, acc[r][c]);
    }

    template <int R>
    RAMET_STATIC void weigh_some(const uint16_t* const* values, int tiles, int width, const uint16_t* p, float* out) {
        int e = 0;
        for (; e + 64 <= width; e += 64) weigh_rows<R, 4>(values, tiles, width, p, out, e);
        for (; e < width; e += 16) weigh_rows<R, 1>(values, tiles, width, p, out, e);
    }

    static void weigh(const uint16_t* const* values, int tiles, int width, const uint16_t* p, int q0, int q1, float* out) {
        int i = q0;
        for (; i + 4 <= q1; i += 4) weigh_some<4>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
        for (; i + 3 <= q1; i += 3) weigh_some<3>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
        for (; i < q1; ++i) weigh_some<1>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
    }
};

void halve_pairs(const float* x, int n, uint16_t* to) {
    int i = 0;
    for (; i + 16 <= n; i += 16) PairProducts::st_number(to + i, ld(x + i));
    for (; i < n; ++i) to[i] = f32_to_bf16(x[i]);
}

// Which products a cache needs.
void attend_pairs_or_floats(const AttentionArgs& a, void* scratch) {
    a.kv->pairs ? attend<PairProducts>(a, scratch) : attend<FloatProducts>(a, scratch);
}

}  // namespace
