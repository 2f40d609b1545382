// What a lane (one instruction set) offers. The program calls these alone, so that one module holds every lane.
#pragma once

#include "types.hpp"

namespace ramet {

struct Lane {
    const char* name;
    bool pairs;  // has the bf16 dot product: for weights in bf16, and for KV in bf16 and int8
    Form (*form)(const Weight& w);  // that a matmul with w reads
    void (*norm)(const float* x, const float* weight, float eps, int n, float* out);
    // Blocks [block, block + blocks) of a row, x pointing at the first.
    void (*quantise)(const float* x, const Act& to, int row, int block, int blocks);
    // n numbers of a row, x pointing at the first, as bf16.
    void (*halve)(const float* x, int n, uint16_t* to);
    // Rows [row, row + rows) of x against tiles [tile, tile + tiles) of w; out points at (row, first column).
    void (*gemm)(const Weight& w, const Act& x, int row, int rows, int tile, int tiles, float* out, int ldo, bool add,
                 void* scratch);
    size_t (*gemm_scratch)();
    void (*silu_mul)(const float* gate, const float* up, int n, float* out);
    void (*gelu_mul)(const float* gate, const float* up, int n, float* out);
    void (*add)(const float* a, const float* b, int n, float* out);
    void (*rope)(float* x, const float* cosine, const float* sine, int half, bool interleaved);
    // k or v may be null: only the other is stored then.
    void (*store)(const Kv& kv, int layer, int head, int block, int slot, const float* k, const float* v);
    void (*attend)(const AttentionArgs& args, void* scratch);
    size_t (*attend_scratch)(int width);
    int (*argmax)(const float* x, int n);  // lowest index of the largest; NaN never wins
    float (*maximum)(const float* x, int n);
    // Sum of exp(x - shift) in float64: sixteen sums in ascending order, then those.
    double (*sum_exp)(const float* x, int n, float shift);
    // out = exp((x - shift) * factor); returns the sum, as sum_exp does.
    double (*exp_shifted)(const float* x, int n, float shift, float factor, float* out);
    // Ascending indices of the x >= least, at most `room` of them; returns how many there are.
    int (*at_least)(const float* x, int n, float least, int32_t* indices, int room);
    // Set-up and clean-up of a thread that is to run this lane.
    void (*enter)();
    void (*leave)();
};

const Lane* portable_lane();
// Those of x86-64 are there only in builds for it; lanes.hpp knows which of them the processor can run.
const Lane* avx2_lane();
const Lane* avxvnni_lane();
const Lane* avx512_lane();
const Lane* amx_lane();

}  // namespace ramet
