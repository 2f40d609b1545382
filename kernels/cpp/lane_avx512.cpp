// AVX-512 with VNNI and BF16.
#include "lane_table.hpp"
#include "pairs.hpp"

namespace ramet {
const Lane* avx512_lane() {
    static const Lane lane = [] {
        Lane lane = make_lane("avx512");
        lane.pairs = true;
        lane.attend = attend_pairs_or_floats;
        return lane;
    }();
    return &lane;
}
}  // namespace ramet
