"""Packed weights are kept in a file that is used only if every byte of it is right, and never changes a result."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from folders import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.kernels.select import has_cpu_kernels
from ramet.runtime import store
from ramet.runtime.store import ModelFolder

if not has_cpu_kernels():
    pytest.skip("the C++ kernels were not built", allow_module_level=True)

from ramet.kernels import _cpu
from ramet.kernels.cpu import CpuOps, kept
from ramet.kernels.cpu.opset import lanes
from ramet.kernels.ops import QuantTensor
from ramet.runtime.worker.models import load_model

TENSORS = [
    QuantTensor("F32", (24, 40), np.arange(24 * 40, dtype=np.float32).view(np.uint8), "a"),
    QuantTensor("BF16", (33, 16), np.arange(33 * 16, dtype=np.uint16).view(np.uint8), "b"),
    QuantTensor("F32", (7,), np.ones(7, np.float32).view(np.uint8), "c"),
]


def packed(folder: Path, key: str = "key", isa: str = "auto") -> list[bytes]:
    """What a new op set reads, by way of the folder."""
    ops = CpuOps(isa, threads=1)
    rows: list[bytes] = []
    with ops.keeping(folder, key):
        for tensor in TENSORS:
            weight = ops.weight(tensor)
            out = np.empty(weight.shape[1], np.float32)
            for row in range(weight.shape[0]):
                weight.native.row(row, out)
                rows.append(out.tobytes())
    return rows


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("packed-*")
    return path


def is_used(folder: Path, key: str = "key") -> bool:
    engine = CpuOps(threads=1)._engine
    return kept.open_kept(engine, kept.kept_path(folder, engine), key) is not None


def test_the_second_load_packs_nothing_and_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = packed(tmp_path)
    assert is_used(tmp_path)
    monkeypatch.setattr(kept.WeightWriter, "write", lambda *_: pytest.fail("written again"))
    monkeypatch.setattr("ramet.kernels.cpu.opset.pack", lambda *_: pytest.fail("packed again"))
    assert packed(tmp_path) == first


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_is_found_and_mended(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("kept")
    whole = packed(folder)
    path = file_of(folder)
    size = path.stat().st_size
    used = path.read_bytes()[: 2 << 20].rstrip(b"\0")
    places = st.integers(0, len(used) - 1) | st.integers(2 << 20, size - 1)  # the head and its table; the weights
    cut = data.draw(st.booleans())
    at = data.draw(places)
    if cut:
        os.truncate(path, at)
    else:
        with path.open("r+b") as file:
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ data.draw(st.integers(1, 255))]))
    assert not is_used(folder)
    assert packed(folder) == whole and is_used(folder)


def test_a_file_is_of_one_model_and_one_lane(tmp_path: Path) -> None:
    packed(tmp_path, "one")
    assert not is_used(tmp_path, "other")
    for isa in lanes():
        packed(tmp_path, "one", isa)
    assert {path.name for path in tmp_path.glob("packed-*")} == {f"packed-{isa}-{_cpu.LAYOUT}" for isa in lanes()}


def test_older_layouts_and_unfinished_files_go(tmp_path: Path) -> None:
    old = tmp_path / f"packed-{lanes()[0]}-0"
    old.write_bytes(b"old")
    unfinished = tmp_path / f".packed-{lanes()[0]}-{_cpu.LAYOUT}.123"
    unfinished.write_bytes(b"half")
    packed(tmp_path)
    assert not old.exists() and not unfinished.exists()


def test_where_nothing_can_be_kept_the_model_loads_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert packed(tmp_path / "file") == packed(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_nothing_is_kept_of_a_load_that_failed(tmp_path: Path) -> None:
    ops = CpuOps(threads=1)
    with pytest.raises(ValueError, match="stop"), ops.keeping(tmp_path, "key"):
        ops.weight(TENSORS[0])
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_loaded_from_its_kept_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    folder: ModelFolder = store.resolve(str(tmp_path / "tiny.gguf"), cache=tmp_path / "cache")
    load_model(folder, CpuOps(threads=1))
    monkeypatch.setattr("ramet.kernels.cpu.opset.pack", lambda *_: pytest.fail("packed again"))
    load_model(folder, CpuOps(threads=1))
