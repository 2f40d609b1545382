// float16 and bfloat16, one number at a time, without help of the hardware.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline float bits_to_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline uint32_t f32_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

inline float bf16_to_f32(uint16_t h) { return bits_to_f32((uint32_t)h << 16); }

// Nearest, ties to even; NaN stays NaN. Subnormal results become zero, as the vector instruction makes them.
inline uint16_t f32_to_bf16(float f) {
    uint32_t u = f32_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)((u >> 16) | 0x40);
    if ((u & 0x7f800000) == 0) return (uint16_t)((u >> 16) & 0x8000);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31;
    const uint32_t mantissa = h & 1023;
    if (exponent == 31) return bits_to_f32(sign | 0x7f800000 | (mantissa << 13));
    if (exponent == 0) {
        const float small = (float)mantissa * bits_to_f32(0x33800000);  // 2^-24
        return sign ? -small : small;
    }
    return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Nearest, ties to even.
inline uint16_t f32_to_f16(float f) {
    const uint32_t u = f32_to_bits(f);
    const uint32_t sign = (u >> 16) & 0x8000;
    const uint32_t a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) {  // below 2^-14: adding 0.5 aligns the mantissa to units of 2^-24
        const float shifted = bits_to_f32(a) + 0.5f;
        return (uint16_t)(sign | (f32_to_bits(shifted) - f32_to_bits(0.5f)));
    }
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

}  // namespace
