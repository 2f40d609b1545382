// What the parts of the Python module share. Arrays are checked where they come in; below, sizes are trusted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lanes.hpp"
#include "pool.hpp"
#include "sample.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace ramet {

template <class T>
using Vec = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Mat = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

inline void require(bool condition, const std::string& message) {
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

// The classes of the module, each in a file of its own.
void bind_engine(nb::module_& m);
void bind_weight(nb::module_& m);
void bind_kv(nb::module_& m);
void bind_program(nb::module_& m);

}  // namespace ramet
