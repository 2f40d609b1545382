"""The process that compiles first: its parent may kill it at any time, and starts another.

Frames on stdin and stdout: four bytes of length (little-endian), then msgpack. The first frame in is a ``Definition``,
answered by ``Verdict()``; then each ConstraintSpec is answered by a Verdict.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import msgspec
import numpy as np
from ramet.runtime.constrain.base import Matcher
from ramet.runtime.constrain.compiler import Compiler
from ramet.runtime.constrain.ready import to_spec
from ramet.runtime.protocol.errors import ConstraintError, GenerationFailed, UnsupportedConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer

T = TypeVar("T")

NICE = 5
"""A compile gives way to the steps of rows that run."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """A tokeniser, as much of it as constraints need. ``memory``: bytes that a compile may add to the address space;
    ``tables``: folder of tables."""

    tokenizer: str
    vocab_size: int
    end_ids: tuple[int, ...]
    fingerprint: str
    table: list[bytes]
    memory: int
    tables: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """``kind``: of the ConstraintError, empty if it compiled. ``ready``: a Ready as JSON, if it did."""

    kind: str = ""
    message: str = ""
    keyword: str = ""
    pointer: str = ""
    ready: str = ""


class PlainTokenizer:
    """A tokeniser from its definition."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition.tokenizer
        self.vocab_size = definition.vocab_size
        self.end_ids = definition.end_ids
        self.fingerprint = definition.fingerprint
        self.token_table = definition.table

    @cached_property
    def _hf(self) -> HfTokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.definition)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._hf.encode(text, add_special_tokens=False).ids
        return ids


def read_frame(stream: BinaryIO, kind: type[T]) -> T | None:
    """None at the end of the stream, also where it ends inside a frame: the owner has gone."""
    head = stream.read(4)
    body = stream.read(int.from_bytes(head, "little")) if len(head) == 4 else b""
    if len(head) < 4 or len(body) < int.from_bytes(head, "little"):
        return None
    return msgspec.msgpack.decode(body, type=kind)


def write_frame(stream: BinaryIO, message: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(len(body).to_bytes(4, "little") + body)
    stream.flush()


def verdict_of(compiler: Compiler, spec: ConstraintSpec) -> Verdict:
    try:
        ready = compiler.lower(spec)
        _begin(compiler, compiler.build(ready).matcher())
    except UnsupportedConstraint as error:
        return Verdict(error.kind, str(error), error.keyword, error.pointer)
    except ConstraintError as error:
        return Verdict(error.kind, str(error))
    except GenerationFailed as error:
        return Verdict("too_complex", f"the constraint is too complex: {error}")
    except MemoryError:
        return Verdict("too_complex", "the constraint needs more memory than a compile may use")
    except Exception as error:  # a fault of the compiler itself
        return Verdict("crashed", f"the compiler failed: {type(error).__name__}: {error}")
    return Verdict(ready=to_spec(ready).text)


def _begin(compiler: Compiler, matcher: Matcher) -> None:
    """What every row does first: a constraint that fails there is none."""
    matcher.forced()
    matcher.fill_mask(np.zeros(compiler.vocabulary.words, np.uint32))


def _limit_memory(extra: int) -> None:
    """Address space now, and ``extra`` bytes; without effect where the system does not support it."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (OSError, ValueError):
        return


def _follow_parent() -> None:
    """End with the parent, also in the middle of a compile."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    _follow_parent()
    os.nice(NICE)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    definition = read_frame(source, Definition)
    if definition is None:
        return
    compiler = Compiler(PlainTokenizer(definition), Path(definition.tables))
    compiler.compile(ConstraintSpec("json_schema", '{"type":"object"}'))
    _limit_memory(definition.memory)
    write_frame(sink, Verdict())
    while (spec := read_frame(source, ConstraintSpec)) is not None:
        write_frame(sink, verdict_of(compiler, spec))


if __name__ == "__main__":
    main()
