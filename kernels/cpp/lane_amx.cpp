// AVX-512 with AMX: the avx512 lane, its larger products on tiles. Matmuls give the same bits as there, because the tile
// product of a block is the same exact integer, and the float part is the same sequence.
#include "lane_table.hpp"
#include "gemm_tiles.hpp"
#include "attention_amx.hpp"

namespace ramet {
const Lane* amx_lane() {
    static const Lane lane = [] {
        Lane lane = make_lane("amx");
        lane.pairs = true;
        lane.attend = attend_tiles;
        lane.gemm = gemm_tiles;
        lane.halve = halve_pairs;
        lane.gemm_scratch = gemm_amx_scratch;
        return lane;
    }();
    return &lane;
}
}  // namespace ramet
