// Attention over paged KV in segments of 64 keys, written once for every lane (AMX has a way of its own with bf16 keys, see
// attention_amx.hpp, and shares what stands before `soften`); its products are of the type P.
#pragma once

#include <math.h>
#include <string.h>

#include "types.hpp"
#include "vec.hpp"

namespace {
using namespace ramet;

alignas(64) const float COUNT[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Where the keys and values of a segment lie, tile by tile, in the type that the products read.
template <class Number>
struct Segment {
    const Number* keys[4];
    const Number* values[4];
    float key_scale[SEGMENT];  // I8 only
    float value_scale[SEGMENT];
    int tiles;  // with at least one filled slot
};

// Running state and workspace of an item: laid out in the caller's scratch.
template <class Number>
struct Work {
    Number* q;        // [MAX_QUERIES + 16][width]
    float* s;         // [MAX_QUERIES + 16][64] scores, then probabilities
    Number* p;        // [MAX_QUERIES + 16][64] probabilities as the products read them
    float* part;      // [MAX_QUERIES + 16][width] what a segment gives
    float* o;         // [MAX_QUERIES][width] running
    float* l;         // [MAX_QUERIES][16] running sums, lane by lane
    float* lpart;     // the segment's
    float* m;         // [MAX_QUERIES] running maximum
    float* mpart;     // the segment's; -inf: no key of it is visible
    float* old;       // [MAX_QUERIES] factor of the running state when the segment's part comes in
    float* fresh;     // of that part
    int32_t* position;  // [MAX_QUERIES] absolute
    Number* keys;     // [64][width] staged
    Number* values;   // [64][width]
    static constexpr int ROWS = MAX_QUERIES + 16;

    static size_t bytes(int width) {
        const size_t rows = ROWS;
        return sizeof(Number) * (rows * width + rows * 64 + 2 * 64 * (size_t)width) +
               4 * (rows * 64 + 2 * rows * width + 2 * rows * 16 + 5 * rows) + 16 * 64;
    }
    Work(void* scratch, int width) {
        uint8_t* at = (uint8_t*)scratch;
        auto take = [&at](size_t size) {
            uint8_t* here = at;
            at += (size + 63) / 64 * 64;
            return here;
        };
        const size_t rows = ROWS;
        q = (Number*)take(sizeof(Number) * rows * width);
        s = (float*)take(4 * rows * 64);
        p = (Number*)take(sizeof(Number) * rows * 64);
        part = (float*)take(4 * rows * width);
        o = (float*)take(4 * rows * width);
        l = (float*)take(4 * rows * 16);
        lpart = (float*)take(4 * rows * 16);
        m = (float*)take(4 * rows);
        mpart = (float*)take(4 * rows);
        old = (float*)take(4 * rows);
        fresh = (float*)take(4 * rows);
        position = (int32_t*)take(4 * rows);
        keys = (Number*)take(sizeof(Number) * 64 * width);
        values = (Number*)take(sizeof(Number) * 64 * width);
    }
};

size_t attend_scratch(int width) { return Work<float>::bytes(width); }

// The unit and slot of a position.
RAMET_INLINE const uint8_t* unit_of(const AttentionArgs& a, const AttentionRun& run, int position, int& slot) {
    const int block = run.table[position / a.kv->block];
    slot = a.kv->first(block) + position % a.kv->block;
    return a.kv->at(a.layer, block, a.kv_head);
}

// Whether the slots of a tile, of which `here` are filled, stand in one tile of the cache.
RAMET_INLINE bool together(const Kv& kv, const AttentionRun& run, int position, int here) {
    if (kv.group == 1) return true;
    const int32_t* table = run.table + position / kv.block;
    if (table[0] % kv.group) return false;
    for (int i = 1; i * kv.block < here; ++i)
        if (table[i] != table[0] + i) return false;
    return true;
}

// A block shorter than a tile, which begins at `slot` of its unit, to the places from `to` on of the segment.
template <class P>
RAMET_INLINE void stage_block(const Kv& kv, const uint8_t* unit, int slot, Work<typename P::Number>& w, int to) {
    using Number = typename P::Number;
    constexpr int SIDE = 4 / sizeof(Number);  // numbers of a slot that stand side by side in a key
    const size_t tile = (size_t)TILE * kv.width;
    const auto numbers = [&](const uint8_t* from) {
        if (P::stored_as_number(kv)) return (const Number*)from;
        P::widen(kv, from, tile, (Number*)w.part);
        return (const Number*)w.part;
    };
    const Number* from = numbers(unit) + slot * SIDE;
    Number* keys = w.keys + to / TILE * tile + to % TILE * SIDE;
    for (int e = 0; e < kv.width; e += SIDE) memcpy(keys + (size_t)e * TILE, from + (size_t)e * TILE, kv.block * 4);
    P::copy_values(kv.width, numbers(unit + kv.values()), slot, kv.block, w.values + to / TILE * tile, to % TILE);
}

// Scales of the 64 slots from `base` on, zero where they are not filled.
RAMET_INLINE void stage_scales(const AttentionArgs& a, const AttentionRun& run, int base, int filled, float* keys,
                               float* values) {
    const Kv& kv = *a.kv;
    const int run_length = kv.block < TILE ? kv.block : TILE;  // slots that stand side by side
    for (int i = 0; i < SEGMENT; i += run_length) {
        const int here = filled - i < run_length ? filled - i : run_length;
        if (here > 0) {
            int slot;
            const float* scales = (const float*)(unit_of(a, run, base + i, slot) + kv.scales()) + slot;
            memcpy(keys + i, scales, 4 * run_length);
            memcpy(values + i, scales + kv.slots, 4 * run_length);
        }
        for (int j = here > 0 ? here : 0; j < run_length; ++j) keys[i + j] = values[i + j] = 0;
    }
}

// Keys and values of segment `seg`, in place where they can be read there, else staged. Values of slots that are not
// filled are staged as zeros; their keys may be anything (their scores are replaced before use).
template <class P>
void stage(const AttentionArgs& a, const AttentionRun& run, int seg, Work<typename P::Number>& w,
           Segment<typename P::Number>& out) {
    using Number = typename P::Number;
    const Kv& kv = *a.kv;
    const int base = seg * SEGMENT;
    const int filled = run.context - base < SEGMENT ? run.context - base : SEGMENT;
    out.tiles = (filled + TILE - 1) / TILE;
    const bool in_place = P::stored_as_number(kv);
    if (kv.type == KvType::I8) stage_scales(a, run, base, filled, out.key_scale, out.value_scale);
    for (int t = 0; t < out.tiles; ++t) {
        const int first = base + t * TILE;
        const int here = filled - t * TILE < TILE ? filled - t * TILE : TILE;
        out.keys[t] = w.keys + (size_t)t * TILE * kv.width;
        out.values[t] = w.values + (size_t)t * TILE * kv.width;
        if (!together(kv, run, first, here)) {
            for (int i = 0; i < here; i += kv.block) {
                int slot;
                const uint8_t* unit = unit_of(a, run, first + i, slot);
                stage_block<P>(kv, unit, slot, w, t * TILE + i);
            }
            if (here < TILE) P::clear_values(kv.width, w.values + (size_t)t * TILE * kv.width, here);
            continue;
        }
        int slot;
        const uint8_t* unit = unit_of(a, run, first, slot);
        const size_t offset = (size_t)slot * kv.width * kv.size;
        const uint8_t* keys = unit + offset;
        const uint8_t* values = unit + kv.values() + offset;
        if (in_place) {
            out.keys[t] = (const Number*)keys;
        } else {
            P::widen(kv, keys, (size_t)TILE * kv.width, w.keys + (size_t)t * TILE * kv.width);
        }
        if (in_place && here == TILE && !P::VALUES_TOGETHER) {
            out.values[t] = (const Number*)values;
        } else {
            P::widen(kv, values, (size_t)TILE * kv.width, w.values + (size_t)t * TILE * kv.width);
            if (here < TILE) P::clear_values(kv.width, w.values + (size_t)t * TILE * kv.width, here);
        }
    }
    if (P::VALUES_TOGETHER && out.tiles % 2) P::clear_values(kv.width, w.values + (size_t)out.tiles * TILE * kv.width, 0);
}

// Scores of one query to probabilities relative to the segment's maximum. Keys [lo, hi) of the segment are visible.
// Maxima and exponents are in powers of two: `factor` is the scale of the scores times log2(e).
template <class P>
RAMET_INLINE void soften(F factor, bool scaled, const Segment<typename P::Number>& seg, Work<typename P::Number>& w, int q,
                         int lo, int hi) {
    float* s = w.s + (size_t)q * SEGMENT;
    typename P::Number* p = w.p + (size_t)q * SEGMENT;
    if (hi <= lo) {
        w.mpart[q] = -INFINITY;
        for (int j = 0; j < 4; ++j) P::st_number(p + j * 16, set(0));
        st(w.lpart + q * 16, set(0));
        return;
    }
    F v[4];
    for (int j = 0; j < 4; ++j) v[j] = ld(s + j * 16);
    if (scaled)
        for (int j = 0; j < 4; ++j) v[j] = v[j] * ld(seg.key_scale + j * 16);
    for (int j = 0; j < 4; ++j) v[j] = v[j] * factor;
    if (lo > 0 || hi < SEGMENT) {
        const F none = set(-INFINITY), index = ld(COUNT);
        for (int j = 0; j < 4; ++j) {
            v[j] = if_less(index, set((float)(hi - j * 16)), v[j], none);
            v[j] = if_less(index, set((float)(lo - j * 16)), none, v[j]);
        }
    }
    const float peak = largest(max(max(v[0], v[1]), max(v[2], v[3])));
    const F m = set(peak);
    for (int j = 0; j < 4; ++j) v[j] = exp2_negative(v[j] - m);
    st(w.lpart + q * 16, (v[0] + v[1]) + (v[2] + v[3]));
    if (scaled)
        for (int j = 0; j < 4; ++j) v[j] = v[j] * ld(seg.value_scale + j * 16);
    for (int j = 0; j < 4; ++j) P::st_number(p + j * 16, v[j]);
    w.mpart[q] = peak;
}

// Maxima of queries [q0, q1) after the segment, and the factors of what was there before and of the segment's part:
// 2^(m - m') and 2^(mpart - m'). A part without a visible key leaves the state as it is.
template <class Number>
RAMET_INLINE void weights_of_parts(Work<Number>& w, int q0, int q1) {
    for (int i = q0; i < q1; i += 16) {  // what stands behind q1 is not used
        const F none = set(-INFINITY), old_m = ld(w.m + i), part_m = ld(w.mpart + i), m = max(old_m, part_m);
        st(w.old + i, if_less(none, part_m, exp2_negative(old_m - m), set(1)));
        st(w.fresh + i, if_less(none, part_m, exp2_negative(part_m - m), set(0)));
        if (i + 16 <= q1) {
            st(w.m + i, m);
        } else {
            st_some(w.m + i, m, q1 - i);
        }
    }
}

// The segment's parts into the running states of queries [q0, q1).
template <class Number>
RAMET_INLINE void merge(Work<Number>& w, int q0, int q1, int width) {
    for (int q = q0; q < q1; ++q) {
        const F a = set(w.old[q]), b = set(w.fresh[q]);
        st(w.l + q * 16, fma(ld(w.l + q * 16), a, ld(w.lpart + q * 16) * b));
        float* o = w.o + (size_t)q * width;
        const float* part = w.part + (size_t)q * width;
        for (int e = 0; e < width; e += 16) st(o + e, fma(ld(o + e), a, ld(part + e) * b));
    }
}

// Asks for the keys and values of the segment after `seg` while this one is computed, a few lines at a time: asked for all
// at once they would hold up what comes next until memory has answered.
class Ahead {
  public:
    // `turns`: how often `some` will be called.
    Ahead(const AttentionArgs& a, const AttentionRun& run, int seg, int turns) {
        const Kv& kv = *a.kv;
        if (seg + 1 >= run.seg1) return;
        const size_t bytes = (size_t)TILE * kv.width * kv.size;
        for (int position = (seg + 1) * SEGMENT; position < (seg + 2) * SEGMENT && position < run.context; position += TILE) {
            int slot;
            const uint8_t* keys = unit_of(a, run, position, slot) + slot / TILE * bytes;
            part_[parts_++] = keys;
            part_[parts_++] = keys + kv.values();
        }
        lines_ = (int)(bytes / 64);
        step_ = (parts_ * lines_ + turns - 1) / turns;
    }
    RAMET_MEMBER void some() {
        for (int i = 0; i < step_ && now_ < parts_; ++i) {
            __builtin_prefetch(part_[now_] + (size_t)line_ * 64, 0, 2);
            if (++line_ == lines_) line_ = 0, ++now_;
        }
    }

  private:
    const uint8_t* part_[2 * SEGMENT / TILE];
    int parts_ = 0, lines_ = 0, step_ = 0, now_ = 0, line_ = 0;
};

// The first segment of a run in which one of its queries sees a key. `position`: of the item's queries.
RAMET_INLINE int first_segment(const AttentionArgs& a, const AttentionRun& run, const int32_t* position) {
    if (a.window <= 0) return run.seg0;
    int lowest = position[run.q0];
    for (int q = run.q0; q < run.q1; ++q) lowest = position[q] < lowest ? position[q] : lowest;
    const int start = (lowest - a.window + 1) / SEGMENT;
    return lowest >= a.window && start > run.seg0 ? start : run.seg0;
}

template <class P>
void attend(const AttentionArgs& a, void* scratch) {
    using Number = typename P::Number;
    const AttentionItem& item = *a.item;
    const int width = a.kv->width, per = a.per_token;
    Work<Number> w(scratch, width);
    const F factor = set(a.scale * 1.44269504f);
    const bool scaled = a.kv->type == KvType::I8;
    const int queries = item.tokens * per;
    for (int q = 0; q < queries; ++q) {
        const float* from = a.q + (size_t)item.token[q / per] * a.ldq + (a.kv_head * per + q % per) * a.kv->dim;
        for (int e = 0; e < width; e += 16) P::st_number(w.q + (size_t)q * width + e, ld_or(from + e, a.kv->dim - e, 0));
        for (int e = 0; e < width; e += 16) st(w.o + (size_t)q * width + e, set(0));
        st(w.l + q * 16, set(0));
        w.m[q] = -INFINITY;
        w.position[q] = item.position[q / per];
    }
    for (int i = 0; i < item.runs; ++i) {
        const AttentionRun& run = a.runs[item.first_run + i];
        const int first = first_segment(a, run, w.position);
        for (int s = first; s < run.seg1; ++s) {
            Segment<Number> seg;
            stage<P>(a, run, s, w, seg);
            Ahead ahead(a, run, s, run.q1 - run.q0);
            P::scores(seg.keys, seg.tiles, width, w.q, run.q0, run.q1, w.s);
            for (int q = run.q0; q < run.q1; ++q) {
                const int position = w.position[q], base = s * SEGMENT;
                const int hi = position + 1 - base < SEGMENT ? position + 1 - base : SEGMENT;
                const int lo = a.window > 0 && position - a.window + 1 > base ? position - a.window + 1 - base : 0;
                soften<P>(factor, scaled, seg, w, q, lo, hi);
                ahead.some();
            }
            weights_of_parts(w, run.q0, run.q1);
            P::weigh(seg.values, seg.tiles, width, w.p, run.q0, run.q1, w.part);
            merge(w, run.q0, run.q1, width);
        }
    }
    for (int q = 0; q < queries; ++q) {
        float* to = a.out + (size_t)item.token[q / per] * a.ldo + (a.kv_head * per + q % per) * a.kv->dim;
        const F inverse = set(1.0f / sum(ld(w.l + q * 16)));
        for (int e = 0; e < width; e += 16) st_some(to + e, ld(w.o + (size_t)q * width + e) * inverse, a.kv->dim - e);
    }
}

}  // namespace
