"""Fixtures of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest

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
