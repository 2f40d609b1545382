"""From a file's storage to float32, for every supported kind. Block layouts are those of GGML.

A block's bytes stand in the order of the fields named here; ``d`` and ``m`` are float16 scales.

    Q4_0  d, 16 bytes: low nibbles are elements 0-15, high nibbles 16-31          x = d (q - 8)
    Q4_1  d, m, 16 bytes                                                          x = d q + m
    Q5_0  d, 4 bytes of fifth bits, 16 bytes                                      x = d (q - 16)
    Q5_1  d, m, 4 bytes of fifth bits, 16 bytes                                   x = d q + m
    Q8_0  d, 32 int8                                                              x = d q
    Q4_K  d, dmin, 12 bytes: eight 6-bit (scale, min) pairs, 128 bytes            x = d s q - dmin m
    Q5_K  the same with 32 bytes of fifth bits in front of the 128
    Q6_K  128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 int8 scales, d   x = d s (q - 32)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import QuantTensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def _half(block: Bytes) -> Floats:
    """float16 in the two bytes of each row, as float32 [n, 1]."""
    return np.ascontiguousarray(block).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, w] bytes to [n, 2 w]: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[n, 4] bytes to [n, 32] values 0 or 16."""
    bits: Bytes = np.unpackbits(packed, axis=1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32, copy=False)


def _f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _bf16(data: Bytes) -> Floats:
    words: NDArray[np.uint32] = data.view("<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32)


def _q4_0(block: Bytes) -> Floats:
    return _half(block[:, :2]) * (_nibbles(block[:, 2:]).astype(np.float32) - 8)


def _q4_1(block: Bytes) -> Floats:
    return _half(block[:, :2]) * _nibbles(block[:, 4:]).astype(np.float32) + _half(block[:, 2:4])


def _q5_0(block: Bytes) -> Floats:
    values = _nibbles(block[:, 6:]) | _fifth_bits(block[:, 2:6])
    return _half(block[:, :2]) * (values.astype(np.float32) - 16)


def _q5_1(block: Bytes) -> Floats:
    values = _nibbles(block[:, 8:]) | _fifth_bits(block[:, 4:8])
    return _half(block[:, :2]) * values.astype(np.float32) + _half(block[:, 2:4])


def _q8_0(block: Bytes) -> Floats:
    return _half(block[:, :2]) * block[:, 2:].view(np.int8).astype(np.float32)


def _scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """The eight 6-bit scales and mins of a K block, [n, 8, 1] each.

    Bytes 0-3 and 4-7 hold scales and mins 0-3 in their low six bits; bytes 8-11 hold the low nibbles of scales and mins
    4-7, whose upper two bits are the top bits of bytes 0-7.
    """
    first, second, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (low & 15) | ((first >> 6) << 4)], axis=1)
    mins = np.concatenate([second & 63, (low >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32)[:, :, None], mins.astype(np.float32)[:, :, None]


def _k_nibbles(packed: Bytes) -> Bytes:
    """[n, 128] to [n, 8, 32]: each run of 32 bytes gives the low nibbles of one sub-block, then the high ones."""
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(block: Bytes) -> Floats:
    scales, mins = _scales_and_mins(block[:, 4:16])
    d, dmin = _half(block[:, :2])[:, :, None], _half(block[:, 2:4])[:, :, None]
    values = _k_nibbles(block[:, 16:]).astype(np.float32)
    return (d * scales * values - dmin * mins).reshape(len(block), 256)


def _q5_k(block: Bytes) -> Floats:
    scales, mins = _scales_and_mins(block[:, 4:16])
    d, dmin = _half(block[:, :2])[:, :, None], _half(block[:, 2:4])[:, :, None]
    bits = np.unpackbits(block[:, 16:48], axis=1, bitorder="little").reshape(-1, 32, 8)  # byte j, bit s: element (s, j)
    values: Floats = _k_nibbles(block[:, 48:]).astype(np.float32)
    values += 16 * bits.transpose(0, 2, 1)
    return (d * scales * values - dmin * mins).reshape(len(block), 256)


def _q6_k(block: Bytes) -> Floats:
    low = block[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2)  # [n, half, 2, 64]
    high = block[:, 128:192].reshape(-1, 2, 1, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)  # [n, half, 4, 32]
    values = low.reshape(-1, 16, 16) | (high.reshape(-1, 16, 16) << 4)
    scales = block[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
    d = _half(block[:, 208:210])[:, :, None]
    result: Floats = (d * scales * (values.astype(np.float32) - 32)).reshape(len(block), 256)
    return result


# kind: (bytes of a block, elements of a block, function of [n, bytes])
_BLOCKS: dict[str, tuple[int, int, Callable[[Bytes], Floats]]] = {
    "Q4_0": (18, 32, _q4_0),
    "Q4_1": (20, 32, _q4_1),
    "Q5_0": (22, 32, _q5_0),
    "Q5_1": (24, 32, _q5_1),
    "Q8_0": (34, 32, _q8_0),
    "Q4_K": (144, 256, _q4_k),
    "Q5_K": (176, 256, _q5_k),
    "Q6_K": (210, 256, _q6_k),
}
_PLAIN: dict[str, tuple[int, Callable[[Bytes], Floats]]] = {"F32": (4, _f32), "F16": (2, _f16), "BF16": (2, _bf16)}

_BLOCKS_AT_ONCE = 1 << 14  # bounds the memory of the steps in between


def dequantise(tensor: QuantTensor) -> Floats:
    """float32 of ``tensor.shape``. Raises ValueError for an unknown kind or data of the wrong length."""
    count = int(np.prod(tensor.shape))
    data = np.ascontiguousarray(tensor.data).reshape(-1)
    if tensor.kind in _PLAIN:
        width, convert = _PLAIN[tensor.kind]
        _check(tensor, data.size, count * width)
        return convert(data).reshape(tensor.shape)
    if tensor.kind not in _BLOCKS:
        raise ValueError(f"tensor {tensor.name!r}: kind {tensor.kind!r} is not one of {[*_PLAIN, *_BLOCKS]}")
    size, elements, decode = _BLOCKS[tensor.kind]
    if not tensor.shape or tensor.shape[-1] % elements:
        raise ValueError(f"tensor {tensor.name!r}: {tensor.kind} needs rows of a multiple of {elements} elements")
    _check(tensor, data.size, count // elements * size)
    blocks = data.reshape(-1, size)
    result = np.empty((len(blocks), elements), dtype=np.float32)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        part = slice(start, start + _BLOCKS_AT_ONCE)
        result[part] = decode(blocks[part])
    return result.reshape(tensor.shape)


def _check(tensor: QuantTensor, given: int, expected: int) -> None:
    if given != expected:
        raise ValueError(
            f"tensor {tensor.name!r}: {given} bytes of {tensor.kind} for shape {tensor.shape}, not {expected}"
        )
