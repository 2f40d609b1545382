// Which lanes this build has and this processor can run.
#include "lanes.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace ramet {

#if defined(RAMET_X86_LANES)
namespace {

bool system_saves(uint64_t mask) {
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((((uint64_t)hi << 32) | lo) & mask) == mask;
}

// Linux grants the large state of tiles on demand, once for the whole process.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

struct Features {
    bool avx2 = false, avxvnni = false, avx512 = false, amx = false;
    Features() {
        uint32_t a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool xsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
        if (!xsave || !fma || !f16c || !system_saves(0x6)) return;
        uint32_t b7, c7, d7, a71 = 0, b71, c71, d71;
        if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return;
        avx2 = b7 >> 5 & 1;
        __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
        avxvnni = avx2 && (a71 >> 4 & 1);
        const bool f = b7 >> 16 & 1, dq = b7 >> 17 & 1, bw = b7 >> 30 & 1, vl = b7 >> 31 & 1;
        const bool vnni = c7 >> 11 & 1, bf16 = a71 >> 5 & 1;
        const bool tile_instructions = (d7 >> 24 & 1) && (d7 >> 25 & 1) && (d7 >> 22 & 1);
        avx512 = avx2 && f && dq && bw && vl && vnni && bf16 && system_saves(0xe6);
        amx = avx512 && tile_instructions && system_saves(0x600e6) && may_use_tiles();
    }
};

}  // namespace
#endif

std::vector<const Lane*> lanes() {
    std::vector<const Lane*> found;
#if defined(RAMET_X86_LANES)
    static const Features has;
    if (has.amx) found.push_back(amx_lane());
    if (has.avx512) found.push_back(avx512_lane());
    if (has.avxvnni) found.push_back(avxvnni_lane());
    if (has.avx2) found.push_back(avx2_lane());
#endif
    found.push_back(portable_lane());
    return found;
}

}  // namespace ramet
