#include "batch.hpp"

#include <algorithm>

namespace ramet {
namespace {

int divide_up(int a, int b) { return (a + b - 1) / b; }
int segments(int context) { return divide_up(context, SEGMENT); }

// Some tokens of one row, one after another.
struct Piece {
    int row, first, last;
    int end;  // segments that its last token sees
    int tokens() const { return last - first; }
};

// What becomes an item: pieces, and the shared runs of keys among them.
struct Draft {
    std::vector<Piece> pieces;
    std::vector<AttentionRun> runs;
    int64_t cost = 0;
};

struct Groups {
    // As segments, rows that have not stored all of it left out, wide ones first.
    struct Shared {
        int start, stop;
        std::vector<char> has;  // per row
        int count;
    };
    std::vector<Shared> all;

    explicit Groups(const Batch& batch) {
        for (const Group& g : batch.groups) {
            Shared s{g.start / SEGMENT, g.stop / SEGMENT, std::vector<char>(batch.rows, 0), 0};
            for (int32_t row : g.rows) {
                if (batch.context[row] < g.stop || s.has[row]) continue;
                s.has[row] = 1;
                ++s.count;
            }
            if (s.count > 1 && s.start < s.stop) all.push_back(std::move(s));
        }
        std::stable_sort(all.begin(), all.end(), [](const Shared& a, const Shared& b) {
            return a.start != b.start ? a.start < b.start : a.count > b.count;
        });
    }
    std::vector<int> of(int row) const {
        std::vector<int> mine;
        for (size_t i = 0; i < all.size(); ++i)
            if (all[i].has[row]) mine.push_back((int)i);
        return mine;
    }
    // Last of the pieces from `first` on that share segments [start, stop) with it, plus one.
    size_t together(const std::vector<Piece>& pieces, size_t first, int start, int stop) const {
        size_t most = first + 1;
        for (const Shared& s : all) {
            if (s.start > start || s.stop < stop || !s.has[pieces[first].row]) continue;
            size_t end = first + 1;
            while (end < pieces.size() && s.has[pieces[end].row] && pieces[end].end >= stop) ++end;
            most = std::max(most, end);
        }
        return most;
    }
};

// Adds the runs of a draft: between two borders of groups, pieces that share keys go together.
void add_runs(Draft& draft, const Groups& groups, const Batch& batch, int per_token) {
    std::vector<int> borders{0};
    int end = 0;
    for (const Piece& p : draft.pieces) end = std::max(end, p.end);
    if (draft.pieces.size() > 1)
        for (const auto& s : groups.all)
            for (int border : {s.start, s.stop})
                if (border < end) borders.push_back(border);
    borders.push_back(end);
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<int> offset{0};
    for (const Piece& p : draft.pieces) offset.push_back(offset.back() + p.tokens() * per_token);
    std::vector<int> newest(draft.pieces.size(), -1);  // run that began with this piece last
    for (size_t b = 0; b + 1 < borders.size(); ++b) {
        for (size_t i = 0; i < draft.pieces.size();) {
            const int start = borders[b], stop = borders[b + 1];
            const size_t next = groups.together(draft.pieces, i, start, stop);
            const Piece& piece = draft.pieces[i];
            const int last = next - i > 1 ? stop : std::min(stop, piece.end);
            if (start < last) {
                const int32_t* table = batch.tables + (size_t)piece.row * batch.table_width;
                AttentionRun run{offset[i], offset[next], start, last, table, batch.context[piece.row]};
                AttentionRun* old = newest[i] >= 0 ? &draft.runs[newest[i]] : nullptr;
                if (old && old->q1 == run.q1 && old->seg1 == start) {
                    old->seg1 = last;
                } else {
                    newest[i] = (int)draft.runs.size();
                    draft.runs.push_back(run);
                }
            }
            i = next;
        }
    }
    for (const AttentionRun& run : draft.runs) draft.cost += (int64_t)(run.seg1 - run.seg0) * (run.q1 - run.q0 + 8);
}

// Tokens per item, for `tokens` that share most of their keys: the fewest rounds of the threads, weighted by the work of an
// item (its queries, and the handling of the keys).
int share_size(int tokens, int most, int per_token, int kv_heads, int threads) {
    int best = most;
    int64_t least = INT64_MAX;
    for (int n = divide_up(tokens, most); n <= tokens; ++n) {
        const int size = divide_up(tokens, n);
        const int64_t cost = (int64_t)divide_up(n * kv_heads, threads) * (8 + size * per_token);
        if (cost >= least) continue;
        least = cost;
        best = size;
    }
    return best;
}

}  // namespace

void AttentionPlan::make(const Batch& batch, int per_token, int kv_heads, int threads) {
    const int most = std::max(1, MAX_QUERIES / per_token);
    const Groups groups(batch);
    std::vector<Draft> drafts;
    std::vector<std::pair<std::vector<int>, Piece>> shared;
    for (int row = 0; row < batch.rows; ++row) {
        const std::vector<int> mine = groups.of(row);
        for (int at = batch.row_start[row]; at < batch.row_start[row + 1]; at += most) {
            Piece piece{row, at, std::min(at + most, (int)batch.row_start[row + 1]), 0};
            for (int i = piece.first; i < piece.last; ++i) piece.end = std::max(piece.end, segments(batch.positions[i] + 1));
            if (!mine.empty() && piece.tokens() * 2 <= most) {
                shared.push_back({mine, piece});
            } else {
                drafts.push_back({{piece}, {}, 0});
            }
        }
    }
    // Rows of the same groups next to each other, then cut into items.
    std::stable_sort(shared.begin(), shared.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < shared.size();) {
        size_t end = i;
        int tokens = 0;
        while (end < shared.size() && shared[end].first[0] == shared[i].first[0]) tokens += shared[end++].second.tokens();
        const int size = share_size(tokens, most, per_token, kv_heads, threads);
        while (i < end) {
            Draft draft;
            int have = 0;
            while (i < end && (draft.pieces.empty() || have + shared[i].second.tokens() <= size)) {
                have += shared[i].second.tokens();
                draft.pieces.push_back(shared[i++].second);
            }
            drafts.push_back(std::move(draft));
        }
    }
    for (Draft& draft : drafts) add_runs(draft, groups, batch, per_token);
    std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) { return a.cost > b.cost; });

    items.clear();
    runs.clear();
    token.clear();
    position.clear();
    for (const Draft& draft : drafts) {
        const size_t first = token.size();
        for (const Piece& piece : draft.pieces) {
            for (int i = piece.first; i < piece.last; ++i) {
                token.push_back(i);
                position.push_back(batch.positions[i]);
            }
        }
        items.push_back({(int)(token.size() - first), (int)runs.size(), (int)draft.runs.size(), nullptr, nullptr});
        runs.insert(runs.end(), draft.runs.begin(), draft.runs.end());
    }
    size_t at = 0;
    for (AttentionItem& item : items) {
        item.token = token.data() + at;
        item.position = position.data() + at;
        at += item.tokens;
    }
}

}  // namespace ramet
