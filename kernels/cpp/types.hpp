// Plain data that travels between the program and the lanes.
//
// Batch invariance, the promise of everything below: an output row is computed by operations whose order depends on
// that row alone.
//   * matmul: activations are quantised row by row in blocks of 32; the integer dot product of a block is exact,
//     whichever instruction forms it; blocks are added in ascending order, one fused multiply-add for the scaled dot,
//     one for the minimum, into one accumulator per output. So rows may be computed alone or by the hundred.
//   * attention: keys are taken in segments of 64 at absolute positions, left to right. A segment gives its own maximum, sum
//     and weighted values for a query, which are then merged into the query's running state; on AMX they are added to that
//     state as they are made (attention_amx.hpp). Either way what happens to a query's state depends on that query and its
//     keys up to there alone; keys beyond the query's position are never multiplied.
//   * norms, rotations, activations: one row, one order.
// Threads take whole chunks of such rows, so their number changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>

// Members used inside lanes: never a function of their own, which one lane could share with another.
#define RAMET_MEMBER __attribute__((always_inline)) inline

namespace ramet {

constexpr int SEGMENT = 64;   // keys
constexpr int TILE = 16;      // output columns, or keys, that stand side by side in a vector
constexpr int QBLOCK = 32;    // activations with one scale
constexpr int MAX_QUERIES = 48;  // (token, head) pairs of one KV head that attention takes at a time

enum class WeightKind : int { U4, U8, F32, F16, BF16 };

// What a matmul reads its activations in.
enum class Form : int { Float, Int8, Bf16 };

// A matrix [n, k] repacked in tiles of 16 output columns. A tile is a run of blocks in ascending k.
// U4, U8: a block is 32 k: first the integers (u4: byte [j][column][b] holds k = 4 j + b in its low and k = 16 + 4 j + b
// in its high half, j < 4; u8: byte [j][column][b] is k = 4 j + b, j < 8), then the scales of the 16 columns, then their
// minima. The value is scale * (integer - zero) + minimum. `halves`: two rows of scales, for k < 16 and k >= 16.
// F32, F16, BF16: a block is one k, 16 numbers. `pairs` (BF16): a block is two k, [column][2], and k is padded with zeros
// to a multiple of 32: the operand order of the bf16 dot product.
struct Weight {
    WeightKind kind;
    bool minima;  // has minima (then zero is 0)
    bool wide;    // scales are float32, else float16
    bool halves;  // scales per 16
    bool pairs;
    int zero;
    int n, k;
    int tiles;           // ceil(n / 16)
    size_t block_bytes;  // a multiple of 64 where kind is U4 or U8
    size_t tile_bytes;
    const uint8_t* data;

    RAMET_MEMBER bool quantised() const { return kind == WeightKind::U4 || kind == WeightKind::U8; }
    RAMET_MEMBER const uint8_t* tile(int t) const { return data + (size_t)t * tile_bytes; }
};

// Activations: float rows and, where matmuls read them so, the same rows quantised (value = scale * q, one scale per 32)
// or rounded to bf16. The quantised form stands in panels of 16 rows, block after block, so that kernels reach all rows of
// a panel from one pointer.
struct Act {
    float* f = nullptr;  // [rows, ld]
    int ld = 0;
    int k = 0;                  // columns, a multiple of 32 where q is used
    int8_t* q = nullptr;        // [panel][block][16 rows][32]
    float* scale = nullptr;     // [panel][block][16 rows]
    float* scaled = nullptr;    // [panel][block][16 rows] scale * sum of q: what a minimum is multiplied with
    int32_t* sums = nullptr;    // [panel][block][2][16 rows] sums of q over the first and second 16 of the block

    uint16_t* h = nullptr;      // [rows, ldh] bf16, zeros behind column k
    int ldh = 0;                // a multiple of 32

    RAMET_MEMBER int blocks() const { return k / QBLOCK; }
    // Index of (row, block) in units of one row of one block.
    RAMET_MEMBER size_t at(int row, int block) const {
        return ((size_t)(row / TILE) * blocks() + block) * TILE + row % TILE;
    }
    RAMET_MEMBER int32_t* sums_at(int row, int block) const {
        return sums + ((size_t)(row / TILE) * blocks() + block) * 2 * TILE + row % TILE;
    }
};

enum class KvType : int { F32, BF16, F16, I8 };

// Paged keys and values. A unit holds the slots of one block of one layer and KV head, or of `group` neighbouring blocks
// where one alone is shorter than a tile of 16: keys, then values, then (I8) the scales of the keys and of the values.
// Keys stand in tiles of 16 slots:
//   plain: key [e][slot],          value [slot][e]
//   pairs: key [e / 2][slot][e%2], value [slot / 2][e][slot % 2]   (the operand order of the bf16 dot product)
struct Kv {
    KvType type;
    bool pairs;
    int layers, blocks, block, heads;
    int dim;    // numbers of a head
    int width;  // the same, padded with zeros to a multiple of 16
    int size;   // bytes per number
    int group;  // blocks of a unit
    int slots;  // of a unit
    int units;  // of a layer and head
    size_t unit;
    uint8_t* data;

    // The unit of block b; the block's first slot in it is first(b).
    RAMET_MEMBER uint8_t* at(int layer, int b, int head) const {
        return data + (((size_t)layer * units + b / group) * heads + head) * unit;
    }
    RAMET_MEMBER int first(int b) const { return b % group * block; }
    RAMET_MEMBER size_t values() const { return (size_t)slots * width * size; }
    RAMET_MEMBER size_t scales() const { return 2 * values(); }
    RAMET_MEMBER size_t key_index(int slot, int e) const {
        const size_t base = (size_t)(slot / TILE) * TILE * width;
        const int s = slot % TILE;
        return pairs ? base + ((size_t)(e / 2) * TILE + s) * 2 + e % 2 : base + (size_t)e * TILE + s;
    }
    RAMET_MEMBER size_t value_index(int slot, int e) const {
        if (!pairs) return (size_t)slot * width + e;
        return ((size_t)(slot / 2) * width + e) * 2 + slot % 2;
    }
};

// Queries q0 <= q < q1 of an item over segments seg0 <= s < seg1 of one block table, of which `context` slots are filled.
struct AttentionRun {
    int q0, q1, seg0, seg1;
    const int32_t* table;
    int context;
};

// One unit of attention work: up to MAX_QUERIES queries that read the same KV head.
struct AttentionItem {
    int tokens;  // distinct tokens; query i is token i / per_token
    int first_run, runs;
    const int32_t* token;     // [tokens] row of q and out
    const int32_t* position;  // [tokens]
};

struct AttentionArgs {
    const Kv* kv;
    const AttentionItem* item;
    const AttentionRun* runs;
    int layer, kv_head, per_token;  // query heads per KV head
    float scale;
    int window;
    const float* q;  // [N, ldq], head h at h * width
    int ldq;
    float* out;  // like q
    int ldo;
};

}  // namespace ramet
