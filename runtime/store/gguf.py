"""GGUF files: metadata and the table of tensors, read in milliseconds (a strict reader of format versions 2 and 3).

magic "GGUF" | version u32 | tensors u64 | fields u64 | fields ... | tensor infos ... | padding | tensor data
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramet.runtime.protocol.errors import InvalidModel, ModelNotFound

Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | list[Scalar]

# kind: (number in the file, elements of a block, bytes of a block)
KINDS: dict[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "BF16": (30, 1, 2),
}
_KIND_OF_NUMBER = {number: kind for kind, (number, _, _) in KINDS.items()}

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class TensorInfo:
    """``shape``: slowest dimension first. ``offset``, ``size``: bytes in the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    path: Path
    fields: dict[str, Value]
    tensors: dict[str, TensorInfo]

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(key, default)
        if not isinstance(value, int):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be a whole number, but is {value!r}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.fields.get(key, default)
        if not isinstance(value, int | float):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be a number, but is {value!r}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be text, but is {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be an array, but is {value!r}")
        return [str(item) for item in value]

    def integers(self, key: str) -> list[int]:
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be an array, but is {value!r}")
        return [int(item) for item in value]

    def numbers(self, key: str) -> list[float]:
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise InvalidModel(f"{self.path}: the GGUF field {key!r} should be an array, but is {value!r}")
        return [float(item) for item in value]


_MAX_DEPTH = 8
"""Of arrays in arrays; models have none."""


class _Cursor:
    """Reads forward through the bytes; an overrun raises struct.error or IndexError, which ``read_gguf`` translates."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, form: str) -> int | float | bool:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        result: int | float | bool = value
        return result

    def count(self, form: str) -> int:
        return int(self.scalar(form))

    def raw_string(self) -> bytes:
        length = self.count("<Q")
        end = self.at + length
        if end > len(self.data):
            raise IndexError("string runs past the end")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def string(self) -> str:
        return self.raw_string().decode("utf-8", errors="replace")

    def value(self, kind: int, arrays: bool, depth: int = 0) -> Value:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        element, length = self.count("<I"), self.count("<Q")
        if length > len(self.data) - self.at:
            raise IndexError("array runs past the end")
        if element == _STRING:
            strings = [self.raw_string() for _ in range(length)]
            return [raw.decode("utf-8", errors="replace") for raw in strings] if arrays else []
        if element == _ARRAY:
            if depth == _MAX_DEPTH:
                raise IndexError(f"arrays are nested deeper than {_MAX_DEPTH}")
            for _ in range(length):
                self.value(_ARRAY, arrays, depth + 1)
            return []
        form = f"<{length}{_SCALARS[element][1]}"
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return list(values)


def read_gguf(path: Path, *, arrays: bool = True) -> GgufFile:
    """Fields and tensor table of ``path``. ``arrays`` False leaves arrays of strings empty, which saves the decoding.

    Raises ModelNotFound if there is no such file, InvalidModel if it is not a whole GGUF file of a known version.
    """
    if not path.is_file():
        raise ModelNotFound(f"{path} does not exist. Give the path of a .gguf file, or a model name (`ramet pull`).")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InvalidModel(f"{path} is not a GGUF file: it does not begin with the letters GGUF.")
        if path.stat().st_size < 24:
            raise InvalidModel(f"{path} is cut short: it has not even a whole header. Fetch it again.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(path, _Cursor(data), arrays)
            except (struct.error, IndexError, KeyError, OverflowError, MemoryError) as error:
                raise InvalidModel(f"{path} is damaged or cut short ({error}). Fetch it again.") from error


def _read(path: Path, cursor: _Cursor, arrays: bool) -> GgufFile:
    cursor.at = 4
    version = cursor.count("<I")
    if version not in (2, 3):
        raise InvalidModel(f"{path} has GGUF version {version}; versions 2 and 3 (little-endian) can be read.")
    n_tensors, n_fields = cursor.count("<Q"), cursor.count("<Q")
    fields: dict[str, Value] = {}
    for _ in range(n_fields):
        key = cursor.string()
        fields[key] = cursor.value(cursor.count("<I"), arrays)
    raw: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(n_tensors):
        name = cursor.string()
        dimensions = cursor.count("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise IndexError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(cursor.count("<Q") for _ in range(dimensions))
        raw.append((name, tuple(reversed(shape)), cursor.count("<I"), cursor.count("<Q")))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise IndexError(f"alignment {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, shape, number, offset in raw:
        tensors[name] = _tensor(path, name, shape, number, base + offset, len(cursor.data))
    return GgufFile(path, fields, tensors)


def _tensor(path: Path, name: str, shape: tuple[int, ...], number: int, offset: int, length: int) -> TensorInfo:
    kind = _KIND_OF_NUMBER.get(number)
    if kind is None:
        raise InvalidModel(
            f"{path}: tensor {name!r} has GGML type number {number}; supported are {', '.join(KINDS)}. "
            "Quantise the model to one of these."
        )
    _, elements, size = KINDS[kind]
    count = 1
    for extent in shape:
        count *= extent
    if shape and shape[-1] % elements:
        raise IndexError(f"tensor {name!r}: rows of {shape[-1]} are not whole blocks of {elements}")
    total = count // elements * size
    if offset + total > length:
        raise IndexError(f"tensor {name!r} runs past the end")
    return TensorInfo(name, kind, shape, offset, total)
