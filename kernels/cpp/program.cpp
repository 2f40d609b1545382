#include "program.hpp"

#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace ramet {

namespace {
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

Program::Memory Program::allocate(size_t bytes) {
    void* p = std::aligned_alloc(64, round_up(bytes + 64, 64));
    if (!p) throw std::bad_alloc();
    return Memory((uint8_t*)p);
}

int Program::value(int width, bool wanted) {
    values.push_back({width, wanted, false, false, {}});
    return (int)values.size() - 1;
}

int Program::add_rope(Rope rope) {
    for (size_t i = 0; i < ropes_.size(); ++i)
        if (ropes_[i].interleaved == rope.interleaved && ropes_[i].inv_freq == rope.inv_freq) return (int)i;
    ropes_.push_back(std::move(rope));
    angles_.emplace_back();
    return (int)ropes_.size() - 1;
}

// Places every value in one arena, sized for this batch (it only grows).
void Program::make_room() {
    for (int pass = 0; pass < 2; ++pass) {
        size_t at = 0;
        auto take = [&](size_t bytes) {
            uint8_t* here = pass ? arena_.get() + at : nullptr;
            at += round_up(bytes, 64);
            return here;
        };
        for (Value& v : values) {
            const size_t n = round_up((size_t)rows(v), 16);  // kernels may read, not use, rows up to the next 16
            v.act.ld = (int)round_up(v.width, TILE);
            v.act.k = v.width;
            v.act.f = (float*)take(4 * n * v.act.ld);
            v.act.ldh = (int)round_up(v.width, 32);
            v.act.h = v.bf16 ? (uint16_t*)take(2 * n * v.act.ldh) : nullptr;
            if (!v.int8) continue;
            const size_t blocks = v.width / QBLOCK;
            v.act.q = (int8_t*)take(n * v.width);
            v.act.scale = (float*)take(4 * n * blocks);
            v.act.scaled = (float*)take(4 * n * blocks);
            v.act.sums = (int32_t*)take(8 * n * blocks);
        }
        if (!pass && at > arena_bytes_) {
            arena_ = allocate(at);
            arena_bytes_ = at;
        }
        if (!arena_) arena_ = allocate(64);
    }
    size_t most = 64;
    for (const auto& step : steps_) most = std::max(most, step->scratch(*this));
    if (most > scratch_bytes_ || scratch_.empty()) {
        scratch_.clear();
        for (int i = 0; i < threads(); ++i) scratch_.push_back(allocate(most));
        scratch_bytes_ = most;
    }
}

// Angles are float32 products, their cosines and sines are taken in float64 and rounded.
void Program::make_angles() {
    for (size_t r = 0; r < ropes_.size(); ++r) {
        const auto& f = ropes_[r].inv_freq;
        angles_[r].resize((size_t)batch.tokens * width_of((int)r));
        float* to = angles_[r].data();
        for (int i = 0; i < batch.tokens; ++i, to += 2 * f.size()) {
            for (size_t j = 0; j < f.size(); ++j) {
                const float angle = (float)batch.positions[i] * f[j];
                to[j] = (float)std::cos((double)angle);
                to[f.size() + j] = (float)std::sin((double)angle);
            }
        }
    }
}

void Program::convert(const Value& v, int row, int column, int n) const {
    const float* from = v.act.f + (size_t)row * v.act.ld + column;
    if (v.int8) lane.quantise(from, v.act, row, column / QBLOCK, n / QBLOCK);
    if (!v.bf16) return;
    uint16_t* to = v.act.h + (size_t)row * v.act.ldh;
    lane.halve(from, n, to + column);
    for (int i = v.width; i < v.act.ldh; ++i) to[i] = 0;
}

void Program::finish(int phase, int thread) {
    note(phase);
    for (++phase; phase < count() && tail_[phase]; ++phase) {
        const int chunks = steps_[phase]->chunks(*this);
        for (int i = 0; i < chunks; ++i) steps_[phase]->chunk(*this, i, thread);
        note(phase);
    }
}

// Small steps are done by the thread that finished the step before them: cheaper than a phase of their own.
void Program::find_tails() {
    tail_.assign(count(), 0);
    for (int i = 1; i < count(); ++i)
        tail_[i] = steps_[i]->small(*this) && (tail_[i - 1] || steps_[i - 1]->chunks(*this) > 0);
}

void Program::note(int phase) {
    if (!profiling) return;
    const auto now = std::chrono::steady_clock::now();
    profile[steps_[phase]->name()] += std::chrono::duration<double>(now - last_finish_).count();
    last_finish_ = now;
}

const Act& Program::run(Batch next, const Kv& cache) {
    last_finish_ = std::chrono::steady_clock::now();
    batch = std::move(next);
    kv = cache;
    batch.row_of.resize(batch.tokens);
    for (int row = 0; row < batch.rows; ++row)
        for (int i = batch.row_start[row]; i < batch.row_start[row + 1]; ++i) batch.row_of[i] = row;
    make_room();
    make_angles();
    find_tails();
    if (heads_per_kv > 0) plan.make(batch, heads_per_kv, kv.heads, threads());
    if (profiling) {
        const auto now = std::chrono::steady_clock::now();
        profile["plan"] += std::chrono::duration<double>(now - last_finish_).count();
        last_finish_ = now;
    }
    pool.run(*this);
    return values[result].act;
}

}  // namespace ramet
