// A forward pass as a list of steps, run over a batch in one call.
#pragma once

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "batch.hpp"
#include "lane.hpp"
#include "pool.hpp"

namespace ramet {

// Rotation of the heads of a matmul's output.
struct Rope {
    std::vector<float> inv_freq;
    bool interleaved = false;
};

// A value between steps: rows of `width` floats and, where a matmul reads them, the same in int8 or bf16.
struct Value {
    int width;
    bool wanted;  // has the batch's wanted rows, else its tokens
    bool int8 = false, bf16 = false;
    Act act;

    bool converted() const { return int8 || bf16; }
};

class Program;

class Step {
  public:
    virtual ~Step() = default;
    virtual const char* name() const = 0;
    virtual int chunks(const Program& p) const = 0;
    virtual void chunk(Program& p, int index, int thread) = 0;
    // Whether the step is so little work here that one thread may as well do it.
    virtual bool small(const Program&) const { return false; }
    // Bytes of workspace that a thread needs.
    virtual size_t scratch(const Program&) const { return 0; }
};

class Program : public Phases {
  public:
    explicit Program(const Lane& lane, Pool& pool) : lane(lane), pool(pool) {}

    int value(int width, bool wanted);
    void push(std::unique_ptr<Step> step) { steps_.push_back(std::move(step)); }
    int add_rope(Rope rope);
    // Value that run() leaves the logits in.
    int result = -1;

    // Runs the steps. Returns the logits, [wanted, ld].
    const Act& run(Batch batch, const Kv& kv);

    int rows(const Value& v) const { return v.wanted ? batch.wanted : batch.tokens; }
    int threads() const { return pool.threads(); }
    // Brings columns [column, column + n) of a row, which stand there as floats, into the value's other forms.
    void convert(const Value& v, int row, int column, int n) const;
    void* scratch(int thread) { return scratch_[thread].get(); }
    const float* cosine(int rope, int token) const { return angles_[rope].data() + (size_t)token * width_of(rope); }
    const float* sine(int rope, int token) const { return cosine(rope, token) + ropes_[rope].inv_freq.size(); }
    const Rope& rope(int i) const { return ropes_[i]; }

    const Lane& lane;
    Pool& pool;
    Batch batch;
    Kv kv{};
    AttentionPlan plan;
    int heads_per_kv = 0;  // query heads, where there is attention
    int kv_width = -1;     // of the keys of a layer; -1: nothing is stored
    std::vector<Value> values;

    int count() const override { return (int)steps_.size(); }
    int chunks(int phase) const override { return tail_[phase] ? 0 : steps_[phase]->chunks(*this); }
    void chunk(int phase, int index, int thread) override { steps_[phase]->chunk(*this, index, thread); }
    void finish(int phase, int thread) override;

    // Seconds that each kind of step has taken since profiling was switched on.
    bool profiling = false;
    std::map<std::string, double> profile;

  private:
    struct Free {
        void operator()(uint8_t* p) const { std::free(p); }
    };
    using Memory = std::unique_ptr<uint8_t, Free>;
    static Memory allocate(size_t bytes);
    size_t width_of(int rope) const { return 2 * ropes_[rope].inv_freq.size(); }
    void make_room();
    void make_angles();
    void find_tails();
    void note(int phase);

    std::vector<std::unique_ptr<Step>> steps_;
    std::vector<char> tail_;
    std::vector<Rope> ropes_;
    std::vector<std::vector<float>> angles_;  // per rope: [token][cosines, sines]
    std::vector<Memory> scratch_;
    size_t scratch_bytes_ = 0;
    Memory arena_;
    size_t arena_bytes_ = 0;
    std::chrono::steady_clock::time_point last_finish_;
};

}  // namespace ramet
