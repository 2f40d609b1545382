"""The examples run as they stand (here on the scripted backend), and share what they say they share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from dsl_waiting import idle
from ramet.frontend_lang.fake import FakeBackend

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend(default_system="Default.")
    yield backend
    backend.close()


def test_agents_share_the_system_prompt(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("agents_shared_prompt")
    state = module.team.run("a walk", backend=fake)
    module.show(state)
    assert "five calls" in capsys.readouterr().out
    assert len(state["part"]) == 3 and state["ready"] in ("Yes", "No")
    assert all(module.RULES in request.text for request in fake.requests) and len(fake.requests) == 5
    assert idle(fake)


def test_the_tree_of_thought_has_all_its_branches(fake: FakeBackend) -> None:
    module = example("tree_of_thought")
    state = module.solve.run("1 + 1?", backend=fake)
    assert isinstance(state.result(), str)
    assert len(fake.requests) == sum(module.BREADTH**level for level in (1, 2, 3))
    assert idle(fake)


def test_both_orders_of_a_prompt_say_the_same(fake: FakeBackend) -> None:
    module = example("prompt_order")
    for persona_first in (True, False):
        module.debate.run(persona_first=persona_first, backend=fake).sync()
    texts = [request.text for request in fake.requests]
    assert len(texts) == 2 * module.TURNS
    assert all(module.RULES in text for text in texts) and texts[0].startswith("You are Ada")
