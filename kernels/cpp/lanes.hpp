#pragma once

#include <vector>

#include "lane.hpp"

namespace ramet {

// The lanes that this processor can run, best first.
std::vector<const Lane*> lanes();

}  // namespace ramet
