// AVX2 with the 256-bit integer dot product.
#include "lane_table.hpp"

namespace ramet {
const Lane* avxvnni_lane() {
    static const Lane lane = make_lane("avxvnni");
    return &lane;
}
}  // namespace ramet
