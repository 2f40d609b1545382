// Drawing ids from logits, and their log-probabilities: the semantics stand in ops.py, SampleBatch.
#pragma once

#include <cstdint>
#include <vector>

#include "lane.hpp"

namespace ramet {

struct SampleRow {
    const float* logits;
    int vocab;
    float temperature, top_p, min_p;
    int top_k;
    uint64_t key;
    int64_t position;
    int logprobs;          // -1: none
    const uint32_t* mask;  // null: every id allowed
    int adjusts, scales;
    const int32_t* adjust_ids;
    const float* adjust_values;
    const int32_t* scale_ids;
    const float* scale_values;
};

struct SampleOut {
    int32_t id;
    float raw, masked;
    int32_t* top_ids;  // [logprobs], may be null if none
    float* top_raw;
};

struct SampleWork {
    std::vector<float> z, p;
    std::vector<int32_t> order;
};

void sample_row(const Lane& lane, const SampleRow& row, SampleOut& out, SampleWork& work);

// log softmax at `id`, and of the `top` best (value descending, lower id first).
float token_logprob(const Lane& lane, const float* logits, int vocab, int id, int top, int32_t* top_ids, float* top_raw);

}  // namespace ramet
