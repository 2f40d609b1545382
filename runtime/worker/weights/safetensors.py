"""safetensors files: a JSON table of tensors, then their bytes (header length u64, header, data).

Read directly, because numpy has no bfloat16 and so the library cannot hand such tensors over without torch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from ramet.kernels.ops import QuantTensor
from ramet.runtime.protocol.errors import InvalidModel

_KINDS = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER = 100 << 20


class _Entry(Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, QuantTensor]:
    """All tensors, mapped, not copied. Raises InvalidModel for a damaged file or a dtype other than F32, F16, BF16."""
    size = path.stat().st_size
    data = np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, dtype=np.uint8)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER):
        raise InvalidModel(f"{path} is not a whole safetensors file. Fetch it again.")
    try:
        table = msgspec.json.decode(data[8 : 8 + length].tobytes(), type=dict[str, msgspec.Raw])
        table.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in table.items()}
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path} is damaged: its header is not valid ({error}). Fetch it again.") from error
    return {name: _tensor(path, data[8 + length :], name, entry) for name, entry in entries.items()}


def _tensor(path: Path, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], name: str, entry: _Entry) -> QuantTensor:
    width = _KINDS.get(entry.dtype)
    if width is None:
        raise InvalidModel(f"{path}: tensor {name!r} is {entry.dtype}; supported are {', '.join(_KINDS)}.")
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= len(data) or end - begin != int(np.prod(entry.shape)) * width:
        raise InvalidModel(f"{path} is damaged or cut short at tensor {name!r}. Fetch it again.")
    return QuantTensor(entry.dtype, tuple(entry.shape), data[begin:end], name)
