"""Packed weights kept in a file: packed once for a model and a lane, from then on mapped.

    magic | checksum of the weights u64 | length of the table u32 | its CRC u32 | table (msgpack) | zeros | weights

A file that is of another model, layout or lane, cut short or damaged is taken for none, and written anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from ramet.kernels import _cpu
from ramet.kernels.ops import QuantTensor

log = logging.getLogger(__name__)

_HEAD = struct.Struct("<16sQII")
_MAGIC = b"ramet weights\n\0\0"
_LARGE_PAGE = 2 << 20
_WRITE = 4 * _LARGE_PAGE  # at a time: the system then keeps the file in large pages, if it can
_LINE = 64


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """``offset``: bytes from the first weight."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Table(msgspec.Struct, frozen=True, array_like=True):
    """``key``: of the model's own weights; ``size``: bytes from the first weight to the end of the file."""

    key: str
    layout: str
    size: int
    entries: dict[str, _Entry]


def layout_of(engine: _cpu.Engine) -> str:
    return f"{engine.lane}-{_cpu.LAYOUT}"


def kept_path(folder: Path, engine: _cpu.Engine) -> Path:
    return folder / f"packed-{layout_of(engine)}"


@dataclass(frozen=True)
class KeptWeights:
    """What a file holds."""

    data: NDArray[np.uint8]
    entries: dict[str, _Entry]

    def find(self, tensor: QuantTensor) -> NDArray[np.uint8] | None:
        entry = self.entries.get(tensor.name)
        if entry is None or (entry.kind, entry.shape) != (tensor.kind, tensor.shape):
            return None
        return self.data[entry.offset : entry.offset + entry.size]


def open_kept(engine: _cpu.Engine, path: Path, key: str) -> KeptWeights | None:
    """None where there is no such file, or it isn't whole, or is another model's."""
    try:
        file = _cpu.map_file(str(path))
    except RuntimeError:
        return None
    if len(file) < _HEAD.size:
        return None
    magic, checksum, length, crc = _HEAD.unpack(file[: _HEAD.size].tobytes())
    text = file[_HEAD.size : _HEAD.size + length].tobytes()
    if magic != _MAGIC or zlib.crc32(text) != crc:
        return None
    try:
        table = msgspec.msgpack.decode(text, type=_Table)
    except msgspec.MsgspecError:
        return None
    data = file[_start(length) :]
    if table.key != key or table.layout != layout_of(engine) or len(data) != table.size:
        return None
    if engine.checksum(data) != checksum:
        log.warning("%s is damaged: the weights are packed anew", path)
        return None
    return KeptWeights(_in_large_pages(data), table.entries)


@dataclass
class WeightWriter:
    """Gathers packed weights and writes them to one file."""

    path: Path
    key: str
    packed: list[tuple[QuantTensor, NDArray[np.uint8]]] = field(default_factory=list)

    def add(self, tensor: QuantTensor, packed: NDArray[np.uint8]) -> None:
        self.packed.append((tensor, packed))

    def write(self, engine: _cpu.Engine) -> None:
        """The file appears whole, and those of older layouts of the lane go. Where it can't be written, it is left."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            for leftover in self.path.parent.glob(f".{self.path.name}.*"):  # of a process that was killed
                leftover.unlink(missing_ok=True)
            self._fill(engine, temporary)
            for other in self.path.parent.glob(f"packed-{engine.lane}-*"):
                other.unlink(missing_ok=True)
            os.replace(temporary, self.path)
        except OSError as error:
            log.info("packed weights are not kept: %s", error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _fill(self, engine: _cpu.Engine, path: Path) -> None:
        entries: dict[str, _Entry] = {}
        at = 0
        for tensor, packed in self.packed:
            entries[tensor.name] = _Entry(tensor.kind, tensor.shape, at, len(packed))
            at = _up(at + len(packed), _LINE)
        text = msgspec.msgpack.encode(_Table(self.key, layout_of(engine), at, entries))
        start = _start(len(text))
        with path.open("wb", buffering=0) as file:
            file.seek(start)
            for piece in self._pieces():
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]
            checksum = engine.checksum(_cpu.map_file(str(path))[start:])
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, checksum, len(text), zlib.crc32(text)) + text)

    def _pieces(self) -> Iterator[bytearray]:
        gathered = bytearray()
        for _, packed in self.packed:
            gathered += packed.data
            gathered += bytes(-len(packed) % _LINE)
            while len(gathered) >= _WRITE:
                yield gathered[:_WRITE]
                del gathered[:_WRITE]
        yield gathered


def _start(length: int) -> int:
    """Of the weights, behind a table of that length."""
    return _up(_HEAD.size + length, _LARGE_PAGE)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _in_large_pages(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``data`` as it is mapped where the system maps it in large pages; a copy where only memory of our own can have
    them. To read small pages costs decoding a tenth of its speed."""
    first = data.ctypes.data
    try:
        may_copy = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        with open("/proc/self/smaps") as lines:
            inside = False
            for line in lines:
                if inside and line.startswith("FilePmdMapped:"):
                    may_copy = may_copy and int(line.split()[1]) * 1024 < len(data) // 2
                    break
                if line[0] in "0123456789abcdef":
                    low, _, high = line.split(" ", 1)[0].partition("-")
                    inside = int(low, 16) <= first < int(high, 16)
    except (OSError, ValueError, IndexError):
        return data
    if not may_copy:
        return data
    copy = _cpu.allocate(len(data))
    np.copyto(copy, data)
    return copy
