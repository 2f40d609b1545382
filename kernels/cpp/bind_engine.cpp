// Python's view of an engine: its lane, its threads, and what needs these but no model.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "bindings.hpp"
#include "pack.hpp"

namespace ramet {
namespace {

// Rows of one phase, spread over the pool.
template <class Body>
class RowJob : public Phases {
  public:
    RowJob(int rows, Body body) : rows_(rows), body_(body) {}
    int count() const override { return 1; }
    int chunks(int) const override { return rows_; }
    void chunk(int, int index, int thread) override { body_(index, thread); }
    void finish(int, int) override {}

  private:
    int rows_;
    Body body_;
};

template <class Body>
void each_row(Engine& engine, int rows, Body body) {
    RowJob<Body> job(rows, body);
    engine.pool->run(job);
}

// Changes of single logits: offsets per row, ids and values.
void check_changes(const std::string& name, const std::optional<Vec<int32_t>>& start, const std::optional<Vec<int32_t>>& ids,
                   const std::optional<Vec<float>>& values, int rows, int vocab) {
    if (!start) return;
    require(ids && values && ids->shape(0) == values->shape(0), name + "_ids and " + name + "_values must be equally long");
    require((int)start->shape(0) == rows + 1 && start->data()[0] >= 0, name + "_start must have rows + 1 entries");
    for (int r = 0; r < rows; ++r) require(start->data()[r] <= start->data()[r + 1], name + "_start must not fall");
    require((size_t)start->data()[rows] <= ids->shape(0), name + "_start points behind " + name + "_ids");
    for (size_t i = 0; i < ids->shape(0); ++i)
        require(ids->data()[i] >= 0 && ids->data()[i] < vocab, name + "_ids has an id that is not in the vocabulary");
}

}  // namespace

namespace {

constexpr size_t CHECK_PART = 1 << 20;

// A hash of a part of an array: sixteen polynomials over its words of eight bytes, then one over those and the rest.
uint64_t part_checksum(const uint8_t* from, size_t bytes) {
    constexpr uint64_t FACTOR = 0x9e3779b97f4a7c15;
    uint64_t lanes[16];
    for (int k = 0; k < 16; ++k) lanes[k] = (uint64_t)k;
    size_t at = 0;
    for (; at + 128 <= bytes; at += 128) {
        for (int k = 0; k < 16; ++k) {
            uint64_t v;
            memcpy(&v, from + at + k * 8, 8);
            lanes[k] = (lanes[k] ^ v) * FACTOR;
        }
    }
    uint64_t sum = bytes;
    for (uint64_t lane : lanes) sum = (sum ^ lane ^ lane >> 32) * FACTOR;
    for (; at < bytes; ++at) sum = (sum ^ from[at]) * FACTOR;
    return sum ^ sum >> 32;
}

}  // namespace

void bind_engine(nb::module_& m) {
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
        .def_prop_ro("lane", [](Engine& e) { return std::string(e.lane->name); })
        .def_prop_ro("threads", [](Engine& e) { return e.pool->threads(); })
        .def("sample",
             [](Engine& e, Mat<float> logits, Vec<float> temperature, Vec<float> top_p, Vec<int32_t> top_k, Vec<float> min_p,
                Vec<uint64_t> key, Vec<int64_t> position, Vec<int32_t> logprobs, std::optional<Mat<uint32_t>> mask,
                std::optional<Vec<bool>> masked, std::optional<Vec<int32_t>> adjust_start, std::optional<Vec<int32_t>> adjust_ids,
                std::optional<Vec<float>> adjust_values, std::optional<Vec<int32_t>> scale_start,
                std::optional<Vec<int32_t>> scale_ids, std::optional<Vec<float>> scale_values, Out<int32_t> ids, Out<float> raw,
                Out<float> raw_masked, Out<int32_t> top_ids, Out<float> top_raw, int top) {
                 const int rows = (int)logits.shape(0), vocab = (int)logits.shape(1);
                 for (size_t n : {temperature.shape(0), top_p.shape(0), top_k.shape(0), min_p.shape(0), key.shape(0),
                                  position.shape(0), logprobs.shape(0)})
                     require((int)n == rows, "every array of a SampleBatch must have one entry per row of logits");
                 require(!mask || (masked && (int)mask->shape(0) == rows && (int)masked->shape(0) == rows &&
                                   (int)mask->shape(1) * 32 >= vocab),
                         "mask must be [rows, ceil(vocabulary / 32)], masked [rows]");
                 check_changes("adjust", adjust_start, adjust_ids, adjust_values, rows, vocab);
                 check_changes("scale", scale_start, scale_ids, scale_values, rows, vocab);
                 nb::gil_scoped_release release;
                 each_row(e, rows, [&](int r, int thread) {
                     SampleRow row{};
                     row.logits = logits.data() + (size_t)r * vocab;
                     row.vocab = vocab;
                     row.temperature = temperature.data()[r];
                     row.top_p = top_p.data()[r];
                     row.top_k = top_k.data()[r];
                     row.min_p = min_p.data()[r];
                     row.key = key.data()[r];
                     row.position = position.data()[r];
                     row.logprobs = logprobs.data()[r];
                     if (mask && masked->data()[r]) row.mask = mask->data() + (size_t)r * mask->shape(1);
                     if (adjust_start) {
                         const int first = adjust_start->data()[r];
                         row.adjusts = adjust_start->data()[r + 1] - first;
                         row.adjust_ids = adjust_ids->data() + first;
                         row.adjust_values = adjust_values->data() + first;
                     }
                     if (scale_start) {
                         const int first = scale_start->data()[r];
                         row.scales = scale_start->data()[r + 1] - first;
                         row.scale_ids = scale_ids->data() + first;
                         row.scale_values = scale_values->data() + first;
                     }
                     SampleOut out{0, 0, 0, top_ids.data() + (size_t)r * top, top_raw.data() + (size_t)r * top};
                     sample_row(*e.lane, row, out, e.work[thread]);
                     ids.data()[r] = out.id;
                     raw.data()[r] = out.raw;
                     raw_masked.data()[r] = out.masked;
                 });
             },
             nb::arg("logits"), nb::arg("temperature"), nb::arg("top_p"), nb::arg("top_k"), nb::arg("min_p"), nb::arg("key"),
             nb::arg("position"), nb::arg("logprobs"), nb::arg("mask").none(), nb::arg("masked").none(),
             nb::arg("adjust_start").none(), nb::arg("adjust_ids").none(), nb::arg("adjust_values").none(),
             nb::arg("scale_start").none(), nb::arg("scale_ids").none(), nb::arg("scale_values").none(), nb::arg("ids"),
             nb::arg("raw"), nb::arg("raw_masked"), nb::arg("top_ids"), nb::arg("top_raw"), nb::arg("top"))
        .def("packed_bytes",
             [](Engine& e, const std::string& kind, int n, int k) { return packed_bytes(plan(kind, n, k, e.lane->pairs)); })
        .def("pack",
             [](Engine& e, const std::string& kind, int n, int k, Vec<uint8_t> raw, Out<uint8_t> to) {
                 const Weight w = plan(kind, n, k, e.lane->pairs);
                 const size_t bytes = raw_row_bytes(kind, k) * (size_t)n;
                 require(raw.shape(0) == bytes, "a weight of type " + kind + " and shape (" + std::to_string(n) + ", " +
                                                    std::to_string(k) + ") has " + std::to_string(bytes) + " bytes, not " +
                                                    std::to_string(raw.shape(0)));
                 require(to.size() == packed_bytes(w), "the target of pack has the wrong size");
                 nb::gil_scoped_release release;
                 each_row(e, w.tiles, [&](int tile, int) { pack_tile(w, kind, raw.data(), tile, to.data()); });
             })
        // A number that changes with any byte of an array, and with their order.
        .def("checksum",
             [](Engine& e, Vec<uint8_t> array) {
                 const size_t size = array.shape(0), parts = (size + CHECK_PART - 1) / CHECK_PART;
                 std::vector<uint64_t> sums(parts);
                 nb::gil_scoped_release release;
                 each_row(e, (int)parts, [&](int i, int) {
                     sums[i] = part_checksum(array.data() + i * CHECK_PART, std::min(CHECK_PART, size - i * CHECK_PART));
                 });
                 return part_checksum((const uint8_t*)sums.data(), 8 * parts);
             })
        // Reads all of an array on all threads: what bounds decoding.
        .def("read",
             [](Engine& e, Vec<uint8_t> array) {
                 const size_t part = 1 << 20, size = array.shape(0);
                 std::atomic<uint64_t> total{0};
                 nb::gil_scoped_release release;
                 each_row(e, (int)((size + part - 1) / part), [&](int i, int) {
                     uint64_t sums[16] = {};
                     const uint8_t* from = array.data() + i * part;
                     const size_t stop = std::min(part, size - i * part) / 128;
                     for (size_t j = 0; j < stop; ++j) {
                         __builtin_prefetch(from + j * 128 + 2048);
                         __builtin_prefetch(from + j * 128 + 2112);
                         for (int k = 0; k < 16; ++k) {
                             uint64_t v;
                             memcpy(&v, from + j * 128 + k * 8, 8);
                             sums[k] += v;
                         }
                     }
                     for (uint64_t s : sums) total += s;
                 });
                 return total.load();
             })
        .def("token_logprobs", [](Engine& e, Mat<float> logits, Vec<int32_t> ids, int top, Out<float> values,
                                  Out<int32_t> top_ids, Out<float> top_values) {
            const int rows = (int)logits.shape(0), vocab = (int)logits.shape(1);
            require((int)ids.shape(0) == rows, "token_logprobs needs one id per row of logits");
            for (int r = 0; r < rows; ++r) require(ids.data()[r] >= 0 && ids.data()[r] < vocab, "an id is not in the vocabulary");
            nb::gil_scoped_release release;
            each_row(e, rows, [&](int r, int) {
                values.data()[r] = token_logprob(*e.lane, logits.data() + (size_t)r * vocab, vocab, ids.data()[r], top,
                                                 top_ids.data() + (size_t)r * top, top_values.data() + (size_t)r * top);
            });
        });
}

}  // namespace ramet
