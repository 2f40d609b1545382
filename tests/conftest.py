"""Fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from live import Live

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Folder of the default model in the model store (downloaded once)."""
    from ramet.runtime import store

    return store.resolve("default", progress=False).path


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Public cases that stand beside the checkout, where they are."""
    folder = ROOT.parent / "shared" / "cases"
    if not folder.is_dir():
        pytest.skip("no shared cases beside this checkout")
    return folder


@pytest.fixture(scope="session")
def live(model_dir: Path) -> Iterator[Live]:
    """One server on the real model for the whole suite. Tests leave it idle, and count differences only."""
    from live import live_server

    with live_server(model_dir) as server:
        yield server
