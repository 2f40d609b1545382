// Row-wise kernels, written once for every lane.
#pragma once

#include <math.h>

#include "types.hpp"
#include "vec.hpp"

namespace {
using namespace ramet;

void norm(const float* x, const float* weight, float eps, int n, float* out) {
    F s[2] = {set(0), set(0)};
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const F a = ld(x + i), b = ld(x + i + 16);
        s[0] = fma(a, a, s[0]);
        s[1] = fma(b, b, s[1]);
    }
    float total = sum(s[0] + s[1]);
    for (int j = i; j < n; ++j) total += x[j] * x[j];
    const float inverse = 1.0f / __builtin_sqrtf(total / (float)n + eps);
    for (i = 0; i + 16 <= n; i += 16) st(out + i, ld(x + i) * set(inverse) * ld(weight + i));
    for (; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

void quantise(const float* x, const Act& to, int row, int block, int count) {
    x -= block * QBLOCK;
    for (int b = block; b < block + count; ++b) {
        const F lo = ld(x + b * 32), hi = ld(x + b * 32 + 16);
        const float peak = largest(max(abs(lo), abs(hi)));
        const float scale = peak / 127.0f;
        const F inverse = set(peak > 0 ? 127.0f / peak : 0.0f);
        const I a = to_i(lo * inverse), c = to_i(hi * inverse);
        const size_t at = to.at(row, b);
        st_i8(to.q + at * QBLOCK, a);
        st_i8(to.q + at * QBLOCK + 16, c);
        const int32_t first = sum(a), second = sum(c);
        to.sums_at(row, b)[0] = first;
        to.sums_at(row, b)[TILE] = second;
        to.scale[at] = scale;
        to.scaled[at] = scale * (float)(first + second);
    }
}

RAMET_INLINE F silu(F x) { return x / (set(1.0f) + exp(set(0.0f) - x)); }

// By the tanh formula, whose (1 + tanh(u)) / 2 is the logistic function of 2 u.
RAMET_INLINE F gelu(F x) {
    const F inner = x * x * x * set(0.044715f) + x;
    return x / (set(1.0f) + exp(inner * set(-1.5957691216057308f)));
}

template <class Activation>
RAMET_INLINE void gated(const float* gate, const float* up, int n, float* out, Activation f) {
    int i = 0;
    for (; i + 16 <= n; i += 16) st(out + i, f(ld(gate + i)) * ld(up + i));
    if (i < n) {
        float g[16] = {}, u[16] = {};
        for (int j = i; j < n; ++j) g[j - i] = gate[j], u[j - i] = up[j];
        st(g, f(ld(g)) * ld(u));
        for (int j = i; j < n; ++j) out[j] = g[j - i];
    }
}

void silu_mul(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](F x) { return silu(x); });
}

void gelu_mul(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](F x) { return gelu(x); });
}

void add(const float* a, const float* b, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void rope(float* x, const float* cosine, const float* sine, int half, bool interleaved) {
    if (interleaved) {
        for (int i = 0; i < half; ++i) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine[i] - b * sine[i];
            x[2 * i + 1] = a * sine[i] + b * cosine[i];
        }
        return;
    }
    for (int i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = a * sine[i] + b * cosine[i];
    }
}

template <class T, class Convert>
void store_as(const Kv& kv, uint8_t* unit, int slot, const float* k, const float* v, Convert convert) {
    T* keys = (T*)unit;
    T* values = (T*)(unit + kv.values());
    for (int e = 0; e < kv.width; ++e) {
        if (k) keys[kv.key_index(slot, e)] = convert(e < kv.dim ? k[e] : 0.0f);
        if (v) values[kv.value_index(slot, e)] = convert(e < kv.dim ? v[e] : 0.0f);
    }
}

// One scale for the whole vector: its largest magnitude / 127.
float scale_of(const float* x, int n) {
    float peak = 0;
    for (int i = 0; i < n; ++i) peak = __builtin_fabsf(x[i]) > peak ? __builtin_fabsf(x[i]) : peak;
    return peak / 127.0f;
}

void store(const Kv& kv, int layer, int head, int block, int slot, const float* k, const float* v) {
    uint8_t* unit = kv.at(layer, block, head);
    slot += kv.first(block);
    switch (kv.type) {
        case KvType::F32:
            store_as<float>(kv, unit, slot, k, v, [](float x) { return x; });
            break;
        case KvType::BF16:
            store_as<uint16_t>(kv, unit, slot, k, v, f32_to_bf16);
            break;
        case KvType::F16:
            store_as<uint16_t>(kv, unit, slot, k, v, f32_to_f16);
            break;
        case KvType::I8: {
            float* scales = (float*)(unit + kv.scales());
            for (int part = 0; part < 2; ++part) {
                const float* x = part ? v : k;
                if (!x) continue;
                int8_t* to = (int8_t*)unit + (part ? kv.values() : 0);
                const float scale = scale_of(x, kv.dim), inverse = scale > 0 ? 1.0f / scale : 0.0f;
                for (int e = 0; e < kv.width; ++e)
                    to[part ? kv.value_index(slot, e) : kv.key_index(slot, e)] =
                        (int8_t)(e < kv.dim ? __builtin_lrintf(x[e] * inverse) : 0);
                scales[part * kv.slots + slot] = scale;
            }
            break;
        }
    }
}

int argmax(const float* x, int n) {
    F best = set(-INFINITY);
    int i = 0;
    for (; i + 16 <= n; i += 16) best = max(ld(x + i), best);
    float top = largest(best);
    for (; i < n; ++i) top = x[i] > top ? x[i] : top;
    for (i = 0; i < n; ++i)
        if (x[i] == top) return i;
    return 0;
}

float maximum(const float* x, int n) {
    F best = set(-INFINITY);
    int i = 0;
    for (; i + 16 <= n; i += 16) best = max(ld(x + i), best);
    float top = largest(best);
    for (; i < n; ++i) top = x[i] > top ? x[i] : top;
    return top;
}

double sum_exp(const float* x, int n, float shift) {
    D total = nought();
    for (int i = 0; i < n; i += 16) total = total + exp(ld_or(x + i, n - i, -INFINITY) - set(shift));
    return sum(total);
}

double exp_shifted(const float* x, int n, float shift, float factor, float* out) {
    D total = nought();
    for (int i = 0; i < n; i += 16) {
        const F p = exp((ld_or(x + i, n - i, -INFINITY) - set(shift)) * set(factor));
        st_some(out + i, p, n - i);
        total = total + p;
    }
    return sum(total);
}

int at_least(const float* x, int n, float least, int32_t* indices, int room) {
    int count = 0;
    for (int i = 0; i < n; i += 64) {
        const int stop = i + 64 < n ? i + 64 : n;
        if (stop - i == 64) {
            const F m = max(max(ld(x + i), ld(x + i + 16)), max(ld(x + i + 32), ld(x + i + 48)));
            if (!(largest(m) >= least)) continue;
        }
        for (int j = i; j < stop; ++j) {
            if (!(x[j] >= least)) continue;
            if (count < room) indices[count] = j;
            ++count;
        }
    }
    return count;
}

}  // namespace
