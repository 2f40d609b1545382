"""``ramet run``: a program over many arguments, one record each."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from ramet.frontend_lang import Function, State, function, gen
from ramet.frontend_lang.fake import FakeBackend
from ramet.runtime.protocol.errors import InvalidRequest

from ramet.cli import main
from ramet.cli.run import load_program, read_arguments, run_lines


class Reply(BaseModel):
    text: str


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    fake = FakeBackend(lambda prompt, call: f" {len(prompt)}")
    yield fake
    fake.close()


@function
def answer(s: State[None], question: str) -> None:
    s += question
    s += gen("answer", max_tokens=8)


@function
def returned(s: State[Reply], question: str) -> Reply:
    s += question + gen("answer", max_tokens=8)
    if question == "raise":
        raise ValueError("no such question")
    return Reply(text=s["answer"])


@function
def forked(s: State[str], question: str) -> str:
    s += question
    branches = s.fork(3)
    branches += gen("part", max_tokens=8)
    return " ".join(branch["part"] for branch in branches)


def records(program: Function[object], backend: FakeBackend, *questions: object) -> list[dict[str, object]]:
    out = io.BytesIO()
    totals = run_lines(program, [(at, {"question": text}) for at, text in enumerate(questions)], out, backend)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert totals.records == len(lines) == len(questions)
    assert totals.valid == sum(line["status"] == "ok" for line in lines)
    assert totals.sampled + totals.forced == sum(line["usage"]["completion_tokens"] for line in lines)
    return lines


def test_records_come_in_the_order_of_the_lines(backend: FakeBackend) -> None:
    lines = records(answer, backend, *("x" * length for length in range(1, 51)))
    assert [line["id"] for line in lines] == list(range(50))
    assert [line["value"] for line in lines] == [{"answer": f" {length}"} for length in range(1, 51)]


def test_a_failing_call_does_not_harm_the_rest(backend: FakeBackend) -> None:
    first, second, third = records(returned, backend, "a", "raise", "b")
    assert first["value"] == third["value"] == {"text": " 1"}
    assert second["status"] == "error" and "no such question" in str(second["error"])


def test_an_error_of_the_programs_own_code_has_its_type_and_line(backend: FakeBackend) -> None:
    [line] = records(returned, backend, "raise")
    assert re.fullmatch(r"\w+: .*no such question.*\(.*test_cli_run\.py:\d+\)", str(line["error"]))


def test_forks_count(backend: FakeBackend) -> None:
    [line] = records(forked, backend, "abc")
    assert line["value"] == " 3  3  3"
    assert line["usage"]["completion_tokens"] == 3 * len(" 3")  # type: ignore[index]


def test_wrong_arguments_are_that_lines_error(backend: FakeBackend) -> None:
    out = io.BytesIO()
    totals = run_lines(answer, [(0, {"qestion": "x"}), (1, {"question": "x"})], out, backend)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["status"] == "error" and "question" in first["error"]
    assert second["status"] == "ok" and totals.valid == 1


def test_ids_are_the_lines_own(tmp_path: Path) -> None:
    path = tmp_path / "args.jsonl"
    path.write_text('{"id": "a", "q": 1}\n\n{"q": 2}\n')
    assert list(read_arguments(path, ["q"])) == [("a", {"q": 1}), (1, {"q": 2})]
    assert list(read_arguments(path, ["q", "id"])) == [(0, {"id": "a", "q": 1}), (1, {"q": 2})]


@pytest.mark.parametrize("line", ["[1]", "{", "3"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "args.jsonl"
    path.write_text(line + '\n{"q": 1}')
    with pytest.raises(InvalidRequest, match="line 1"):
        list(read_arguments(path, ["q"]))


@pytest.mark.parametrize("line", ["[1]", "{", "\xff", "[" * 100_000])
def test_a_later_line_that_is_no_object_is_its_own_records_error(
    tmp_path: Path, line: str, backend: FakeBackend
) -> None:
    path = tmp_path / "args.jsonl"
    good = b'{"question": "x"}\n'
    broken = line.encode("latin-1") + b"\n"
    path.write_bytes(good + broken + broken + good + broken)
    out = io.BytesIO()
    totals = run_lines(answer, read_arguments(path, answer.arg_names), out, backend)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["id"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["status"] for line in lines] == ["ok", "error", "error", "ok", "error"]
    assert "line 2" in lines[1]["error"] and totals.valid == 2


@pytest.mark.parametrize("output", ["args.jsonl", "program.py", "linked.jsonl"])
def test_a_file_that_is_read_is_never_the_output(tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("args.jsonl").write_text('{"q": 1}\n')
    Path("linked.jsonl").symlink_to("args.jsonl")
    Path("program.py").write_text("import ramet\n@ramet.function\ndef hello(s, q):\n    s += q\n")
    before = Path(output).read_bytes()
    words = ["run", "program.py:hello", "--input", "args.jsonl", "--output", output, "--overwrite"]
    assert main(words) == 1
    assert Path(output).read_bytes() == before


def test_programs_are_named_by_file_and_function(tmp_path: Path) -> None:
    path = tmp_path / "named_program.py"
    path.write_text("import ramet\n@ramet.function\ndef hello(s, q):\n    s += q\n")
    assert load_program(f"{path}:hello").name == "hello"
    for wrong in (f"{path}:goodbye", str(path), f"{tmp_path}/absent.py:hello"):
        with pytest.raises(InvalidRequest, match=r"hello|file\.py:function|is not there"):
            load_program(wrong)


@pytest.mark.parametrize(
    ("given", "code", "said"), [("3", 3, "exit code 3"), ("'no'", 1, "no"), ("", 0, ""), ("0", 0, "")]
)
def test_a_program_that_exits_ends_the_job_with_its_code(
    given: str,
    code: int,
    said: str,
    backend: FakeBackend,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, lines = tmp_path / "leaves.py", tmp_path / "in.jsonl"
    program.write_text(
        "import sys\nimport ramet as rt\n\n@rt.function\ndef f(s, question):\n    s += question\n"
        f"    if question == 'go':\n        sys.exit({given})\n    return 'stayed'\n"
    )
    lines.write_text('{"question": "stay"}\n{"question": "go"}\n')
    monkeypatch.setattr("ramet.cli.run._engine", lambda options: contextlib.nullcontext(backend))
    output = tmp_path / "out.jsonl"
    command = ["run", f"{program}:f", "--input", str(lines), "--output", str(output), "--parallel", "1"]
    assert main(command) == code
    error = capsys.readouterr().err
    assert (f"{program}:8" in error) == bool(code) and said in error
    assert [json.loads(line)["value"] for line in output.read_text().splitlines()] == ["stayed"]


def test_a_file_that_exits_when_it_is_imported_is_named(tmp_path: Path) -> None:
    program = tmp_path / "exits.py"
    program.write_text("import sys\nsys.exit(4)\n")
    with pytest.raises(InvalidRequest, match=r"exits.py fails when it is imported: SystemExit: 4"):
        load_program(f"{program}:f")
