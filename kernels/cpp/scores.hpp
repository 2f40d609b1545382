// The two products of attention in floats: scores = keys . q and part = probabilities . values.
//
// A Products type says what the products read (Number), brings stored keys and values into that form, and multiplies.
// Each score is a sum over e in ascending order, each part a sum over keys in ascending order, whatever the number of
// queries that are taken at a time.
#pragma once

#include <string.h>

#include "types.hpp"
#include "vec.hpp"

namespace {

using namespace ramet;

struct FloatProducts {
using Number = float;
// Whether the values of a whole segment must stand one after another.
static constexpr bool VALUES_TOGETHER = false;

RAMET_STATIC bool stored_as_number(const Kv& kv) { return kv.type == KvType::F32; }
RAMET_STATIC void st_number(float* p, F a) { st(p, a); }

// n stored numbers (a multiple of 16) as floats.
RAMET_STATIC void widen(const Kv& kv, const uint8_t* from, size_t n, float* to) {
    for (size_t i = 0; i < n; i += 16) {
        switch (kv.type) {
            case KvType::F32:
                st(to + i, ld((const float*)from + i));
                break;
            case KvType::BF16:
                st(to + i, ld_bf16((const uint16_t*)from + i));
                break;
            case KvType::F16:
                st(to + i, ld_f16((const uint16_t*)from + i));
                break;
            case KvType::I8:
                st(to + i, ld_i8((const int8_t*)from + i));
                break;
        }
    }
}

// Values of `count` slots of a tile to another tile.
RAMET_STATIC void copy_values(int width, const float* from, int slot, int count, float* to, int there) {
    memcpy(to + (size_t)there * width, from + (size_t)slot * width, sizeof(float) * count * width);
}

RAMET_STATIC void clear_values(int width, float* tile, int from) {
    for (int i = from * width; i < TILE * width; i += 16) st(tile + i, set(0));
}

template <int R>
RAMET_STATIC void score_rows(const float* keys, int width, const float* q, float* s) {
    F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = set(0);
    for (int e = 0; e < width; ++e) {
        const F k = ld(keys + (size_t)e * TILE);
        for (int r = 0; r < R; ++r) acc[r] = fma(k, set(q[(size_t)r * width + e]), acc[r]);
    }
    for (int r = 0; r < R; ++r) st(s + (size_t)r * SEGMENT, acc[r]);
}

static void scores(const float* const* keys, int tiles, int width, const float* q, int q0, int q1, float* s) {
    for (int t = 0; t < tiles; ++t) {
        int i = q0;
        for (; i + 6 <= q1; i += 6) score_rows<6>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
        for (; i + 3 <= q1; i += 3) score_rows<3>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
        for (; i < q1; ++i) score_rows<1>(keys[t], width, q + (size_t)i * width, s + (size_t)i * SEGMENT + t * TILE);
    }
}

template <int R>
RAMET_STATIC void weigh_rows(const float* const* values, int tiles, int width, const float* p, float* out) {
    for (int e = 0; e < width; e += 16) {
        F acc[R];
        for (int r = 0; r < R; ++r) acc[r] = set(0);
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < TILE; ++i) {
                const F v = ld(values[t] + (size_t)i * width + e);
                for (int r = 0; r < R; ++r) acc[r] = fma(v, set(p[(size_t)r * SEGMENT + t * TILE + i]), acc[r]);
            }
        for (int r = 0; r < R; ++r) st(out + (size_t)r * width + e, acc[r]);
    }
}

static void weigh(const float* const* values, int tiles, int width, const float* p, int q0, int q1, float* out) {
    int i = q0;
    for (; i + 6 <= q1; i += 6) weigh_rows<6>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
    for (; i + 3 <= q1; i += 3) weigh_rows<3>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
    for (; i < q1; ++i) weigh_rows<1>(values, tiles, width, p + (size_t)i * SEGMENT, out + (size_t)i * width);
}

};

}  // namespace
