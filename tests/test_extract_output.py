"""The output of a job: one line per input, exactly once, whatever interrupts it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import Usage

from ramet.cli import main
from ramet.extraction.output import JobHeader, Output, skip_written
from ramet.extraction.records import Record, RecordUsage, Totals
from ramet.extraction.sources import Document

HEADER = JobHeader(model="m", schema="s", prompt="p", examples="", options="o")
RECORDS = [Record(f"d{number}", "ok", {"n": number}, usage=RecordUsage(10, 5, 2, 3)) for number in range(20)]
WHOLE = b"".join(record.line() for record in RECORDS)


def go_on(path: Path, header: JobHeader = HEADER, *, ids: list[str] | None = None) -> None:
    """What a job does with this output: step over what is there, write the rest."""
    documents = iter([Document(name, "") for name in ids or [record.id for record in RECORDS]])
    with Output(path, header) as output:
        done = skip_written(documents, output, Totals())
        for document, record in zip(documents, RECORDS[done:], strict=True):
            assert document.id == record.id
            output.write(record.line())


@pytest.mark.parametrize("cut", [0, 1, len(RECORDS[0].line()) - 1, len(RECORDS[0].line()), len(WHOLE) // 2, len(WHOLE)])
def test_a_job_cut_at_any_byte_goes_on_to_the_same_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    go_on(path)
    assert path.read_bytes() == WHOLE
    path.write_bytes(WHOLE[:cut])
    go_on(path)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("field", JobHeader.__struct_fields__)
def test_a_changed_job_is_refused_and_the_change_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "out.jsonl"
    go_on(path)
    changed = JobHeader(
        **{name: "other" if name == field else getattr(HEADER, name) for name in HEADER.__struct_fields__}
    )
    with pytest.raises(InvalidRequest, match=f"other {field}:"):
        go_on(path, changed)
    assert path.read_bytes() == WHOLE


def test_changed_inputs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    go_on(path)
    ids = [str(record.id) for record in RECORDS]
    with pytest.raises(InvalidRequest, match=r"'d3'.*'new'"):
        go_on(path, ids=[*ids[:3], "new", *ids[3:]])
    with pytest.raises(InvalidRequest, match="more records"):
        go_on(path, ids=ids[:5])


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    with pytest.raises(InvalidRequest, match="--overwrite"):
        go_on(path)
    assert path.read_text() == "precious\n"
    Output(path, HEADER, overwrite=True).close()
    assert path.read_text() == ""


@pytest.mark.parametrize("value", ['a "quote"\n', "\ud800", "é漢", 1 << 80, -0.0, [None, True]])
def test_a_line_is_one_line_of_json_with_the_value_kept(value: object) -> None:
    line = Record("x", "ok", {"v": value}).line()
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"]["v"] == value


def test_the_closing_line_has_its_fixed_form() -> None:
    totals = Totals()
    totals.add(RECORDS[0], Usage(prompt=10, cached=4, computed=6, completion=5, forced=2, sampled=3))
    totals.add(Record("bad", "length"), Usage())
    assert totals.closing_line(1.234) == (
        "records=2 valid=1 prompt_tokens=10 cached_tokens=4 computed_tokens=6 forced_tokens=2 sampled_tokens=3 "
        "seconds=1.23"
    )
    assert " names=7 " in totals.closing_line(1.0, names=7)


@pytest.mark.parametrize("output", ["docs.jsonl", "schema.json", "prompt.txt", "linked.jsonl"])
def test_a_file_that_is_read_is_never_the_output(tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs.jsonl").write_text('{"text": "a"}\n')
    Path("linked.jsonl").symlink_to("docs.jsonl")
    Path("schema.json").write_text('{"type": "object"}')
    Path("prompt.txt").write_text("Do it.")
    before = Path(output).read_bytes()
    words = "extract --schema schema.json --input docs.jsonl --prompt @prompt.txt --overwrite --output"
    assert main([*words.split(), output]) == 1
    assert Path(output).read_bytes() == before


def test_the_summary_says_how_records_ended_and_what_took_longest() -> None:
    totals = Totals()
    totals.add(Record(1, "length"), Usage(sampled=10), {"a": 2, "b/*": 7})
    totals.add(Record(2, "ok"), Usage(sampled=10), {"a": 3, "b/*": 5})
    totals.count("ok")
    assert totals.summary() == "3 records: 2 ok, 1 length\nslowest field: b/*, with 60% of the 20 sampled tokens"
    assert Totals().summary() == "0 records: none"


def test_two_jobs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    go_on(path)
    with Output(path, HEADER):
        for overwrite in (False, True):
            with pytest.raises(InvalidRequest, match=r"another job is writing to .*out\.jsonl"):
                Output(path, HEADER, overwrite=overwrite)
        assert path.read_bytes() == WHOLE
    Output(path, HEADER).close()
    with pytest.raises(InvalidRequest, match="begun with"):
        Output(path, msgspec.structs.replace(HEADER, model="n"))
    Output(path, HEADER, overwrite=True).close()
    assert path.read_bytes() == b""
    with pytest.raises(InvalidRequest, match="cannot be written"):
        Output(tmp_path / "none" / "out.jsonl", HEADER)
