"""Long texts do not hold the event loop: refused by their size before they are encoded, or encoded on a thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_extraction import Characters, FakeClient, Reply, Turns
from fake_scheduler import ByteTokenizer
from ramet.runtime.frontend.encoding import LONG_TEXT, beside_loop, check_size, longest_token
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.tokenizer import Tokenizer
from test_http_shapes import http, run

from ramet.extraction.extractor import Extractor, Options
from ramet.extraction.prompt import frame, instruction
from ramet.extraction.schema import target
from ramet.extraction.sources import Document

ENDPOINTS: dict[str, Any] = {
    "/v1/completions": lambda text: {"model": "tiny", "prompt": text},
    "/v1/chat/completions": lambda text: {"model": "tiny", "messages": [{"role": "user", "content": text}]},
    "/v1/responses": lambda text: {"model": "tiny", "input": text},
    "/generate": lambda text: {"text": text, "sampling_params": {"max_new_tokens": 1}},
    "/completion": lambda text: {"prompt": text, "n_predict": 1},
    "/": lambda text: {"inputs": text, "parameters": {"max_new_tokens": 1}},
    "/tokenize": lambda text: {"prompt": text},
}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """(characters, on the main thread) of each text that is encoded."""
    seen: list[tuple[int, bool]] = []

    def encode(self: Any, text: str, *, special: bool = False, follows: str = "nothing") -> list[int]:
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return list(text.encode())

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    return seen


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_long_text_is_encoded_on_a_thread(path: str, tmp_path: Path, encoded: list[tuple[int, bool]]) -> None:
    async def body() -> None:
        async with http(tmp_path, context=1_000_000) as world:
            asked = ENDPOINTS[path]("word " * (LONG_TEXT // 5))
            if path.startswith("/v1"):
                asked["max_tokens" if path != "/v1/responses" else "max_output_tokens"] = 16
            reply = await world.web.post(path, json=asked)
            assert reply.status_code == 200, reply.text

    run(body)
    assert [on_loop for size, on_loop in encoded if size >= LONG_TEXT] == [False]


@pytest.mark.parametrize("path", [path for path in ENDPOINTS if path != "/tokenize"])
def test_what_cannot_fit_is_refused_unencoded(path: str, tmp_path: Path, encoded: list[tuple[int, bool]]) -> None:
    async def body() -> None:
        async with http(tmp_path) as world:
            reply = await world.web.post(path, json=ENDPOINTS[path]("x" * 8_000))
            assert reply.status_code == 400 and "512 tokens" in reply.text, reply.text
            if path not in ("/", "/completion"):
                assert reply.json()["error"]["code"] == "context_length_exceeded"

    run(body)
    assert not [size for size, _ in encoded if size >= 8_000]


def test_a_prompt_that_is_cut_anyway_may_be_long(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as world:
            asked = {"model": "tiny", "prompt": "x" * 8_000, "truncate_prompt_tokens": 20, "max_tokens": 1}
            assert (await world.web.post("/v1/completions", json=asked)).status_code == 200

    run(body)


def test_long_ids_are_refused_before_they_become_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "text", lambda *_: pytest.fail("decoded"))

    async def body() -> None:
        async with http(tmp_path) as world:
            reply = await world.web.post("/v1/completions", json={"model": "tiny", "prompt": [7] * 10_000})
            assert reply.status_code == 400 and "512 tokens" in reply.text

    run(body)


def test_the_bound_is_what_tokens_can_stand_for() -> None:
    tokenizer = SimpleNamespace(token_table=[b"a", b"abc"], special_tokens={"<|ü|>": 3})
    assert longest_token(tokenizer) == 6
    check_size("ü" * 15, 5, 6)
    check_size("ü" * 10_000, 0, 6)
    with pytest.raises(InvalidRequest, match="32 bytes"):
        check_size("ü" * 16, 5, 6)


@pytest.mark.parametrize("fit", ["error", "map"])
def test_documents_are_encoded_on_a_thread(fit: str) -> None:
    on_loop: list[bool] = []

    class Watched(Characters):
        def encode(self, text: str, *, special: bool = False, follows: str = "nothing") -> list[int]:
            if len(text) > 5_000:
                on_loop.append(threading.current_thread() is threading.main_thread())
            return super().encode(text, special=special)

    goal = target({"type": "object", "properties": {"n": {"type": "integer"}}})
    around = frame(instruction(goal), Turns(), Characters())
    options = Options(max_tokens=16, fit=fit)  # type: ignore[arg-type]
    client = FakeClient(lambda _: Reply(error=InvalidRequest("seen")))
    extractor = Extractor(client, Watched(), around, goal, 9_000, options)  # type: ignore[arg-type]
    outcome = asyncio.run(extractor.extract(Document("a", "word " * (LONG_TEXT // 5))))
    assert outcome.record.status == ("too_long" if fit == "error" else "error"), outcome.record
    assert bool(client.requests) is (fit == "map")
    assert on_loop and not any(on_loop)


def test_a_text_on_a_thread_keeps_no_other_text_waiting(model_dir: Path) -> None:
    """While one long text is being encoded, a second one is: no lock is held over the library's work."""
    tokenizer = Tokenizer.load(model_dir)
    tokenizer.warm()
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, hf: Any) -> None:
            self._hf = hf

        def encode(self, text: str, **settings: Any) -> Any:
            if text.startswith("slow"):
                inside.set()
                assert go_on.wait(20)
            return self._hf.encode(text, **settings)

    for key, hf in list(tokenizer._built_hf.items()):
        tokenizer._built_hf[key] = Slow(hf)  # type: ignore[assignment]
    for slow in ("slow" * 10_000, "slow words " * 10_000):
        inside.clear()
        go_on.clear()
        long = threading.Thread(target=tokenizer.encode, args=(slow,))
        long.start()
        assert inside.wait(20)
        quick = threading.Thread(target=tokenizer.encode, args=("quick",))
        quick.start()
        quick.join(10)
        waited = quick.is_alive()
        go_on.set()
        long.join(20)
        assert not waited


def test_errors_of_a_thread_are_the_caller_s() -> None:
    def fail() -> int:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        asyncio.run(beside_loop(LONG_TEXT, fail))
