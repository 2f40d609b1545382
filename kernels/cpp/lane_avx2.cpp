// AVX2 with FMA and F16C.
#include "lane_table.hpp"

namespace ramet {
const Lane* avx2_lane() {
    static const Lane lane = make_lane("avx2");
    return &lane;
}
}  // namespace ramet
