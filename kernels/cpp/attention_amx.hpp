// Attention on AMX tiles: 16 queries x 16 keys, or columns, x 32 numbers of bf16 per tile product.
//
// As in attention.hpp a query goes through the segments of 64 keys from left to right, but its weighted values are added to
// its running state by the tile products themselves. Scores are taken relative to a maximum that follows the true one from
// some way off: it moves, and the state is scaled, only where a score of a segment lies more than SLACK above it. When it
// moves depends on the query and its keys alone.
#pragma once

#include "gemm_amx.hpp"
#include "pairs.hpp"

namespace {

constexpr float SLACK = 8.0f;  // powers of two that a probability may lie above 1

// Tiles 0 to 3: results, 16 x 16 floats. 4, 5: queries or probabilities, 16 rows of 32. 6, 7: 16 rows of 16 pairs.
RAMET_INLINE void configure_attention_tiles() {
    alignas(64) TileConfig c{};
    c.palette = 1;
    for (int i = 0; i < 8; ++i) {
        c.column_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

// Only how segments are staged.
struct TileProducts : PairProducts {
    static constexpr bool VALUES_TOGETHER = true;
};

// s [16][64] = the scores of 16 queries.
RAMET_INLINE void tile_scores(const Segment<uint16_t>& seg, int width, const uint16_t* q, float* s) {
    if (width == 64 && seg.tiles == 4) {  // four results at a time: a product waits for no other
        _tile_loadd(4, q, 128);
        _tile_loadd(5, q + 32, 128);
        _tile_zero(0);
        _tile_loadd(6, seg.keys[0], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_zero(1);
        _tile_loadd(7, seg.keys[1], 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_zero(2);
        _tile_loadd(6, seg.keys[2], 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_zero(3);
        _tile_loadd(7, seg.keys[3], 64);
        _tile_dpbf16ps(3, 4, 7);
        _tile_loadd(6, seg.keys[0] + 512, 64);
        _tile_dpbf16ps(0, 5, 6);
        _tile_loadd(7, seg.keys[1] + 512, 64);
        _tile_dpbf16ps(1, 5, 7);
        _tile_loadd(6, seg.keys[2] + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, seg.keys[3] + 512, 64);
        _tile_dpbf16ps(3, 5, 7);
        _tile_stored(0, s, SEGMENT * 4);
        _tile_stored(1, s + 16, SEGMENT * 4);
        _tile_stored(2, s + 32, SEGMENT * 4);
        _tile_stored(3, s + 48, SEGMENT * 4);
        return;
    }
    for (int t = 0; t < seg.tiles; ++t) {
        _tile_zero(0);
        for (int e = 0; e < width; e += 32) {
            _tile_loadd(4, q + e, width * 2);
            _tile_loadd(6, seg.keys[t] + (size_t)e * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
        }
        _tile_stored(0, s + t * TILE, SEGMENT * 4);
    }
}

// out [16][width] = o + probabilities [16][64] x values.
RAMET_INLINE void tile_weigh(const Segment<uint16_t>& seg, int width, const uint16_t* p, const float* o, float* out) {
    const uint16_t* v = seg.values[0];
    const bool second = seg.tiles > 2;
    const int ld = width * 4;
    _tile_loadd(4, p, SEGMENT * 2);
    _tile_loadd(5, p + 32, SEGMENT * 2);
    if (width == 64 && second) {
        const uint16_t* v2 = v + 32 * 64;
        _tile_loadd(0, o, 256);
        _tile_loadd(6, v, 256);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(1, o + 16, 256);
        _tile_loadd(7, v + 32, 256);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(2, o + 32, 256);
        _tile_loadd(6, v + 64, 256);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(3, o + 48, 256);
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
        _tile_stored(0, out, 256);
        _tile_stored(1, out + 16, 256);
        _tile_stored(2, out + 32, 256);
        _tile_stored(3, out + 48, 256);
        return;
    }
    for (int e = 0; e < width; e += 32) {
        _tile_loadd(0, o + e, ld);
        _tile_loadd(6, v + e * 2, ld);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(1, o + e + 16, ld);
        _tile_loadd(7, v + e * 2 + 32, ld);
        _tile_dpbf16ps(1, 4, 7);
        if (second) {
            _tile_loadd(6, v + e * 2 + (size_t)32 * width, ld);
            _tile_dpbf16ps(0, 5, 6);
            _tile_loadd(7, v + e * 2 + 32 + (size_t)32 * width, ld);
            _tile_dpbf16ps(1, 5, 7);
        }
        _tile_stored(0, out + e, ld);
        _tile_stored(1, out + e + 16, ld);
    }
}

// 2^x for x <= SLACK, within 3e-6; 0 far below. The polynomial is the best of degree 4 on [0, 1].
RAMET_INLINE __m512 exp2_near(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.013534168f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.05201146f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24144275f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69300383f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0000026f));
    return _mm512_scalef_ps(p, x);
}

// The maximum that query q's scores are taken relative to becomes `m`.
__attribute__((noinline)) void move_maximum(Work<uint16_t>& w, int q, int width, float m) {
    const F factor{exp2_near(_mm512_set1_ps(w.m[q] - m))};
    float* o = w.o + (size_t)q * width;
    for (int e = 0; e < width; e += 16) st(o + e, ld(o + e) * factor);
    st(w.l + q * 16, ld(w.l + q * 16) * factor);
    w.m[q] = m;
}

// Scores [64] of query q to probabilities as the products read them; keys [lo, hi) of the segment are visible.
template <bool SCALED>
RAMET_INLINE void soften_near(const Segment<uint16_t>& seg, Work<uint16_t>& w, int width, int q, int lo, int hi,
                              const float* s, uint16_t* p) {
    __m512 v[4];
    for (int j = 0; j < 4; ++j) v[j] = _mm512_loadu_ps(s + j * 16);
    if (SCALED)
        for (int j = 0; j < 4; ++j) v[j] = _mm512_mul_ps(v[j], _mm512_loadu_ps(seg.key_scale + j * 16));
    if (lo > 0 || hi < SEGMENT) {
        if (hi <= lo) {
            for (int j = 0; j < 2; ++j) _mm512_storeu_si512(p + j * 32, _mm512_setzero_si512());
            return;
        }
        const uint64_t visible = (hi < 64 ? ((uint64_t)1 << hi) - 1 : ~(uint64_t)0) & ~(((uint64_t)1 << lo) - 1);
        for (int j = 0; j < 4; ++j)
            v[j] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(visible >> (j * 16)), v[j]);
    }
    const __m512 peak = _mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3]));
    // Not below or equal: a NaN moves it too, and shows in the result.
    if (__builtin_expect(_mm512_cmp_ps_mask(peak, _mm512_set1_ps(w.m[q] + SLACK), _CMP_NLE_UQ) != 0, 0))
        move_maximum(w, q, width, _mm512_reduce_max_ps(peak));
    const __m512 m = _mm512_set1_ps(w.m[q]);
    for (int j = 0; j < 4; ++j) v[j] = exp2_near(_mm512_sub_ps(v[j], m));
    float* l = w.l + q * 16;
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3]));
    _mm512_storeu_ps(l, _mm512_add_ps(_mm512_loadu_ps(l), sum));
    if (SCALED)
        for (int j = 0; j < 4; ++j) v[j] = _mm512_mul_ps(v[j], _mm512_loadu_ps(seg.value_scale + j * 16));
    for (int j = 0; j < 2; ++j)
        _mm512_storeu_si512(p + j * 32, (__m512i)_mm512_cvtne2ps_pbh(v[2 * j + 1], v[2 * j]));
}

// Segments first <= s < run.seg1 of a run, each staged once for all queries, then taken by 16 of them at a time.
template <bool SCALED>
void attend_run(const AttentionArgs& a, const AttentionRun& run, int first, Work<uint16_t>& w) {
    const int width = a.kv->width;
    for (int s = first; s < run.seg1; ++s) {
        Segment<uint16_t> seg;
        stage<TileProducts>(a, run, s, w, seg);
        Ahead ahead(a, run, s, run.q1 - run.q0);
        for (int q0 = run.q0; q0 < run.q1; q0 += 16) {
            const int rows = run.q1 - q0 < 16 ? run.q1 - q0 : 16;
            tile_scores(seg, width, w.q + (size_t)q0 * width, w.s);
            for (int r = 0; r < rows; ++r) {
                const int position = w.position[q0 + r], base = s * SEGMENT;
                const int hi = position + 1 - base < SEGMENT ? position + 1 - base : SEGMENT;
                const int lo = a.window > 0 && position - a.window + 1 > base ? position - a.window + 1 - base : 0;
                soften_near<SCALED>(seg, w, width, q0 + r, lo, hi, w.s + r * SEGMENT, w.p + r * SEGMENT);
                ahead.some();
            }
            float* o = w.o + (size_t)q0 * width;
            tile_weigh(seg, width, w.p, o, rows == 16 ? o : w.part);
            if (rows == 16) continue;
            // Behind the last query may stand those of another run.
            for (int i = 0; i < rows * width; i += 16) st(o + i, ld(w.part + i));
        }
    }
}

// Results below the smallest normal number are zero while this is in force: they would take the processor long.
class FlushToZero {
  public:
    FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushToZero() { _mm_setcsr(before_); }

  private:
    unsigned before_;
};

template <bool SCALED>
void attend_in_tiles(const AttentionArgs& a, void* scratch) {
    const AttentionItem& item = *a.item;
    const int width = a.kv->width, per = a.per_token;
    Work<uint16_t> w(scratch, width);
    const F factor = set(a.scale * 1.44269504f);  // scores in powers of two
    const int queries = item.tokens * per;
    const FlushToZero flush;
    configure_attention_tiles();
    for (int q = 0; q < queries; ++q) {
        const float* from = a.q + (size_t)item.token[q / per] * a.ldq + (a.kv_head * per + q % per) * a.kv->dim;
        for (int e = 0; e < width; e += 16)
            PairProducts::st_number(w.q + (size_t)q * width + e, ld_or(from + e, a.kv->dim - e, 0) * factor);
        for (int e = 0; e < width; e += 16) st(w.o + (size_t)q * width + e, set(0));
        st(w.l + q * 16, set(0));
        w.m[q] = -INFINITY;
        w.position[q] = item.position[q / per];
    }
    for (int i = 0; i < item.runs; ++i) {
        const AttentionRun& run = a.runs[item.first_run + i];
        attend_run<SCALED>(a, run, first_segment(a, run, w.position), w);
    }
    _tile_release();
    for (int q = 0; q < queries; ++q) {
        float* to = a.out + (size_t)item.token[q / per] * a.ldo + (a.kv_head * per + q % per) * a.kv->dim;
        const F inverse = set(1.0f / sum(ld(w.l + q * 16)));
        for (int e = 0; e < width; e += 16) st_some(to + e, ld(w.o + (size_t)q * width + e) * inverse, a.kv->dim - e);
    }
}

// Tiles need a head size that is a multiple of 32.
void attend_tiles(const AttentionArgs& a, void* scratch) {
    if (!a.kv->pairs || a.kv->width % 32) return attend_pairs_or_floats(a, scratch);
    a.kv->type == KvType::I8 ? attend_in_tiles<true>(a, scratch) : attend_in_tiles<false>(a, scratch);
}

}  // namespace
