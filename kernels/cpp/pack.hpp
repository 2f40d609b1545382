// Weights from the layouts of GGUF to the tiles that the lanes read.
#pragma once

#include <cstdint>
#include <string>

#include "types.hpp"

namespace ramet {

// Of what pack_tile writes, in any of its forms: packed weights that were kept are of no use to another version.
constexpr int LAYOUT = 1;

// Layout of a weight of GGUF type `kind` ("Q4_1", "F32", ...) and shape [n, k]; data is null. `pairs`: BF16 is kept in
// pairs. Throws std::invalid_argument.
Weight plan(const std::string& kind, int n, int k, bool pairs);

inline size_t packed_bytes(const Weight& w) { return (size_t)w.tiles * w.tile_bytes; }
size_t raw_row_bytes(const std::string& kind, int k);

// Fills tile `tile` of the packed weight at `to` from the raw rows of the whole matrix: exact values, padding zero.
void pack_tile(const Weight& w, const std::string& kind, const uint8_t* raw, int tile, uint8_t* to);

// Row `row` of the matrix as floats.
void unpack_row(const Weight& w, int row, float* out);

}  // namespace ramet
