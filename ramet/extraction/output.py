"""The output file of a job: one line per input, in the inputs' order, so that an interrupted job can go on.

Beside ``out.jsonl`` stands ``out.jsonl.job``, which says what the lines were made with. A job goes on only where that
is still the same; a line that was cut in the middle by a crash is dropped and made again.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ramet.extraction.records import Status, Totals
from ramet.extraction.sources import Document
from ramet.runtime.protocol.errors import InvalidRequest

_SYNC_SECONDS = 1.0


class JobHeader(Struct, frozen=True):
    """What decides every line. Two jobs with equal headers and equal inputs write equal bytes."""

    model: str
    schema: str
    prompt: str
    examples: str
    options: str

    def differences(self, other: JobHeader) -> list[str]:
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


_NAMES = {"model": "another model", "schema": "another schema", "prompt": "another prompt"}
_NAMES |= {"examples": "other examples", "options": "other options"}


class Written(Struct, frozen=True):
    """What is read back of a line."""

    id: str | int
    status: Status


class Output:
    """Append-only; ``write`` hands a whole line to the system at once and has it on disk within about a second."""

    def __init__(self, path: Path, header: JobHeader, *, overwrite: bool = False) -> None:
        self.path = path
        self._header_path = _header_path(path)
        self._file: BinaryIO = _opened_alone(path)
        try:
            if overwrite:
                self._file.truncate(0)
            self._check(header)
            self._mend()
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()

    def _check(self, header: JobHeader) -> None:
        try:
            holds_records = self.path.stat().st_size > 0
        except FileNotFoundError:
            holds_records = False
        if holds_records:
            compare(self.path, header)
            return
        try:
            temporary = self._header_path.with_name(self._header_path.name + ".new")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(header)) + b"\n")
            os.replace(temporary, self._header_path)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be written: {error.strerror}", param="output") from error

    def _mend(self) -> None:
        """Drop what follows the last whole line."""
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                if (found := file.read(end - start).rfind(b"\n")) >= 0:
                    end = start + found + 1
                    break
                end = start
            file.truncate(end)

    def written(self) -> Iterator[Written]:
        """The lines that an earlier run left, in order. Raises InvalidRequest for one that is no record."""
        return (line for line, _ in lines_of(self.path))

    def write(self, line: bytes) -> None:
        self._file.write(line)
        now = time.monotonic()
        if now - self._synced > _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = now

    def close(self) -> None:
        """Idempotent."""
        if self._file.closed:
            return
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened_alone(path: Path) -> BinaryIO:
    """Raises InvalidRequest while another job writes to the file. The system ends a dead job's lock."""
    try:
        file: BinaryIO = path.open("ab", buffering=0)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}", param="output") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InvalidRequest(
            f"another job is writing to {path}: wait for its end, or give another --output", param="output"
        ) from None
    return file


def refuse_inputs(output: Path, *inputs: str | Path) -> None:
    """Raises InvalidRequest where ``output`` is one of the files that the job reads: they would be lost."""
    for path in inputs:
        if output.is_file() and Path(path).is_file() and output.samefile(path):
            raise InvalidRequest(f"{output} is read by this job: give another --output", param="output")


def _header_path(output: Path) -> Path:
    return output.with_name(output.name + ".job")


def compare(path: Path, header: JobHeader, *, ignore: str = "") -> None:
    """Raises InvalidRequest, naming what has changed, unless the lines of ``path`` were made with ``header``."""
    try:
        earlier = msgspec.json.decode(_header_path(path).read_bytes(), type=JobHeader)
    except (OSError, msgspec.DecodeError):
        raise InvalidRequest(
            f"{path} exists and is not the output of a job that could go on: give another --output, or --overwrite",
            param="output",
        ) from None
    if changed := [_NAMES[name] for name in earlier.differences(header) if name != ignore]:
        raise InvalidRequest(
            f"{path} was begun with {' and '.join(changed)}: its lines would not belong together; give another "
            "--output, or --overwrite to begin anew",
            param="output",
        )


def lines_of(path: Path) -> Iterator[tuple[Written, bytes]]:
    """The whole lines of an output. Raises InvalidRequest for one that is no record."""
    decoder = msgspec.json.Decoder(Written)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line), line
            except msgspec.DecodeError as error:
                raise InvalidRequest(
                    f"{path}, line {number} is not a record ({error}): give another --output, or --overwrite",
                    param="output",
                ) from error


def skip_written(documents: Iterator[Document], output: Output, totals: Totals) -> int:
    """Step over the documents whose lines are there already, and count these lines.

    Raises InvalidRequest if the inputs are not those that the file was begun with.
    """
    skipped = 0
    for line in output.written():
        check_same(output.path, next(documents, None), line, skipped)
        totals.count(line.status)
        skipped += 1
    return skipped


def check_same(path: Path, document: Document | None, line: Written, number: int) -> None:
    """Raises InvalidRequest unless line ``number`` (from 0) of ``path`` is the record of ``document``."""
    if document is None:
        raise InvalidRequest(
            f"{path} holds more records than there are inputs: give another --output, or --overwrite", param="output"
        )
    if document.id != line.id:
        raise InvalidRequest(
            f"{path}, record {number + 1} is of input {line.id!r}, but that input is now {document.id!r}: the inputs "
            "have changed; give another --output, or --overwrite",
            param="output",
        )


def with_earlier(documents: Iterator[Document], path: Path) -> Iterator[tuple[Document, bytes | None]]:
    """Each document with its line of ``path`` where that is ok, to be kept as it is; without, it is to be made."""
    for number, (line, raw) in enumerate(lines_of(path)):
        document = next(documents, None)
        check_same(path, document, line, number)
        assert document is not None
        yield document, raw if line.status == "ok" else None
    for document in documents:
        yield document, None


def replace(path: Path, by: Path) -> None:
    """Put one output in the place of another, with its header."""
    os.replace(_header_path(by), _header_path(path))
    os.replace(by, path)
