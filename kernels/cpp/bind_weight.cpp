// Python's view of a packed weight.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.hpp"
#include "pack.hpp"

namespace ramet {

void bind_weight(nb::module_& m) {
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
}

}  // namespace ramet
