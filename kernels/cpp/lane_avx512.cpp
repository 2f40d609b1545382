// AVX-512 with VNNI and BF16.
#include "lane_table.hpp"

namespace ramet {
const Lane* avx512_lane() {
    static const Lane lane = make_lane("avx512");
    return &lane;
}
}  // namespace ramet
