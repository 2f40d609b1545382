// The Python module ramet.kernels._cpu.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.hpp"
#include "mapped.hpp"
#include "pack.hpp"
#include "pages.hpp"

NB_MODULE(_cpu, m) {
    using namespace ramet;
    m.attr("VERSION") = 3;
    m.attr("LAYOUT") = LAYOUT;
    m.def("lanes", [] {
        std::vector<std::string> names;
        for (const Lane* lane : lanes()) names.push_back(lane->name);
        return names;
    });

    // Zeroed memory of its own pages, large ones where the system gives them; touched pages count, not reserved ones.
    m.def("allocate", [](size_t bytes) {
        auto memory = std::make_unique<Pages>(std::max<size_t>(bytes, 1));
        uint8_t* data = memory->data();
        nb::capsule owner(memory.release(), [](void* p) noexcept { delete (Pages*)p; });
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {bytes}, owner);
    });
    // The bytes of a file, read only.
    m.def("map_file", [](const std::string& path) {
        auto file = std::make_unique<MappedFile>(path);
        const uint8_t* data = file->data();
        const size_t size = file->size();
        nb::capsule owner(file.release(), [](void* p) noexcept { delete (MappedFile*)p; });
        return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(data, {size}, owner);
    });
    bind_engine(m);
    bind_weight(m);
    bind_kv(m);
    bind_program(m);
}
