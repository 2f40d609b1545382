// The steps a program is made of. Weights are held by the caller for as long as the program lives.
#pragma once

#include <memory>
#include <vector>

#include "program.hpp"

namespace ramet {

// Operands: indices of values. Norm, gate_up and attention (with a head size that is a multiple of 32) bring their result
// into all its forms; results of others need a convert step before a matmul reads them in int8 or bf16.
std::unique_ptr<Step> embed_step(Weight table, float factor, int to);
// Each run of `size` elements of a row by itself.
std::unique_ptr<Step> norm_step(int x, const float* weight, int size, float eps, int to);
std::unique_ptr<Step> convert_step(int x);
std::unique_ptr<Step> matmul_step(int x, Weight w, int to, bool accumulate);
// to = silu(x gate) * (x up).
std::unique_ptr<Step> gate_up_step(int x, Weight gate, Weight up, int to);
// Projections of an attention layer: queries rotated into value q, keys rotated and stored with the values.
struct QkvSpec {
    int x, q;
    Weight weights[3];
    const float* biases[3];
    int rope, layer, head_dim;
};
std::unique_ptr<Step> qkv_step(QkvSpec spec);
std::unique_ptr<Step> rope_step(int x, int to, int heads, int rope);
std::unique_ptr<Step> store_step(int k, int v, int layer);
std::unique_ptr<Step> attention_step(int q, int layer, int heads, float scale, int window, int to);
std::unique_ptr<Step> add_step(int a, int b, int to);
std::unique_ptr<Step> silu_mul_step(int gate, int up, int to);
std::unique_ptr<Step> gelu_mul_step(int gate, int up, int to);
std::unique_ptr<Step> bias_step(int x, const float* vector, int to);
std::unique_ptr<Step> take_rows_step(int x, int to);

}  // namespace ramet
