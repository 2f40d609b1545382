#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace ramet {
namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

double uniform(uint64_t key, int64_t position) {
    return (double)(mix64(key ^ mix64((uint64_t)position)) >> 11) * 0x1p-53;
}


// to[i] = from[i] where allowed, else -inf.
void apply_mask(const uint32_t* mask, const float* from, int n, float* to) {
    for (int i = 0; i < n; i += 32) {
        const uint32_t bits = mask[i / 32];
        const int stop = std::min(32, n - i);
        if (bits == 0) {
            std::fill(to + i, to + i + stop, NOTHING);
        } else if (bits == 0xffffffff) {
            if (to != from) memcpy(to + i, from + i, sizeof(float) * stop);
        } else {
            for (int j = 0; j < stop; ++j) to[i + j] = bits >> j & 1 ? from[i + j] : NOTHING;
        }
    }
}

// log of the sum of e^x
double log_sum(const Lane& lane, const float* x, int n) {
    const float peak = lane.maximum(x, n);
    if (peak == NOTHING) return NOTHING;
    return (double)peak + std::log(lane.sum_exp(x, n, peak));
}

// The `count` largest, in descending order, the lower id first among equals. Returns how many there are.
int best(const Lane& lane, const float* x, int n, int count, int32_t* ids) {
    int have = 0;
    float worst = NOTHING;
    for (int start = 0; start < n; start += 1024) {  // most runs hold nothing that is better
        const int stop = std::min(n, start + 1024);
        if (have == count && !(lane.maximum(x + start, stop - start) > worst)) continue;
        for (int i = start; i < stop; ++i) {
            if (!(x[i] > worst) && have == count) continue;
            if (!(x[i] > NOTHING)) continue;
            int at = have < count ? have++ : count - 1;
            for (; at > 0 && x[ids[at - 1]] < x[i]; --at) ids[at] = ids[at - 1];
            ids[at] = i;
            worst = x[ids[have - 1]];
        }
    }
    return have;
}

void best_logprobs(const Lane& lane, const float* x, int n, double total, int count, int32_t* ids, float* values) {
    const int have = best(lane, x, n, count, ids);
    for (int i = 0; i < count; ++i) {
        if (i >= have) ids[i] = -1;
        values[i] = i < have ? (float)((double)x[ids[i]] - total) : std::nanf("");
    }
}

// Ids in descending order of z (ties: lower id first), put in order bucket by bucket and only as far as someone looks:
// buckets are the leading bits of p, which falls as z does.
class Ranking {
  public:
    Ranking(const std::vector<float>& z, const std::vector<float>& p, std::vector<int32_t>& order)
        : z_(z), p_(p), order_(order), mass_(BUCKETS, 0.0), count_(BUCKETS, 0) {
        for (size_t i = 0; i < p.size(); ++i) {
            if (p[i] == 0) continue;
            const int b = bucket(p[i]);
            mass_[b] += p[i];
            ++count_[b];
        }
    }

    // Length and mass of a prefix of the ranking.
    struct Cut {
        int64_t ids = 0;
        double mass = 0;
    };

    // The longest prefix that ends before stop(cut so far, p of the next id) says so. `whole(cut after the bucket, smallest
    // p it may hold)` tells that nothing in a bucket stops.
    template <class Whole, class Stop>
    Cut walk(const Cut& limit, Whole whole, Stop stop) {
        Cut at;
        for (int b = BUCKETS - 1; b >= 0; --b) {
            if (!count_[b]) continue;
            Cut after{at.ids + count_[b], at.mass + mass_[b]};
            if (after.ids <= limit.ids && whole(after, lowest(b))) {
                at = after;
                continue;
            }
            open(b);
            for (int32_t id : order_) {
                if (at.ids >= limit.ids || stop(at, p_[id])) return at;
                ++at.ids;
                at.mass += p_[id];
            }
        }
        return at;
    }

    Cut all() const {
        Cut cut;
        for (int b = BUCKETS - 1; b >= 0; --b) cut.ids += count_[b], cut.mass += mass_[b];
        return cut;
    }

    // The id of the given rank.
    int at(int64_t rank) {
        for (int b = BUCKETS - 1; b >= 0; --b) {
            if (rank < count_[b]) {
                open(b);
                return order_[rank];
            }
            rank -= count_[b];
        }
        return -1;
    }

  private:
    static constexpr int BUCKETS = 128 << 4;  // p <= 1: exponents 0 to 127, 4 bits of mantissa
    static int bucket(float p) {
        uint32_t bits;
        memcpy(&bits, &p, 4);
        return std::min((int)(bits >> 19), BUCKETS - 1);
    }
    static float lowest(int b) {
        const uint32_t bits = (uint32_t)b << 19;
        float p;
        memcpy(&p, &bits, 4);
        return p;
    }
    void open(int b) {
        order_.clear();
        for (size_t i = 0; i < p_.size(); ++i)
            if (p_[i] != 0 && bucket(p_[i]) == b) order_.push_back((int32_t)i);
        std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t c) { return z_[a] != z_[c] ? z_[a] > z_[c] : a < c; });
    }

    const std::vector<float>& z_;
    const std::vector<float>& p_;
    std::vector<int32_t>& order_;
    std::vector<double> mass_;
    std::vector<int64_t> count_;
};

constexpr int SHORT_LIST = 1024;

// The draw from the ids with p >= least (of the largest), if it can be seen that all limits and the drawn number lie among
// them; else -1. `total`: sum of all p.
int draw_from_short_list(const Lane& lane, const SampleRow& row, double total, float least, SampleWork& work) {
    const std::vector<float>&p = work.p, &z = work.z;
    work.order.resize(SHORT_LIST);
    const int count = lane.at_least(p.data(), row.vocab, least, work.order.data(), SHORT_LIST);
    if (count > SHORT_LIST) return -1;
    const auto first = work.order.begin(), last = first + count;
    std::sort(first, last, [&z](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
    double kept = total;
    int ids = row.vocab;
    if (row.top_k > 0 && row.top_k < row.vocab) {
        if (row.top_k > count) return -1;
        ids = row.top_k;
        kept = 0;
        for (int i = 0; i < ids; ++i) kept += p[first[i]];
    }
    if (row.top_p < 1) {
        const double wanted = std::max(0.0, (double)row.top_p) * kept;
        double mass = 0;
        int i = 0;
        while (i < std::min(ids, count) && (i == 0 || mass < wanted)) mass += p[first[i++]];
        if (mass < wanted && i < ids) return -1;
        ids = i;
        kept = mass;
    }
    if (row.min_p > 0) {
        const float floor = std::min(row.min_p, 1.0f);  // the largest p is 1
        if (floor < least && ids > count) return -1;
        double mass = 0;
        int i = 0;
        while (i < std::min(ids, count) && p[first[i]] >= floor) mass += p[first[i++]];
        ids = i;
        kept = mass;
    }
    const double target = uniform(row.key, row.position) * kept;
    double mass = 0;
    for (int i = 0; i < std::min(ids, count); ++i) {
        mass += p[first[i]];
        if (mass > target) return first[i];
    }
    return ids <= count ? (int)first[ids - 1] : -1;
}

int draw(const SampleRow& row, Ranking& ranking) {
    using Cut = Ranking::Cut;
    const auto never = [](const Cut&, float) { return false; };
    const auto always = [](const Cut&, float) { return true; };
    Cut kept = ranking.all();
    if (row.top_k > 0 && row.top_k < kept.ids) kept = ranking.walk({row.top_k, 0}, always, never);
    if (row.top_p < 1) {
        // The shortest prefix whose mass reaches top_p: at least one id.
        const double wanted = std::max(0.0, (double)row.top_p) * kept.mass;
        kept = ranking.walk(
            kept, [&](const Cut& after, float) { return after.mass < wanted; },
            [&](const Cut& at, float) { return at.ids > 0 && at.mass >= wanted; });
    }
    if (row.min_p > 0) {
        const float least = std::min(row.min_p, 1.0f);  // the largest p is 1
        kept = ranking.walk(
            kept, [&](const Cut&, float p) { return p >= least; }, [&](const Cut&, float p) { return p < least; });
    }
    const double target = uniform(row.key, row.position) * kept.mass;
    const Cut before = ranking.walk(
        kept, [&](const Cut& after, float) { return after.mass <= target; },
        [&](const Cut& at, float p) { return at.mass + (double)p > target; });
    return ranking.at(std::min(before.ids, kept.ids - 1));
}

}  // namespace

void sample_row(const Lane& lane, const SampleRow& row, SampleOut& out, SampleWork& work) {
    const int n = row.vocab;
    const bool changed = row.adjusts || row.scales;
    const float* z = row.logits;
    if (changed || row.mask || row.temperature > 0) {
        work.z.assign(row.logits, row.logits + n);
        for (int i = 0; i < row.scales; ++i) {
            float& x = work.z[row.scale_ids[i]];
            x = x > 0 ? x / row.scale_values[i] : x * row.scale_values[i];
        }
        for (int i = 0; i < row.adjusts; ++i) work.z[row.adjust_ids[i]] += row.adjust_values[i];
        for (float& x : work.z) x = x == x ? x : NOTHING;  // NaN is never chosen
        if (row.mask) apply_mask(row.mask, work.z.data(), n, work.z.data());
        z = work.z.data();
    }
    const float peak = lane.maximum(z, n);
    if (peak == NOTHING) {
        out.id = -1;
    } else if (row.temperature <= 0) {
        out.id = lane.argmax(z, n);
    } else {
        work.p.resize(n);
        const double total = lane.exp_shifted(z, n, peak, 1.0f / row.temperature, work.p.data());
        out.id = -1;
        for (float least : {0x1p-5f, 0x1p-12f})
            if (out.id < 0) out.id = draw_from_short_list(lane, row, total, least, work);
        if (out.id < 0) {
            Ranking ranking(work.z, work.p, work.order);
            out.id = draw(row, ranking);
        }
    }
    out.raw = out.masked = std::nanf("");
    if (row.logprobs < 0) return;
    const double total = log_sum(lane, row.logits, n);
    if (out.id >= 0) {
        out.raw = out.masked = (float)((double)row.logits[out.id] - total);
        if (row.mask) {
            work.p.resize(n);
            apply_mask(row.mask, row.logits, n, work.p.data());
            out.masked = (float)((double)row.logits[out.id] - log_sum(lane, work.p.data(), n));
        }
    }
    if (row.logprobs > 0) best_logprobs(lane, row.logits, n, total, row.logprobs, out.top_ids, out.top_raw);
}

float token_logprob(const Lane& lane, const float* logits, int vocab, int id, int top, int32_t* top_ids, float* top_raw) {
    const double total = log_sum(lane, logits, vocab);
    if (top > 0) best_logprobs(lane, logits, vocab, total, top, top_ids, top_raw);
    return (float)((double)logits[id] - total);
}

}  // namespace ramet
