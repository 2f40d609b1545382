#include "batch.hpp"

#include <algorithm>

namespace ramet {
namespace {

int segments(int context) { return (context + SEGMENT - 1) / SEGMENT; }

// Adds the item of tokens [first, last) of one row; its runs are one.
struct Draft {
    std::vector<int32_t> tokens;
    std::vector<AttentionRun> runs;
    int64_t cost = 0;
};

}  // namespace

void AttentionPlan::make(const Batch& batch, int per_token) {
    const int most = std::max(1, MAX_QUERIES / per_token);
    std::vector<Draft> drafts;
    for (int row = 0; row < batch.rows; ++row) {
        for (int at = batch.row_start[row]; at < batch.row_start[row + 1]; at += most) {
            const int stop = std::min(at + most, (int)batch.row_start[row + 1]);
            Draft draft;
            int last = 0;
            for (int i = at; i < stop; ++i) {
                draft.tokens.push_back(i);
                last = std::max(last, (int)batch.positions[i]);
            }
            draft.runs.push_back({0, (stop - at) * per_token, 0, segments(last + 1),
                                  batch.tables + (size_t)row * batch.table_width, batch.context[row]});
            draft.cost = (int64_t)segments(last + 1) * (stop - at + 4);
            drafts.push_back(std::move(draft));
        }
    }
    std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) { return a.cost > b.cost; });
    items.clear();
    runs.clear();
    token.clear();
    position.clear();
    for (const Draft& draft : drafts) {
        items.push_back({(int)draft.tokens.size(), (int)runs.size(), (int)draft.runs.size(), nullptr, nullptr});
        runs.insert(runs.end(), draft.runs.begin(), draft.runs.end());
        for (int32_t i : draft.tokens) {
            token.push_back(i);
            position.push_back(batch.positions[i]);
        }
    }
    size_t at = 0;
    for (AttentionItem& item : items) {
        item.token = token.data() + at;
        item.position = position.data() + at;
        at += item.tokens;
    }
}

}  // namespace ramet
