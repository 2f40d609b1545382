// What a step computes, as the program sees it, and how its attention is cut into items.
#pragma once

#include <cstdint>
#include <vector>

#include "types.hpp"

namespace ramet {

struct Group {
    std::vector<int32_t> rows;
    int start, stop;
};

struct Batch {
    int tokens = 0, rows = 0, wanted = 0;
    const int32_t* ids = nullptr;        // [tokens]
    const int32_t* positions = nullptr;  // [tokens]
    const int32_t* row_start = nullptr;  // [rows + 1]
    const int32_t* context = nullptr;    // [rows]
    const int32_t* tables = nullptr;     // [rows, table_width]
    int table_width = 0;
    const int32_t* logit_rows = nullptr;  // [wanted]
    std::vector<Group> groups;
    std::vector<int32_t> row_of;  // [tokens]

    int slot_block(int token, int block) const {
        return tables[(size_t)row_of[token] * table_width + positions[token] / block];
    }
};

// The attention of a step: items of one KV head, the same for each KV head and layer.
struct AttentionPlan {
    std::vector<AttentionItem> items;
    std::vector<AttentionRun> runs;
    std::vector<int32_t> token, position;

    // `per_token`: query heads per KV head. Rows of a group come into the same items, where the shared keys are read once
    // for all of them; largest items first.
    void make(const Batch& batch, int per_token, int kv_heads, int threads);
};

}  // namespace ramet
