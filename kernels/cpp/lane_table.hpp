// Included last by a lane's translation unit: gathers its kernels in a table.
#pragma once

#include "attention.hpp"
#include "elementwise.hpp"
#include "gemm.hpp"
#include "lane.hpp"
#include "scores.hpp"

namespace {

void nothing() {}

Form form(const Weight& w) {
    if (w.pairs) return Form::Bf16;
    return w.quantised() ? Form::Int8 : Form::Float;
}

void halve(const float* x, int n, uint16_t* to) {
    for (int i = 0; i < n; ++i) to[i] = f32_to_bf16(x[i]);
}

Lane make_lane(const char* name) {
    Lane lane{};
    lane.name = name;
    lane.pairs = false;
    lane.norm = norm;
    lane.form = form;
    lane.quantise = quantise;
    lane.halve = halve;
    lane.gemm = gemm;
    lane.gemm_scratch = gemm_scratch;
    lane.silu_mul = silu_mul;
    lane.gelu_mul = gelu_mul;
    lane.add = add;
    lane.rope = rope;
    lane.store = store;
    lane.attend = attend<FloatProducts>;
    lane.attend_scratch = attend_scratch;
    lane.argmax = argmax;
    lane.maximum = maximum;
    lane.sum_exp = sum_exp;
    lane.exp_shifted = exp_shifted;
    lane.at_least = at_least;
    lane.enter = nothing;
    lane.leave = nothing;
    return lane;
}

}  // namespace
