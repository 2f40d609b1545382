"""Weights as files store them: every kind dequantised as GGML defines it, damaged files refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from folders import write_folder, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from op_sets import KINDS
from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import QuantTensor
from ramet.kernels.reference import ReferenceOps
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel, ModelNotFound
from ramet.runtime.worker.models import load_model
from ramet.runtime.worker.weights import open_weights


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("kind", KINDS)
def test_dequantised_as_ggml_does(kind: str, rows: int, blocks: int, seed: int) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantise(QuantTensor(kind, (rows, blocks * elements), data.reshape(-1)))
        if kind == "F16":
            theirs = data.view(np.float16).astype(np.float32)
        elif kind == "F32":
            theirs = data.view(np.float32)
        else:
            theirs = gguf.quants.dequantize(data, quant)
    assert ours.dtype == np.float32 and np.array_equal(ours, theirs.reshape(ours.shape), equal_nan=True)


@pytest.mark.slow  # the library takes seconds to read the arrays
def test_the_default_models_tensors_equal_those_of_the_gguf_library(model_dir: Path) -> None:
    folder = store.open(model_dir)
    weights = open_weights(folder)
    reader = gguf.GGUFReader(str(folder.weights[0]))
    assert {tensor.name for tensor in reader.tensors} == set(weights.tensors) and weights.permuted
    for tensor in reader.tensors[:6]:
        ours = dequantise(weights.tensors[tensor.name])
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(ours, np.asarray(theirs).reshape(ours.shape))


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    folder = store.resolve(str(tmp_path / "tiny.gguf"), cache=tmp_path / "cache")
    weights = open_weights(folder)
    with pytest.raises(InvalidModel, match=r"blk\.9\.attn_q\.weight"):
        weights.get("blk.9.attn_q.weight", (32, 32))
    with pytest.raises(InvalidModel, match=r"\(32, 32\), expected \(8, 32\)"):
        weights.get("blk.0.attn_q.weight", (8, 32))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(InvalidModel, match="mamba"):
        store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")


def test_weights_in_several_files(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    write_folder(tmp_path / "one")
    one = store.resolve(str(tmp_path / "one"), cache=tmp_path / "cache")
    many = tmp_path / "many"
    shutil.copytree(tmp_path / "one", many)
    tensors = load_file(str(many / "model.safetensors"))
    (many / "model.safetensors").unlink()
    (many / "stray.safetensors").write_bytes(b"not in the index")
    names = sorted(tensors)
    files = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, str(many / file))
    (many / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    folder = store.resolve(str(many), cache=tmp_path / "cache")
    assert [path.name for path in folder.weights] == ["part-0.safetensors", "part-1.safetensors"]
    ours, theirs = open_weights(folder).tensors, open_weights(one).tensors
    assert set(ours) == set(theirs)
    assert all(np.array_equal(ours[name].data, theirs[name].data) for name in ours)
    (many / "part-1.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"part-1\.safetensors"):
        store.resolve(str(many), cache=tmp_path / "cache")


@pytest.mark.parametrize("harm", ["cut", "header", "dtype"])
def test_damaged_safetensors_are_refused(tmp_path: Path, harm: str) -> None:
    write_folder(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    data = path.read_bytes()
    harmed = {
        "cut": data[:-40],
        "header": (1 << 40).to_bytes(8, "little") + data[8:],
        "dtype": data.replace(b'"F32"', b'"I32"', 1),
    }[harm]
    path.write_bytes(harmed)
    folder = store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")
    with pytest.raises(InvalidModel, match=r"model\.safetensors"):
        load_model(folder, ReferenceOps())
