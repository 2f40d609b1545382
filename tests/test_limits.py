"""What the borders refuse: by size, depth, number or name, at once and with words."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from ramet.runtime.constrain.kinds import lowered
from ramet.runtime.frontend import choice as choice_module
from ramet.runtime.frontend import holdback
from ramet.runtime.frontend.client import GenerateRequest
from ramet.runtime.frontend.http import server as server_module
from ramet.runtime.frontend.http.merge import together
from ramet.runtime.frontend.http.tool_text import _moved
from ramet.runtime.frontend.http.unknown import ignored
from ramet.runtime.frontend.requests import MAX_STOP_BYTES
from ramet.runtime.frontend.schema_parts import parts
from ramet.runtime.protocol import messages as m
from ramet.runtime.protocol.errors import InvalidConstraint, InvalidModel, InvalidRequest
from ramet.runtime.store import fetch
from ramet.runtime.store.gguf import read_gguf
from test_client import PROMPT, scene
from test_http_shapes import USER, check_error, http, run

from ramet.extraction.closing import closed
from ramet.http_client import HttpClient, Unreachable
from ramet.programs import add_program_routes

POSTS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/generate",
    "/completion",
    "/",
    "/tokenize",
    "/detokenize",
    "/v1/remote/generate",
    "/v1/remote/score",
    "/v1/programs",
    "/v1/programs/run",
]


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("told", [True, False])
def test_a_large_body_is_refused_while_it_comes(
    path: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_BODY", 1000)
    read: list[int] = []

    async def direct() -> None:
        async with http(tmp_path) as world:
            add_program_routes(world.app)
            status: list[int] = []

            async def receive() -> dict[str, Any]:
                read.append(len(read))
                return {"type": "http.request", "body": b"x" * 100, "more_body": len(read) < 1000}

            async def send(message: Any) -> None:
                status.append(message.get("status", 0))

            scope = {
                "type": "http",
                "method": "POST",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "headers": [(b"content-length", b"100000")] if told else [],
                "scheme": "http",
                "server": ("test", 80),
                "client": ("test", 1),
                "http_version": "1.1",
                "root_path": "",
            }
            await world.app(scope, receive, send)
            assert status[0] == 413

    run(direct)
    assert len(read) == (0 if told else 11)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_a_deep_body_is_a_bad_request(path: str, depth: int, tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as world:
            add_program_routes(world.app)
            deep = '{"a":' * depth + "1" + "}" * depth
            text = f'{{"model":"tiny","messages":{deep},"graph":{deep}}}'
            check_error(await world.web.post(path, content=text), 400, code="invalid_json")

    run(body)


@pytest.mark.parametrize("place", ["tools", "response_format", "extra", "template"])
def test_what_is_deep_and_taken_is_answered(place: str, tmp_path: Path) -> None:
    def nested(depth: int) -> Any:
        value: Any = {"type": "object"}
        for _ in range(depth):
            value = {"properties": {"a": value}}
        return value

    async def body() -> None:
        async with http(tmp_path, context=100_000) as world:
            schema = {**nested(110), "type": "object"}
            asked: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 2}
            if place == "tools":
                function = {"name": "f", "parameters": schema}
                asked |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
            elif place == "response_format":
                asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            elif place == "extra":
                asked["messages"] = [{**USER[0], "more": schema, "name": "<|end|>"}]
            else:
                asked["chat_template_kwargs"] = {"more": schema}
            reply = await world.web.post("/v1/chat/completions", json=asked)
            assert reply.status_code == 200, reply.text

    run(body)


# ---------------------------------------------------------------- stops, choices, priorities, names


def test_long_stops_are_refused_and_tables_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    failure = holdback._failure

    def counted(pattern: bytes) -> list[int]:
        built.append(len(pattern))
        return failure(pattern)

    monkeypatch.setattr(holdback, "_failure", counted)
    assert choice_module.Holdback is holdback.Holdback

    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            with pytest.raises(InvalidRequest, match="stop string"):
                client.generate(GenerateRequest(PROMPT, stop=("é" * MAX_STOP_BYTES,)))
            assert built == []
            stops = ("x" * MAX_STOP_BYTES, "\0")
            await client.generate(GenerateRequest(PROMPT, stop=stops, max_tokens=2, n=16)).result()
            assert built == [MAX_STOP_BYTES, 1]

    run(body)


def test_the_first_failure_is_told_at_once() -> None:
    async def body() -> None:
        ended: list[str] = []

        async def never() -> int:
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                ended.append("cancelled")

        async def fails() -> int:
            raise InvalidRequest("no")

        async def gives(value: int) -> int:
            return value

        with pytest.raises(InvalidRequest):
            await together([never(), fails(), fails(), never()])
        await asyncio.sleep(0)
        assert ended == ["cancelled"] * 2
        assert await together([gives(1), gives(2)]) == [1, 2]

    run(body)


def test_a_refused_prompt_refuses_the_request_while_others_run(tmp_path: Path) -> None:
    def reject(submit: m.Submit) -> m.Rejected | None:
        return m.Rejected(submit.id, "queue_full", "full") if submit.id > 3 else None

    async def body() -> None:
        async with http(tmp_path, auto=False, reject=reject) as world:
            for stream in (False, True):
                asked = {"model": "tiny", "prompt": ["a", "b", "c", "d", "e"], "stream": stream}
                check_error(await world.web.post("/v1/completions", json=asked), 429)
            asked = {"model": "tiny", "prompt": ["a"] * 1000, "n": 100}
            assert "100000 texts" in check_error(await world.web.post("/v1/completions", json=asked), 400, "n")

    run(body)


def test_priorities_have_a_range_over_http(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as world:
            add_program_routes(world.app)
            asks = {
                "/v1/completions": {"model": "tiny", "prompt": "a", "priority": 11, "max_tokens": 1},
                "/v1/chat/completions": {"model": "tiny", "messages": USER, "priority": -11, "max_tokens": 1},
                "/generate": {"text": "a", "priority": 11, "sampling_params": {"max_new_tokens": 1}},
                "/v1/remote/generate": {"ids": [1], "priority": 11, "max_tokens": 1},
                "/v1/remote/score": {"ids": [1], "continuations": [[1]], "priority": 11},
            }
            for path, asked in asks.items():
                message = check_error(await world.web.post(path, json=asked), 400, "priority")
                assert "-10 to 10" in message and "--max-priority" in message
                allowed = {**asked, "priority": 10}
                assert (await world.web.post(path, json=allowed)).status_code == 200

    run(body)


def test_a_header_names_some_unknown_fields() -> None:
    names = ignored({f"field{i:03}" + "é" * 1000: 2 for i in range(500)})
    assert len(names) == 33 and names[-1] == "and 468 more"
    assert all(len(name) <= 64 for name in names) and len(", ".join(names)) < 4096
    assert ignored({"b": 2, "a": 3}) == ["a", "b"]


def test_a_score_whose_client_leaves_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with http(tmp_path) as world:
            world.client.score = lambda _: asyncio.sleep(60)
            asked = json.dumps({"ids": [1], "continuations": [[1]]}).encode()
            messages = [{"type": "http.request", "body": asked}, {"type": "http.disconnect"}]
            sent: list[Any] = []

            async def receive() -> Any:
                return messages.pop(0)

            async def send(message: Any) -> None:
                sent.append(message)

            path = "/v1/remote/score"
            scope = {
                "type": "http",
                "method": "POST",
                "path": path,
                "headers": [],
                "query_string": b"",
                "root_path": "",
            }
            await world.app(scope, receive, send)
            assert sent[0]["status"] == 400 and b"client_disconnected" in sent[1]["body"]

    run(body)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# ---------------------------------------------------------------- schemas


NAMES = ("default", "examples", "const", "enum", "if", "not", "then", "else", "allOf", "$ref", "properties", "items")


@pytest.mark.parametrize("name", NAMES)
def test_fields_may_have_the_names_of_keywords(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}
    moved = _moved(schema, "#/$defs/tool0")
    assert moved["properties"][name] == {"$ref": "#/$defs/tool0/$defs/x"}
    assert closed({"type": "object", "properties": {name: {"type": "string"}}})["additionalProperties"] is False


def test_values_are_no_schemas() -> None:
    for keyword in ("const", "default", "enum", "examples"):
        value = [{"$ref": "#/a", "not": {}}]
        assert _moved({keyword: value}, "#/b") == {keyword: value}
        assert list(parts({keyword: value})) == []
        assert "additionalProperties" in closed({"type": "object", "properties": {"a": {keyword: value}}})
    for keyword, value in {"allOf": [{}], "not": {}, "if": {}}.items():
        assert "additionalProperties" not in closed({"type": "object", "properties": {}, keyword: value})


def test_odd_digits_and_unknown_blanks_are_invalid() -> None:
    for step in ("²", "٣", "9" * 5000):
        spec = m.ConstraintSpec("json_schema", json.dumps({"prefixItems": [{}], "$ref": f"#/prefixItems/{step}"}))
        with pytest.raises(InvalidConstraint, match="points to nothing"):
            lowered(spec)
    with pytest.raises(InvalidConstraint, match="zzz"):
        lowered(m.ConstraintSpec("json_schema", "{}", "zzz"))


# ---------------------------------------------------------------- files, registries, servers


def test_nested_arrays_of_a_gguf_file_are_damage(tmp_path: Path) -> None:
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
    with pytest.raises(InvalidModel, match="nested"):
        read_gguf(path)


def test_a_package_s_name_is_no_option_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(fetch.subprocess, "run", fake)
    fetch.pip_download("--index-url=http://x", tmp_path, False)
    assert commands[0][-2:] == ["--", "--index-url=http://x"]


def test_a_server_that_dies_in_its_answer_is_named() -> None:
    rests = [b"", b"7\r\nhal", b"zz\r\n"]

    async def body() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n" + rests.pop())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            while rests:
                with pytest.raises(Unreachable, match="broke"):
                    await HttpClient(f"http://127.0.0.1:{port}").whole("GET", "/")

    run(body)


def test_make_sees_every_source() -> None:
    root = Path(__file__).parents[1]
    sources = next(line for line in (root / "Makefile").read_text().splitlines() if line.startswith("SOURCES"))
    suffixes = {path.suffix for path in (root / "kernels").rglob("*") if path.suffix in (".cpp", ".h", ".hpp", ".py")}
    assert suffixes and all(f"'*{suffix}'" in sources for suffix in suffixes)
