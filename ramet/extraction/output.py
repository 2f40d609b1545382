"""The output file of a job: one line per input, in the inputs' order, so that an interrupted job can go on.

Beside ``out.jsonl`` stands ``out.jsonl.job``, which says what the lines were made with. A job goes on only where that
is still the same; a line that was cut in the middle by a crash is dropped and made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ramet.extraction.records import Record, Status, Totals
from ramet.extraction.sources import Document
from ramet.runtime.protocol.errors import InvalidRequest

_SYNC_SECONDS = 1.0


class JobHeader(Struct, frozen=True):
    """What decides every line. Two jobs with equal headers and equal inputs write equal bytes."""

    model: str
    schema: str
    prompt: str
    options: str

    def differences(self, other: JobHeader) -> list[str]:
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Written(Struct, frozen=True):
    """What is read back of a line."""

    id: str | int
    status: Status


class Output:
    """Append-only; ``write`` hands a whole line to the system at once and has it on disk within about a second."""

    def __init__(self, path: Path, header: JobHeader, *, overwrite: bool = False) -> None:
        self.path = path
        self._header_path = path.with_name(path.name + ".job")
        if overwrite:
            path.unlink(missing_ok=True)
        self._check(header)
        self._mend()
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._synced = time.monotonic()

    def _check(self, header: JobHeader) -> None:
        try:
            holds_records = self.path.stat().st_size > 0
        except FileNotFoundError:
            holds_records = False
        if holds_records:
            earlier = self._earlier()
            if earlier is None:
                raise InvalidRequest(
                    f"{self.path} exists and is not the output of a job that could go on: give another --output, or "
                    "--overwrite",
                    param="output",
                )
            if changed := earlier.differences(header):
                raise InvalidRequest(
                    f"{self.path} was begun with another {' and another '.join(changed)}: its lines would not belong "
                    "together; give another --output, or --overwrite to begin anew",
                    param="output",
                )
            return
        try:
            temporary = self._header_path.with_name(self._header_path.name + ".new")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(header)) + b"\n")
            os.replace(temporary, self._header_path)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be written: {error.strerror}", param="output") from error

    def _earlier(self) -> JobHeader | None:
        try:
            return msgspec.json.decode(self._header_path.read_bytes(), type=JobHeader)
        except (OSError, msgspec.DecodeError):
            return None

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
        decoder = msgspec.json.Decoder(Written)
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise InvalidRequest(
                        f"{self.path}, line {number} is not a record ({error}): give another --output, or --overwrite",
                        param="output",
                    ) from error

    def write(self, record: Record) -> None:
        self._file.write(record.line())
        now = time.monotonic()
        if now - self._synced > _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = now

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_inputs(output: Path, *inputs: str | Path) -> None:
    """Raises InvalidRequest where ``output`` is one of the files that the job reads: they would be lost."""
    for path in inputs:
        if output.is_file() and Path(path).is_file() and output.samefile(path):
            raise InvalidRequest(f"{output} is read by this job: give another --output", param="output")


def skip_written(documents: Iterator[Document], output: Output, totals: Totals) -> int:
    """Step over the documents whose lines are there already, and count these lines.

    Raises InvalidRequest if the inputs are not those that the file was begun with.
    """
    skipped = 0
    for line in output.written():
        document = next(documents, None)
        if document is None:
            raise InvalidRequest(
                f"{output.path} holds more records than there are inputs: give another --output, or --overwrite",
                param="output",
            )
        if document.id != line.id:
            raise InvalidRequest(
                f"{output.path}, record {skipped + 1} is of input {line.id!r}, but that input is now {document.id!r}: "
                "the inputs have changed; give another --output, or --overwrite",
                param="output",
            )
        totals.count(line.status)
        skipped += 1
    return skipped
