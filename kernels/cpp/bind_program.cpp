// Python's view of a program: built step by step, then run.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "steps.hpp"

namespace ramet {
namespace {

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

}  // namespace

void bind_program(nb::module_& m) {
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
        .def("embed",
             [](PyProgram& p, PyWeight& table, float factor, int to) {
                 p.program.push(embed_step(p.use(table), factor, to));
             })
        .def("norm",
             [](PyProgram& p, int x, PyWeight& w, int size, float eps, int to) {
                 p.program.push(norm_step(x, p.use_vector(w), size, eps, to));
             })
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
        .def("gelu_mul", [](PyProgram& p, int gate, int up, int to) { p.program.push(gelu_mul_step(gate, up, to)); })
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

}  // namespace ramet
