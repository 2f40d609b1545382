// Python's view of the kernels. Arrays are checked here; below, sizes are trusted.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "half.hpp"
#include "lanes.hpp"
#include "pack.hpp"
#include "pages.hpp"
#include "sample.hpp"
#include "steps.hpp"

namespace nb = nanobind;
using namespace ramet;

namespace {

template <class T>
using Vec = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Mat = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

struct PyWeight {
    Weight w;
    Form form;
    nb::object keep;  // the array that owns the bytes
};

struct PyKv {
    Kv kv{};
    nb::object keep;
};

class Engine {
  public:
    Engine(const std::string& isa, int threads) {
        for (const Lane* candidate : lanes())
            if (!lane && (isa == "auto" || isa == candidate->name)) lane = candidate;
        if (!lane) {
            std::string have;
            for (const Lane* candidate : lanes()) have += std::string(have.empty() ? "" : ", ") + candidate->name;
            throw std::invalid_argument("isa '" + isa + "' can't run here: this machine and build have auto, " + have);
        }
        if (threads <= 0) threads = std::max(1u, std::thread::hardware_concurrency());
        pool = std::make_unique<Pool>(threads, lane->enter, lane->leave);
        work.resize(pool->threads());
    }
    const Lane* lane = nullptr;
    std::unique_ptr<Pool> pool;
    std::vector<SampleWork> work;
};

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

class PyProgram {
  public:
    explicit PyProgram(nb::object engine)
        : keep_({engine}), program(*nb::cast<Engine&>(engine).lane, *nb::cast<Engine&>(engine).pool) {}

    const Weight& use(PyWeight& w) {
        keep_.push_back(w.keep);
        return w.w;
    }
    const float* use_vector(PyWeight& w) {
        require(w.w.kind == WeightKind::F32 && w.w.k == 1, "a vector must have been packed as F32 of shape (n, 1)");
        return (const float*)use(w).data;
    }

    nb::ndarray<nb::numpy, float, nb::ndim<2>> run(Vec<int32_t> ids, Vec<int32_t> positions, Vec<int32_t> row_start,
                                                   Vec<int32_t> context, Mat<int32_t> tables, Vec<int32_t> logit_rows,
                                                   const std::vector<std::tuple<Vec<int32_t>, int, int>>& groups,
                                                   PyKv& kv) {
        Batch b;
        b.tokens = (int)ids.shape(0);
        b.rows = (int)context.shape(0);
        b.wanted = (int)logit_rows.shape(0);
        b.ids = ids.data();
        b.positions = positions.data();
        b.row_start = row_start.data();
        b.context = context.data();
        b.tables = tables.data();
        b.table_width = (int)tables.shape(1);
        b.logit_rows = logit_rows.data();
        require(program.kv_width < 0 || program.kv_width == kv.kv.heads * kv.kv.dim,
                "the KV cache has heads of another number or size than the model's");
        check(b, positions, row_start, tables, kv.kv);
        for (const auto& [rows, start, stop] : groups) {
            Group g{{rows.data(), rows.data() + rows.shape(0)}, start, stop};
            require(start >= 0 && start % SEGMENT == 0 && stop % SEGMENT == 0, "a group must begin and end at multiples of 64");
            for (int32_t r : g.rows) require(r >= 0 && r < b.rows, "a group names a row that the batch lacks");
            b.groups.push_back(std::move(g));
        }
        const Act* out;
        {
            nb::gil_scoped_release release;
            out = &program.run(std::move(b), kv.kv);
        }
        const Value& logits = program.values[program.result];
        return nb::ndarray<nb::numpy, float, nb::ndim<2>>(out->f, {(size_t)program.rows(logits), (size_t)logits.width},
                                                          nb::find(this), {out->ld, 1});
    }

  private:
    void check(const Batch& b, const Vec<int32_t>& positions, const Vec<int32_t>& row_start, const Mat<int32_t>& tables,
               const Kv& kv) {
        require((int)positions.shape(0) == b.tokens, "positions must be as long as ids");
        require((int)row_start.shape(0) == b.rows + 1 && b.row_start[0] == 0 && b.row_start[b.rows] == b.tokens,
                "row_start must go from 0 to the number of ids in rows + 1 entries");
        require((int)tables.shape(0) == b.rows, "block_tables must have one line per row");
        for (int i = 0; i < b.tokens; ++i)
            require(b.ids[i] >= 0 && b.ids[i] < vocabulary, "id " + std::to_string(b.ids[i]) + " is not in the vocabulary");
        for (int i = 0; i < b.wanted; ++i)
            require(b.logit_rows[i] >= 0 && b.logit_rows[i] < b.tokens, "logit_rows must be indices into ids");
        for (int r = 0; r < b.rows; ++r) {
            require(b.row_start[r] <= b.row_start[r + 1], "row_start must not fall");
            require(b.context[r] <= b.table_width * kv.block, "a row's context is longer than its block table");
            for (int i = b.row_start[r]; i < b.row_start[r + 1]; ++i)
                require(b.positions[i] >= 0 && b.positions[i] < b.context[r], "a position is outside its row's context");
            for (int i = 0; i * kv.block < b.context[r]; ++i) {
                const int block = b.tables[(size_t)r * b.table_width + i];
                require(block >= 0 && block < kv.blocks, "block " + std::to_string(block) + " is not in the KV cache");
            }
        }
    }

    std::vector<nb::object> keep_;

  public:
    Program program;
    int vocabulary = 0;
};

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

KvType kv_type(const std::string& name) {
    if (name == "f32") return KvType::F32;
    if (name == "bf16") return KvType::BF16;
    if (name == "f16") return KvType::F16;
    if (name == "int8") return KvType::I8;
    throw std::invalid_argument("kv_dtype '" + name + "' is not known: use f32, bf16, f16 or int8");
}

Kv kv_layout(const Lane& lane, const std::string& type, int layers, int blocks, int block, int heads, int width) {
    require(block >= 1 && (block & (block - 1)) == 0, "the block size must be a power of two");
    require(width >= 1 && heads >= 1 && layers >= 1 && blocks >= 0, "the sizes of a KV cache must be positive");
    Kv kv{};
    kv.type = kv_type(type);
    kv.pairs = lane.pairs && (kv.type == KvType::BF16 || kv.type == KvType::I8);
    kv.layers = layers;
    kv.blocks = blocks;
    kv.block = block;
    kv.heads = heads;
    kv.dim = width;
    kv.width = (width + TILE - 1) / TILE * TILE;
    kv.tile = std::min(block, TILE);
    kv.size = kv.type == KvType::F32 ? 4 : kv.type == KvType::I8 ? 1 : 2;
    kv.unit = kv.scales() + (kv.type == KvType::I8 ? 8 * (size_t)block : 0);
    return kv;
}

void copy_tokens(const Kv& kv, int source, int target, int tokens) {
    for (int layer = 0; layer < kv.layers; ++layer) {
        for (int head = 0; head < kv.heads; ++head) {
            uint8_t *from = kv.at(layer, source, head), *to = kv.at(layer, target, head);
            if (tokens >= kv.block) {
                memcpy(to, from, kv.unit);
                continue;
            }
            for (int slot = 0; slot < tokens; ++slot) {
                for (int e = 0; e < kv.width; ++e) {
                    const size_t k = kv.key_index(slot, e) * kv.size, v = kv.values() + kv.value_index(slot, e) * kv.size;
                    memcpy(to + k, from + k, kv.size);
                    memcpy(to + v, from + v, kv.size);
                }
                if (kv.type != KvType::I8) continue;
                for (int i : {slot, kv.block + slot})
                    memcpy(to + kv.scales() + 4 * i, from + kv.scales() + 4 * i, 4);
            }
        }
    }
}

float stored(const Kv& kv, const uint8_t* numbers, size_t i) {
    switch (kv.type) {
        case KvType::F32:
            return ((const float*)numbers)[i];
        case KvType::BF16:
            return bf16_to_f32(((const uint16_t*)numbers)[i]);
        case KvType::F16:
            return f16_to_f32(((const uint16_t*)numbers)[i]);
        default:
            return ((const int8_t*)numbers)[i];
    }
}

}  // namespace

NB_MODULE(_cpu, m) {
    m.attr("VERSION") = 2;
    m.def("lanes", [] {
        std::vector<std::string> names;
        for (const Lane* lane : lanes()) names.push_back(lane->name);
        return names;
    });

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

    // Zeroed memory of its own pages, large ones where the system gives them; touched pages count, not reserved ones.
    m.def("allocate", [](size_t bytes) {
        auto memory = std::make_unique<Pages>(std::max<size_t>(bytes, 1));
        uint8_t* data = memory->data();
        nb::capsule owner(memory.release(), [](void* p) noexcept { delete (Pages*)p; });
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {bytes}, owner);
    });

    nb::class_<PyWeight>(m, "Weight")
        .def("__init__",
             [](PyWeight* self, Engine& e, const std::string& kind, int n, int k, nb::object array) {
                 Weight w = plan(kind, n, k, e.lane->pairs);
                 auto bytes = nb::cast<nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(array);
                 require(bytes.shape(0) == packed_bytes(w), "a packed weight has the wrong size");
                 w.data = bytes.data();
                 new (self) PyWeight{w, e.lane->form(w), array};
             })
        .def_prop_ro("shape", [](PyWeight& w) { return std::make_tuple(w.w.n, w.w.k); })
        // What a matmul reads its activations in: float, int8 or bf16.
        .def_prop_ro("form",
                     [](PyWeight& w) {
                         return std::string(w.form == Form::Int8 ? "int8" : w.form == Form::Bf16 ? "bf16" : "float");
                     })
        .def("row", [](PyWeight& w, int row, Out<float> to) {
            require(row >= 0 && row < w.w.n && (int)to.size() == w.w.k, "no such row");
            unpack_row(w.w, row, to.data());
        });

    nb::class_<PyKv>(m, "Kv")
        .def("__init__",
             [](PyKv* self, Engine& e, const std::string& type, int layers, int blocks, int block, int heads, int width,
                nb::object array) {
                 Kv kv = kv_layout(*e.lane, type, layers, blocks, block, heads, width);
                 auto bytes = nb::cast<nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(array);
                 require(bytes.shape(0) == (size_t)layers * blocks * heads * kv.unit, "the KV memory has the wrong size");
                 kv.data = bytes.data();
                 new (self) PyKv{kv, array};
             })
        .def_static("bytes",
                    [](Engine& e, const std::string& type, int layers, int blocks, int block, int heads, int width) {
                        return (size_t)layers * blocks * heads * kv_layout(*e.lane, type, 1, 1, block, heads, width).unit;
                    })
        .def("copy",
             [](PyKv& self, Vec<int32_t> source, Vec<int32_t> target, Vec<int32_t> tokens) {
                 const Kv& kv = self.kv;
                 require(source.shape(0) == target.shape(0) && source.shape(0) == tokens.shape(0),
                         "copy_blocks needs as many targets and token counts as sources");
                 for (size_t i = 0; i < source.shape(0); ++i)
                     for (int b : {source.data()[i], target.data()[i]})
                         require(b >= 0 && b < kv.blocks, "block " + std::to_string(b) + " is not in the KV cache");
                 nb::gil_scoped_release release;
                 for (size_t i = 0; i < source.shape(0); ++i)
                     copy_tokens(kv, source.data()[i], target.data()[i], tokens.data()[i]);
             })
        .def_prop_ro("layers", [](PyKv& self) { return self.kv.layers; })
        .def_prop_ro("blocks", [](PyKv& self) { return self.kv.blocks; })
        .def_prop_ro("block", [](PyKv& self) { return self.kv.block; })
        .def_prop_ro("heads", [](PyKv& self) { return self.kv.heads; })
        .def_prop_ro("width", [](PyKv& self) { return self.kv.dim; })
        // Key and value of one slot as floats: for tests and for tiers.
        .def("read", [](PyKv& self, int layer, int block, int slot, int head, Out<float> k, Out<float> v) {
            const Kv& kv = self.kv;
            require(layer >= 0 && layer < kv.layers && block >= 0 && block < kv.blocks && slot >= 0 && slot < kv.block &&
                        head >= 0 && head < kv.heads && (int)k.size() == kv.dim && (int)v.size() == kv.dim,
                    "no such slot");
            const uint8_t* unit = kv.at(layer, block, head);
            const float* scales = (const float*)(unit + kv.scales());
            const bool scaled = kv.type == KvType::I8;
            for (int e = 0; e < kv.dim; ++e) {
                k.data()[e] = stored(kv, unit, kv.key_index(slot, e)) * (scaled ? scales[slot] : 1.0f);
                v.data()[e] = stored(kv, unit + kv.values(), kv.value_index(slot, e)) * (scaled ? scales[kv.block + slot] : 1.0f);
            }
        });

    nb::class_<PyProgram>(m, "Program")
        .def(nb::init<nb::object>())
        .def("value", [](PyProgram& p, int width, bool wanted) { return p.program.value(width, wanted); })
        // The value is also kept in a form that matmuls read.
        .def("also",
             [](PyProgram& p, int value, const std::string& form) {
                 Value& v = p.program.values[value];
                 require(form != "int8" || v.width % QBLOCK == 0, "a quantised matmul needs an input of a multiple of 32");
                 (form == "int8" ? v.int8 : v.bf16) = true;
             })
        .def("rope",
             [](PyProgram& p, Vec<float> inv_freq, bool interleaved) {
                 return p.program.add_rope({{inv_freq.data(), inv_freq.data() + inv_freq.shape(0)}, interleaved});
             })
        .def("result",
             [](PyProgram& p, int value, int vocabulary, int heads_per_kv, int kv_width) {
                 p.program.result = value;
                 p.program.kv_width = kv_width;
                 p.vocabulary = vocabulary;
                 p.program.heads_per_kv = heads_per_kv;
             })
        .def("embed", [](PyProgram& p, PyWeight& table, int to) { p.program.push(embed_step(p.use(table), to)); })
        .def("norm",
             [](PyProgram& p, int x, PyWeight& w, float eps, int to) { p.program.push(norm_step(x, p.use_vector(w), eps, to)); })
        .def("convert", [](PyProgram& p, int x) { p.program.push(convert_step(x)); })
        .def("matmul",
             [](PyProgram& p, int x, PyWeight& w, int to, bool accumulate) {
                 p.program.push(matmul_step(x, p.use(w), to, accumulate));
             })
        .def("gate_up",
             [](PyProgram& p, int x, PyWeight& gate, PyWeight& up, int to) {
                 p.program.push(gate_up_step(x, p.use(gate), p.use(up), to));
             })
        .def("qkv",
             [](PyProgram& p, int x, const std::vector<PyWeight*>& weights, const std::vector<PyWeight*>& biases, int rope,
                int head_dim, int layer, int q) {
                 require(weights.size() == 3 && (biases.empty() || biases.size() == 3), "qkv needs three weights");
                 QkvSpec spec{x, q, {}, {}, rope, layer, head_dim};
                 for (int i = 0; i < 3; ++i) {
                     spec.weights[i] = p.use(*weights[i]);
                     spec.biases[i] = biases.empty() ? nullptr : p.use_vector(*biases[i]);
                 }
                 p.program.push(qkv_step(std::move(spec)));
             })
        .def("rotate", [](PyProgram& p, int x, int to, int heads, int rope) { p.program.push(rope_step(x, to, heads, rope)); })
        .def("store", [](PyProgram& p, int k, int v, int layer) { p.program.push(store_step(k, v, layer)); })
        .def("attention",
             [](PyProgram& p, int q, int layer, int heads, float scale, int window, int to) {
                 p.program.push(attention_step(q, layer, heads, scale, window, to));
             })
        .def("add", [](PyProgram& p, int a, int b, int to) { p.program.push(add_step(a, b, to)); })
        .def("silu_mul", [](PyProgram& p, int gate, int up, int to) { p.program.push(silu_mul_step(gate, up, to)); })
        .def("bias", [](PyProgram& p, int x, PyWeight& v, int to) { p.program.push(bias_step(x, p.use_vector(v), to)); })
        .def("take_rows", [](PyProgram& p, int x, int to) { p.program.push(take_rows_step(x, to)); })
        .def("profile",
             [](PyProgram& p, bool on) {
                 std::map<std::string, double> seconds;
                 std::swap(seconds, p.program.profile);
                 p.program.profiling = on;
                 return seconds;
             })
        .def("run", &PyProgram::run, nb::arg("ids"), nb::arg("positions"), nb::arg("row_start"), nb::arg("context"),
             nb::arg("block_tables"), nb::arg("logit_rows"), nb::arg("groups"), nb::arg("kv"));
}
