#include "pack.hpp"

#include <cstring>
#include <stdexcept>

#include "half.hpp"

namespace ramet {
namespace {

// 32 consecutive weights of one row: value = scale[i / 16] * (q - zero) + minimum.
struct Block {
    uint8_t q[32];
    float scale[2];
    float minimum;
};

uint16_t u16(const uint8_t* p) { return (uint16_t)(p[0] | p[1] << 8); }
float half(const uint8_t* p) { return f16_to_f32(u16(p)); }

void nibbles(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 16; ++i) q[i] = p[i] & 15, q[i + 16] = p[i] >> 4;
}

void fifth_bits(const uint8_t* p, uint8_t* q) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    for (int i = 0; i < 32; ++i) q[i] = (uint8_t)(q[i] | (bits >> i & 1) << 4);
}

void scale_and_minimum(const uint8_t* p, int i, int& scale, int& minimum) {
    if (i < 4) {
        scale = p[i] & 63;
        minimum = p[i + 4] & 63;
    } else {
        scale = (p[i + 4] & 15) | (p[i - 4] >> 6) << 4;
        minimum = (p[i + 4] >> 4) | (p[i] >> 6) << 4;
    }
}

enum class File { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F32, F16, BF16 };

struct Format {
    const char* name;
    File file;
    int weights, bytes;  // of a block of the file
    WeightKind kind;
    bool minima, wide, halves;
    int zero;
};

const Format FORMATS[] = {
    {"Q4_0", File::Q4_0, 32, 18, WeightKind::U4, false, false, false, 8},
    {"Q4_1", File::Q4_1, 32, 20, WeightKind::U4, true, false, false, 0},
    {"Q5_0", File::Q5_0, 32, 22, WeightKind::U8, false, false, false, 16},
    {"Q5_1", File::Q5_1, 32, 24, WeightKind::U8, true, false, false, 0},
    {"Q8_0", File::Q8_0, 32, 34, WeightKind::U8, false, false, false, 128},
    {"Q4_K", File::Q4_K, 256, 144, WeightKind::U4, true, true, false, 0},
    {"Q5_K", File::Q5_K, 256, 176, WeightKind::U8, true, true, false, 0},
    {"Q6_K", File::Q6_K, 256, 210, WeightKind::U8, false, true, true, 32},
    {"F32", File::F32, 1, 4, WeightKind::F32, false, true, false, 0},
    {"F16", File::F16, 1, 2, WeightKind::F16, false, true, false, 0},
    {"BF16", File::BF16, 1, 2, WeightKind::BF16, false, true, false, 0},
};

const Format& format_of(const std::string& kind) {
    for (const Format& f : FORMATS)
        if (kind == f.name) return f;
    throw std::invalid_argument("weights of type " + kind +
                                " are not supported: use F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K");
}

// Block `b` (of 32) of the row that begins at `row`.
Block read(const Format& f, const uint8_t* row, int b) {
    Block out{};
    const uint8_t* p = row + (size_t)(b * 32 / f.weights) * f.bytes;
    const int part = b % (f.weights / 32);
    switch (f.file) {
        case File::Q4_0:
        case File::Q5_0:
            out.scale[0] = out.scale[1] = half(p);
            nibbles(p + f.bytes - 16, out.q);
            if (f.file == File::Q5_0) fifth_bits(p + 2, out.q);
            break;
        case File::Q4_1:
        case File::Q5_1:
            out.scale[0] = out.scale[1] = half(p);
            out.minimum = half(p + 2);
            nibbles(p + f.bytes - 16, out.q);
            if (f.file == File::Q5_1) fifth_bits(p + 4, out.q);
            break;
        case File::Q8_0:
            out.scale[0] = out.scale[1] = half(p);
            for (int i = 0; i < 32; ++i) out.q[i] = (uint8_t)(p[2 + i] ^ 0x80);
            break;
        case File::Q4_K:
        case File::Q5_K: {
            int scale, minimum;
            scale_and_minimum(p + 4, part, scale, minimum);
            out.scale[0] = out.scale[1] = half(p) * (float)scale;
            out.minimum = -(half(p + 2) * (float)minimum);
            const uint8_t* high = p + 16;
            const uint8_t* low = p + f.bytes - 128 + part / 2 * 32;
            for (int i = 0; i < 32; ++i) {
                out.q[i] = part % 2 ? low[i] >> 4 : low[i] & 15;
                if (f.file == File::Q5_K) out.q[i] = (uint8_t)(out.q[i] | (high[i] >> part & 1) << 4);
            }
            break;
        }
        default: {  // Q6_K: halves of 128, each of four runs of 32
            const uint8_t* low = p + part / 4 * 64 + part % 2 * 32;
            const uint8_t* high = p + 128 + part / 4 * 32;
            const int8_t* scales = (const int8_t*)p + 192 + part * 2;
            for (int i = 0; i < 32; ++i) {
                const int nibble = part % 4 < 2 ? low[i] & 15 : low[i] >> 4;
                out.q[i] = (uint8_t)(nibble | (high[i] >> (part % 4 * 2) & 3) << 4);
            }
            for (int i = 0; i < 2; ++i) out.scale[i] = half(p + 208) * (float)scales[i];
        }
    }
    return out;
}

void put_number(uint8_t* to, int column, bool wide, float value) {
    if (wide) {
        memcpy(to + 4 * column, &value, 4);
    } else {
        const uint16_t h = f32_to_f16(value);
        memcpy(to + 2 * column, &h, 2);
    }
}

void put(const Weight& w, const Block& block, int column, uint8_t* to) {
    if (w.kind == WeightKind::U4) {
        for (int i = 0; i < 16; ++i)
            to[64 * (i / 4) + 4 * column + i % 4] = (uint8_t)(block.q[i] | block.q[i + 16] << 4);
    } else {
        for (int i = 0; i < 32; ++i) to[64 * (i / 4) + 4 * column + i % 4] = block.q[i];
    }
    uint8_t* scales = to + (w.kind == WeightKind::U4 ? 256 : 512);
    const int step = w.wide ? 64 : 32;
    put_number(scales, column, w.wide, block.scale[0]);
    if (w.halves) put_number(scales + step, column, w.wide, block.scale[1]);
    if (w.minima) put_number(scales + step, column, w.wide, block.minimum);
}

}  // namespace

Weight plan(const std::string& kind, int n, int k, bool pairs) {
    const Format& f = format_of(kind);
    if (n < 1 || k < 1 || k % f.weights)
        throw std::invalid_argument("a weight of type " + kind + " has shape (" + std::to_string(n) + ", " +
                                    std::to_string(k) + "): its rows must be a multiple of " + std::to_string(f.weights));
    Weight w{};
    w.kind = f.kind;
    w.minima = f.minima;
    w.wide = f.wide;
    w.halves = f.halves;
    w.zero = f.zero;
    w.n = n;
    w.k = k;
    w.tiles = (n + TILE - 1) / TILE;
    if (w.quantised()) {
        const int scales = (w.wide ? 64 : 32) * (1 + (w.minima || w.halves));
        w.block_bytes = (w.kind == WeightKind::U4 ? 256 : 512) + scales;
        w.tile_bytes = w.block_bytes * (k / QBLOCK);
    } else if (pairs && w.kind == WeightKind::BF16) {
        w.pairs = true;
        w.block_bytes = (size_t)TILE * 4;
        w.tile_bytes = w.block_bytes * ((k + 31) / 32 * 16);
    } else {
        w.block_bytes = (size_t)TILE * f.bytes;
        w.tile_bytes = w.block_bytes * k;
    }
    return w;
}

size_t raw_row_bytes(const std::string& kind, int k) {
    const Format& f = format_of(kind);
    return (size_t)(k / f.weights) * f.bytes;
}

void pack_tile(const Weight& w, const std::string& kind, const uint8_t* raw, int tile, uint8_t* to) {
    const Format& f = format_of(kind);
    const size_t row_bytes = raw_row_bytes(kind, w.k);
    to += (size_t)tile * w.tile_bytes;
    memset(to, 0, w.tile_bytes);
    for (int column = 0; column < TILE && tile * TILE + column < w.n; ++column) {
        const uint8_t* from = raw + (size_t)(tile * TILE + column) * row_bytes;
        if (w.quantised()) {
            for (int b = 0; b < w.k / QBLOCK; ++b) put(w, read(f, from, b), column, to + b * w.block_bytes);
        } else if (w.pairs) {
            for (int i = 0; i < w.k; ++i)
                memcpy(to + (size_t)(i / 2) * w.block_bytes + column * 4 + i % 2 * 2, from + (size_t)i * 2, 2);
        } else {
            for (int i = 0; i < w.k; ++i)
                memcpy(to + (size_t)i * w.block_bytes + column * f.bytes, from + (size_t)i * f.bytes, f.bytes);
        }
    }
}

namespace {
float number(const uint8_t* p, int column, bool wide) {
    if (!wide) return half(p + 2 * column);
    float v;
    memcpy(&v, p + 4 * column, 4);
    return v;
}
}  // namespace

void unpack_row(const Weight& w, int row, float* out) {
    const uint8_t* tile = w.tile(row / TILE);
    const int column = row % TILE;
    if (!w.quantised()) {
        for (int i = 0; i < w.k; ++i) {
            if (w.pairs) {
                out[i] = bf16_to_f32(u16(tile + (size_t)(i / 2) * w.block_bytes + column * 4 + i % 2 * 2));
                continue;
            }
            const uint8_t* p = tile + (size_t)i * w.block_bytes;
            if (w.kind == WeightKind::F32) out[i] = number(p, column, true);
            if (w.kind == WeightKind::F16) out[i] = number(p, column, false);
            if (w.kind == WeightKind::BF16) out[i] = bf16_to_f32(u16(p + 2 * column));
        }
        return;
    }
    for (int b = 0; b < w.k / QBLOCK; ++b) {
        const uint8_t* p = tile + b * w.block_bytes;
        const uint8_t* s = p + (w.kind == WeightKind::U4 ? 256 : 512);
        const int step = w.wide ? 64 : 32;
        const float first = number(s, column, w.wide);
        const float second = w.halves ? number(s + step, column, w.wide) : first;
        const float minimum = w.minima ? number(s + step, column, w.wide) : 0.0f;
        for (int i = 0; i < 32; ++i) {
            int q;
            if (w.kind == WeightKind::U4) {
                const uint8_t byte = p[64 * (i % 16 / 4) + 4 * column + i % 4];
                q = i < 16 ? byte & 15 : byte >> 4;
            } else {
                q = p[64 * (i / 4) + 4 * column + i % 4];
            }
            out[b * 32 + i] = (i < 16 ? first : second) * (float)(q - w.zero) + minimum;
        }
    }
}

}  // namespace ramet
