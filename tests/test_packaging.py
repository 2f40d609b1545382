"""The top-level folders arrive as sub-packages of ``ramet``, and disturb nothing that is installed beside them."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import textwrap
import time
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"ramet": "ramet", "radix": "ramet.radix", "kernels": "ramet.kernels"} | {
    "runtime": "ramet.runtime",
    "frontend_lang": "ramet.frontend_lang",
}


def module_names() -> list[str]:
    names = []
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            if parts[-1] == "__main__":
                continue
            names.append(".".join((package, *(p for p in parts if p != "__init__"))))
    return names


def new_environment(folder: Path) -> Path:
    """An environment that sees this one's libraries (through a .pth) but has its own ``ramet``."""
    venv.create(folder, with_pip=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


IMPORT_ALL = textwrap.dedent(
    """
    import importlib, pathlib, sys
    import ramet
    assert pathlib.Path(ramet.__file__).is_relative_to(sys.argv[1]), ramet.__file__
    for name in sys.argv[2:]:
        importlib.import_module(name)
    import kernels
    assert kernels.MINE == 1, "a distribution named kernels was overwritten"
    """
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_and_editable_install_map_the_folders(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "kernels").mkdir(parents=True)
    (other / "kernels" / "__init__.py").write_text("MINE = 1\n")
    (other / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "kernels"\nversion = "9"\n[tool.setuptools]\npackages = ["kernels"]\n'
    )
    for flags in ([], ["-e"]):
        folder = tmp_path / ("editable" if flags else "wheel")
        python = new_environment(folder)
        for what in ([str(other)], [*flags, str(ROOT)]):
            subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *what], check=True, timeout=600)
        home = ROOT if flags else folder
        subprocess.run([python, "-c", IMPORT_ALL, str(home), *module_names()], check=True, timeout=120, cwd=tmp_path)


def test_import_is_quick_and_light() -> None:
    code = "import sys, ramet; print(*[m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    times = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        assert done.stdout.strip() == ""
    bare = min(_time_of("pass") for _ in range(3))
    assert min(times) - bare < 0.3


def _time_of(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


@pytest.mark.parametrize("minor", [10, 11])
def test_syntax_of_the_oldest_python(minor: int) -> None:
    for folder in (*FOLDERS, "examples", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            ast.parse(file.read_text(), feature_version=(3, minor))
