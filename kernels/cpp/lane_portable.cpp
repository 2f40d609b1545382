// The lane of any processor, through the compiler's own vectors.
#include "lane_table.hpp"

namespace ramet {
const Lane* portable_lane() {
    static const Lane lane = make_lane("portable");
    return &lane;
}
}  // namespace ramet
