// Included last by a lane's translation unit: gathers its kernels in a table.
#pragma once

#include "attention.hpp"
#include "elementwise.hpp"
#include "gemm.hpp"
#include "lane.hpp"
#include "scores.hpp"

namespace {

void nothing() {}

Lane make_lane(const char* name) {
    Lane lane{};
    lane.name = name;
    lane.pairs = false;
    lane.norm = norm;
    lane.quantise = quantise;
    lane.gemm = gemm;
    lane.gemm_scratch = gemm_scratch;
    lane.silu_mul = silu_mul;
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
