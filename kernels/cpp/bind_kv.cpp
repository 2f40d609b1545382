// Python's view of a KV cache.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

#include "bindings.hpp"
#include "half.hpp"

namespace ramet {
namespace {

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
    kv.size = kv.type == KvType::F32 ? 4 : kv.type == KvType::I8 ? 1 : 2;
    kv.slots = std::max(block, TILE);
    kv.group = kv.slots / block;
    kv.units = (blocks + kv.group - 1) / kv.group;
    kv.unit = kv.scales() + (kv.type == KvType::I8 ? 8 * (size_t)kv.slots : 0);
    return kv;
}

// `count` slots within one tile.
void copy_slots(const Kv& kv, const uint8_t* from, int slot, uint8_t* to, int there, int count) {
    const int together = kv.pairs ? 2 : 1;  // numbers of a slot that stand side by side in a key
    for (int e = 0; e < kv.width; e += together)
        memcpy(to + kv.key_index(there, e) * kv.size, from + kv.key_index(slot, e) * kv.size, count * together * kv.size);
    to += kv.values();
    from += kv.values();
    const bool whole = !kv.pairs || (slot % 2 == 0 && there % 2 == 0);
    const int run = !whole ? 0 : kv.pairs ? count / 2 * 2 : count;
    memcpy(to + kv.value_index(there, 0) * kv.size, from + kv.value_index(slot, 0) * kv.size,
           (size_t)run * kv.width * kv.size);
    for (int i = run; i < count; ++i)
        for (int e = 0; e < kv.width; ++e)
            memcpy(to + kv.value_index(there + i, e) * kv.size, from + kv.value_index(slot + i, e) * kv.size, kv.size);
    if (kv.type != KvType::I8) return;
    to += kv.scales() - kv.values();
    from += kv.scales() - kv.values();
    for (int part = 0; part < 2; ++part)
        memcpy(to + 4 * (part * kv.slots + there), from + 4 * (part * kv.slots + slot), 4 * (size_t)count);
}

void copy_tokens(const Kv& kv, int source, int target, int tokens) {
    for (int layer = 0; layer < kv.layers; ++layer) {
        for (int head = 0; head < kv.heads; ++head) {
            const uint8_t* from = kv.at(layer, source, head);
            uint8_t* to = kv.at(layer, target, head);
            if (tokens >= kv.slots) {
                memcpy(to, from, kv.unit);
                continue;
            }
            int slot = kv.first(source), there = kv.first(target), left = std::min(tokens, kv.block);
            while (left > 0) {
                const int count = std::min(left, TILE - slot % TILE);  // a block begins where it does in any tile
                copy_slots(kv, from, slot, to, there, count);
                slot += count;
                there += count;
                left -= count;
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

void bind_kv(nb::module_& m) {
    nb::class_<PyKv>(m, "Kv")
        .def("__init__",
             [](PyKv* self, Engine& e, const std::string& type, int layers, int blocks, int block, int heads, int width,
                nb::object array) {
                 Kv kv = kv_layout(*e.lane, type, layers, blocks, block, heads, width);
                 auto bytes = nb::cast<nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(array);
                 require(bytes.shape(0) == (size_t)layers * kv.units * heads * kv.unit, "the KV memory has the wrong size");
                 kv.data = bytes.data();
                 new (self) PyKv{kv, array};
             })
        .def_static("bytes",
                    [](Engine& e, const std::string& type, int layers, int blocks, int block, int heads, int width) {
                        const Kv kv = kv_layout(*e.lane, type, layers, blocks, block, heads, width);
                        return (size_t)layers * kv.units * heads * kv.unit;
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
            slot += kv.first(block);
            const float* scales = (const float*)(unit + kv.scales());
            const bool scaled = kv.type == KvType::I8;
            for (int e = 0; e < kv.dim; ++e) {
                k.data()[e] = stored(kv, unit, kv.key_index(slot, e)) * (scaled ? scales[slot] : 1.0f);
                v.data()[e] = stored(kv, unit + kv.values(), kv.value_index(slot, e)) * (scaled ? scales[kv.slots + slot] : 1.0f);
            }
        });
}

}  // namespace ramet
