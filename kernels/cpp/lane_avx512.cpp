// AVX-512 with VNNI and BF16.
#include "lane_table.hpp"
#include "gemm_pairs.hpp"

namespace ramet {
const Lane* avx512_lane() {
    static const Lane lane = [] {
        Lane lane = make_lane("avx512");
        lane.pairs = true;
        lane.gemm = gemm_pairs;
        lane.halve = halve_pairs;
        lane.attend = attend_pairs_or_floats;
        return lane;
    }();
    return &lane;
}
}  // namespace ramet
