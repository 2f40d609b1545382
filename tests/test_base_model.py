"""A base model, which has no chat template: completions work everywhere, and what needs roles says why it can't."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from folders import write_folder
from live import Live, live_server
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.store import ModelFolder

import ramet as rt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    folder = tmp_path_factory.mktemp("base")
    write_folder(folder / "tiny", template=None)
    return store.resolve(str(folder / "tiny"), cache=folder / "cache", progress=False)


@pytest.fixture(scope="module")
def engine(base: ModelFolder) -> Iterator[rt.Engine]:
    with rt.Engine(base, kv_tokens=1024, threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def server(base: ModelFolder) -> Iterator[Live]:
    with live_server(base.path, context=128, kv_tokens=1024) as started:
        yield started


@rt.function
def plain(s, topic):  # type: ignore[no-untyped-def]
    s += topic + rt.gen("tail", max_tokens=4, regex="[a-z]{2,4}")
    s += " so " + rt.select("pick", ["the", "than"])
    return s["tail"], s["pick"]


@rt.function
def roles(s, topic):  # type: ignore[no-untyped-def]
    s += rt.user(topic)
    s += rt.assistant(rt.gen("tail", max_tokens=4))


def check_programs(backend: object) -> None:
    tail, pick = plain.run("in the ", backend=backend).result()
    assert 2 <= len(tail) <= 4 and pick in ("the", "than")
    state = roles.run("in the ", backend=backend)
    assert "no chat template" in str(state.error())
    with pytest.raises(rt.RametError, match="no chat template"):
        state["tail"]
    tail, pick = plain.run("in the ", backend=backend).result()
    assert pick in ("the", "than")


def test_programs_of_an_engine(engine: rt.Engine) -> None:
    check_programs(engine)
    assert engine.generate("in the", {"max_new_tokens": 3, "temperature": 0})["meta_info"]["completion_tokens"] <= 3


def test_programs_of_a_server(server: Live) -> None:
    check_programs(rt.RuntimeEndpoint(server.url))


def test_the_http_api(server: Live) -> None:
    assert server.complete("in the", max_tokens=4)["usage"]["completion_tokens"] <= 4
    assert server.post("/generate", text="in the", sampling_params={"max_new_tokens": 2})["text"] is not None
    error = server.chat("in the", status=400)["error"]
    assert error["code"] == "no_chat_template" and "completions" in error["message"]
    assert server.post("/tokenize", 400, messages=[{"role": "user", "content": "a"}])["error"]["message"]
    server.check_blocks()


def test_extraction_says_why_it_needs_one(engine: rt.Engine) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        rt.extract({"type": "object"}, ["the"], engine=engine).run()
