#include "steps.hpp"

#include <algorithm>
#include <cstring>

#include "pack.hpp"

namespace ramet {
namespace {

constexpr int ROWS_PER_CHUNK = 128;

int divide_up(int a, int b) { return (a + b - 1) / b; }

// Rows cut in chunks, enough of them for every thread to have several.
struct RowCut {
    int rows, size, chunks;
    RowCut(int rows, int threads, int least) : rows(rows) {
        size = std::max(least, divide_up(rows, threads * 4));
        chunks = divide_up(rows, size);
    }
    int first(int i) const { return i * size; }
    int last(int i) const { return std::min(rows, (i + 1) * size); }
};

float* row_of(const Act& a, int row) { return a.f + (size_t)row * a.ld; }

// A step that treats each row alone.
class RowStep : public Step {
  public:
    explicit RowStep(int to, int least = 1) : to(to), least_(least) {}
    virtual void row(Program& p, int r) = 0;
    bool small(const Program& p) const override { return p.rows(p.values[to]) <= 2; }
    int chunks(const Program& p) const override { return cut(p).chunks; }
    void chunk(Program& p, int index, int) override {
        const RowCut c = cut(p);
        for (int r = c.first(index); r < c.last(index); ++r) row(p, r);
    }

  protected:
    int to;

  private:
    RowCut cut(const Program& p) const { return RowCut(p.rows(p.values[to]), p.threads(), least_); }
    int least_;
};

class Embed : public RowStep {
  public:
    const char* name() const override { return "embed"; }
    Embed(Weight table, float factor, int to) : RowStep(to), table_(table), factor_(factor) {}
    void row(Program& p, int r) override {
        float* out = row_of(p.values[to].act, r);
        unpack_row(table_, p.batch.ids[r], out);
        if (factor_ != 1.0f)
            for (int i = 0; i < p.values[to].width; ++i) out[i] *= factor_;
    }

  private:
    Weight table_;
    float factor_;
};

class Norm : public RowStep {
  public:
    const char* name() const override { return "norm"; }
    Norm(int x, const float* weight, int size, float eps, int to)
        : RowStep(to), x_(x), weight_(weight), size_(size), eps_(eps) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        for (int i = 0; i < out.width; i += size_)
            p.lane.norm(row_of(p.values[x_].act, r) + i, weight_, eps_, size_, row_of(out.act, r) + i);
        p.convert(out, r, 0, out.width);
    }

  private:
    int x_;
    const float* weight_;
    int size_;
    float eps_;
};

class Convert : public RowStep {
  public:
    const char* name() const override { return "convert"; }
    explicit Convert(int x) : RowStep(x) {}
    void row(Program& p, int r) override {
        p.convert(p.values[to], r, 0, p.values[to].width);
    }
};

// Output columns in units of `unit` tiles and rows in runs of ROWS_PER_CHUNK.
struct Grid {
    int columns, rows, unit, units, row_runs;
    Grid(int tiles, int rows, int threads, int least, int most = 8) : rows(rows) {
        unit = std::max(least, std::min(most, tiles / (threads * 8)));
        unit = divide_up(unit, least) * least;
        units = divide_up(tiles, unit);
        row_runs = divide_up(rows, ROWS_PER_CHUNK);
    }
    int chunks() const { return units * row_runs; }
    int tile(int i) const { return i % units * unit; }
    int row(int i) const { return i / units * ROWS_PER_CHUNK; }
    int rows_at(int i) const { return std::min(ROWS_PER_CHUNK, rows - row(i)); }
};

class Matmul : public Step {
  public:
    const char* name() const override { return accumulate_ ? "matmul + add" : "matmul"; }
    Matmul(int x, Weight w, int to, bool accumulate) : x_(x), w_(w), to_(to), accumulate_(accumulate) {}
    size_t scratch(const Program& p) const override { return p.lane.gemm_scratch(); }
    int chunks(const Program& p) const override { return grid(p).chunks(); }
    void chunk(Program& p, int index, int thread) override {
        const Grid g = grid(p);
        const Act& out = p.values[to_].act;
        const int tile = g.tile(index), row = g.row(index);
        p.lane.gemm(w_, p.values[x_].act, row, g.rows_at(index), tile, std::min(g.unit, w_.tiles - tile),
                    row_of(out, row) + tile * TILE, out.ld, accumulate_, p.scratch(thread));
    }

  private:
    Grid grid(const Program& p) const { return Grid(w_.tiles, p.rows(p.values[to_]), p.threads(), 1); }
    int x_;
    Weight w_;
    int to_;
    bool accumulate_;
};

class GateUp : public Step {
  public:
    const char* name() const override { return "gate_up"; }
    GateUp(int x, Weight gate, Weight up, int to) : x_(x), gate_(gate), up_(up), to_(to) {}
    size_t scratch(const Program& p) const override { return p.lane.gemm_scratch() + 2 * sizeof(float) * TEMPORARY; }
    int chunks(const Program& p) const override { return grid(p).chunks(); }
    void chunk(Program& p, int index, int thread) override {
        const Grid g = grid(p);
        const Value& out = p.values[to_];
        const Act& x = p.values[x_].act;
        float* gate = (float*)((uint8_t*)p.scratch(thread) + p.lane.gemm_scratch());
        const int tile = g.tile(index), tiles = std::min(g.unit, gate_.tiles - tile), ld = tiles * TILE;
        float* up = gate + TEMPORARY;
        const int width = std::min(ld, out.width - tile * TILE);
        const int stop = g.row(index) + g.rows_at(index);
        const int step = TEMPORARY / ld / TILE * TILE;
        for (int row = g.row(index); row < stop; row += step) {
            const int rows = std::min(step, stop - row);
            p.lane.gemm(gate_, x, row, rows, tile, tiles, gate, ld, false, p.scratch(thread));
            p.lane.gemm(up_, x, row, rows, tile, tiles, up, ld, false, p.scratch(thread));
            for (int r = 0; r < rows; ++r) {
                float* to = row_of(out.act, row + r) + tile * TILE;
                p.lane.silu_mul(gate + r * ld, up + r * ld, width, to);
                p.convert(out, row + r, tile * TILE, width);
            }
        }
    }

  private:
    static constexpr int TEMPORARY = ROWS_PER_CHUNK * 2 * TILE;
    Grid grid(const Program& p) const {
        const int rows = p.rows(p.values[to_]);
        return Grid(gate_.tiles, rows, p.threads(), 2, rows > 32 ? 2 : 8);
    }
    int x_;
    Weight gate_, up_;
    int to_;
};

void store_token(Program& p, int token, int layer, int head, const float* k, const float* v) {
    const int block = p.kv.block;
    p.lane.store(p.kv, layer, head, p.batch.slot_block(token, block), p.batch.positions[token] % block, k, v);
}

// One head of queries, keys or values per chunk, over a run of rows: rotated, and stored where it is not a query.
class Qkv : public Step {
  public:
    const char* name() const override { return "qkv"; }
    explicit Qkv(QkvSpec s) : s_(std::move(s)) {}
    size_t scratch(const Program& p) const override { return p.lane.gemm_scratch() + sizeof(float) * ROWS_PER_CHUNK * s_.head_dim; }
    int chunks(const Program& p) const override { return heads() * divide_up(p.batch.tokens, ROWS_PER_CHUNK); }
    void chunk(Program& p, int index, int thread) override {
        int head = index % heads();
        const int first = index / heads() * ROWS_PER_CHUNK, stop = std::min(p.batch.tokens, first + ROWS_PER_CHUNK);
        int part = 0;
        while (head >= s_.weights[part].n / s_.head_dim) head -= s_.weights[part++].n / s_.head_dim;
        float* out = (float*)((uint8_t*)p.scratch(thread) + p.lane.gemm_scratch());
        rows(p, part, head, first, stop - first, out, thread);
    }

  private:
    int heads() const { return (s_.weights[0].n + s_.weights[1].n + s_.weights[2].n) / s_.head_dim; }

    void rows(Program& p, int part, int head, int first, int count, float* out, int thread) {
        const int width = s_.head_dim, tiles = width / TILE;
        p.lane.gemm(s_.weights[part], p.values[s_.x].act, first, count, head * tiles, tiles, out, width, false,
                    p.scratch(thread));
        for (int i = 0; i < count; ++i) {
            float* x = out + i * width;
            const int token = first + i, block = p.kv.block;
            if (s_.biases[part]) p.lane.add(x, s_.biases[part] + head * width, width, x);
            if (part < 2) p.lane.rope(x, p.cosine(s_.rope, token), p.sine(s_.rope, token), width / 2, p.rope(s_.rope).interleaved);
            if (part == 0) {
                memcpy(row_of(p.values[s_.q].act, token) + head * width, x, sizeof(float) * width);
            } else {
                p.lane.store(p.kv, s_.layer, head, p.batch.slot_block(token, block), p.batch.positions[token] % block,
                             part == 1 ? x : nullptr, part == 2 ? x : nullptr);
            }
        }
    }

    QkvSpec s_;
};

class RopeStep : public RowStep {
  public:
    const char* name() const override { return "rope"; }
    RopeStep(int x, int to, int heads, int rope) : RowStep(to), x_(x), heads_(heads), rope_(rope) {}
    void row(Program& p, int r) override {
        const Value& x = p.values[to];
        const int width = x.width / heads_;
        if (x_ != to) memcpy(row_of(x.act, r), row_of(p.values[x_].act, r), sizeof(float) * x.width);
        for (int h = 0; h < heads_; ++h)
            p.lane.rope(row_of(x.act, r) + h * width, p.cosine(rope_, r), p.sine(rope_, r), width / 2,
                        p.rope(rope_).interleaved);
    }

  private:
    int x_, heads_, rope_;
};

class Store : public RowStep {
  public:
    const char* name() const override { return "store"; }
    Store(int k, int v, int layer) : RowStep(k), v_(v), layer_(layer) {}
    void row(Program& p, int r) override {
        const float* k = row_of(p.values[to].act, r);
        const float* v = row_of(p.values[v_].act, r);
        for (int h = 0; h < p.kv.heads; ++h) store_token(p, r, layer_, h, k + h * p.kv.dim, v + h * p.kv.dim);
    }

  private:
    int v_, layer_;
};

class Attention : public Step {
  public:
    const char* name() const override { return "attention"; }
    Attention(int q, int layer, int heads, float scale, int window, int to)
        : q_(q), layer_(layer), heads_(heads), scale_(scale), window_(window), to_(to) {}
    size_t scratch(const Program& p) const override { return p.lane.attend_scratch(p.kv.width); }
    int chunks(const Program& p) const override { return (int)p.plan.items.size() * p.kv.heads; }
    void chunk(Program& p, int index, int thread) override {
        const AttentionItem& item = p.plan.items[index / p.kv.heads];
        const Act &q = p.values[q_].act, &out = p.values[to_].act;
        const AttentionArgs args{&p.kv,  &item,   p.plan.runs.data(), layer_, index % p.kv.heads, heads_ / p.kv.heads,
                                 scale_, window_, q.f,                q.ld,   out.f,              out.ld};
        p.lane.attend(args, p.scratch(thread));
        const int width = args.per_token * p.kv.dim;
        if (p.kv.dim % QBLOCK || !p.values[to_].converted()) return;
        for (int i = 0; i < item.tokens; ++i) p.convert(p.values[to_], item.token[i], args.kv_head * width, width);
    }

  private:
    int q_, layer_, heads_;
    float scale_;
    int window_, to_;
};

class Add : public RowStep {
  public:
    const char* name() const override { return "add"; }
    Add(int a, int b, int to) : RowStep(to), a_(a), b_(b) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        p.lane.add(row_of(p.values[a_].act, r), row_of(p.values[b_].act, r), out.width, row_of(out.act, r));
    }

  private:
    int a_, b_;
};

class SiluMul : public RowStep {
  public:
    const char* name() const override { return "silu_mul"; }
    SiluMul(int gate, int up, int to) : RowStep(to), gate_(gate), up_(up) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        p.lane.silu_mul(row_of(p.values[gate_].act, r), row_of(p.values[up_].act, r), out.width, row_of(out.act, r));
    }

  private:
    int gate_, up_;
};

class GeluMul : public RowStep {
  public:
    const char* name() const override { return "gelu_mul"; }
    GeluMul(int gate, int up, int to) : RowStep(to), gate_(gate), up_(up) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        p.lane.gelu_mul(row_of(p.values[gate_].act, r), row_of(p.values[up_].act, r), out.width, row_of(out.act, r));
    }

  private:
    int gate_, up_;
};

class Bias : public RowStep {
  public:
    const char* name() const override { return "bias"; }
    Bias(int x, const float* vector, int to) : RowStep(to), x_(x), vector_(vector) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        p.lane.add(row_of(p.values[x_].act, r), vector_, out.width, row_of(out.act, r));
    }

  private:
    int x_;
    const float* vector_;
};

class TakeRows : public RowStep {
  public:
    const char* name() const override { return "take_rows"; }
    TakeRows(int x, int to) : RowStep(to), x_(x) {}
    void row(Program& p, int r) override {
        const Value& out = p.values[to];
        memcpy(row_of(out.act, r), row_of(p.values[x_].act, p.batch.logit_rows[r]), sizeof(float) * out.width);
    }

  private:
    int x_;
};

}  // namespace

std::unique_ptr<Step> embed_step(Weight table, float factor, int to) {
    return std::make_unique<Embed>(table, factor, to);
}
std::unique_ptr<Step> norm_step(int x, const float* weight, int size, float eps, int to) {
    return std::make_unique<Norm>(x, weight, size, eps, to);
}
std::unique_ptr<Step> convert_step(int x) { return std::make_unique<Convert>(x); }
std::unique_ptr<Step> matmul_step(int x, Weight w, int to, bool accumulate) {
    return std::make_unique<Matmul>(x, w, to, accumulate);
}
std::unique_ptr<Step> gate_up_step(int x, Weight gate, Weight up, int to) {
    return std::make_unique<GateUp>(x, gate, up, to);
}
std::unique_ptr<Step> qkv_step(QkvSpec spec) { return std::make_unique<Qkv>(std::move(spec)); }
std::unique_ptr<Step> rope_step(int x, int to, int heads, int rope) {
    return std::make_unique<RopeStep>(x, to, heads, rope);
}
std::unique_ptr<Step> store_step(int k, int v, int layer) { return std::make_unique<Store>(k, v, layer); }
std::unique_ptr<Step> attention_step(int q, int layer, int heads, float scale, int window, int to) {
    return std::make_unique<Attention>(q, layer, heads, scale, window, to);
}
std::unique_ptr<Step> add_step(int a, int b, int to) { return std::make_unique<Add>(a, b, to); }
std::unique_ptr<Step> silu_mul_step(int gate, int up, int to) { return std::make_unique<SiluMul>(gate, up, to); }
std::unique_ptr<Step> gelu_mul_step(int gate, int up, int to) { return std::make_unique<GeluMul>(gate, up, to); }
std::unique_ptr<Step> bias_step(int x, const float* vector, int to) { return std::make_unique<Bias>(x, vector, to); }
std::unique_ptr<Step> take_rows_step(int x, int to) { return std::make_unique<TakeRows>(x, to); }

}  // namespace ramet
