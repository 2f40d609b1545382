"""The table lane: an automaton over tokens, one bitmask row per kind of state, one copy of a row per mask.

A step costs the same however many tokens it allows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.automaton import automaton
from ramet.runtime.constrain.engine import set_ends
from ramet.runtime.constrain.forcing import Forcing
from ramet.runtime.constrain.strings.lang import Lang
from ramet.runtime.constrain.strings.write import raw_regex
from ramet.runtime.constrain.trie import walk
from ramet.runtime.constrain.vocabulary import Vocabulary

STATES = 4096
"""Bound of an automaton's states over bytes; ``lanes`` lets through what is much smaller over characters."""

SPARSE = 256
"""Tokens of a state up to which they are kept in a dictionary."""

STORE_BYTES = 1 << 30
"""Bound of the tables on disk."""
LEFT_S = 600.0
"""Age of an unfinished file from which nobody writes it any more."""

VERSION = 2
"""Of the file format and of everything that decides a table's content."""


class Table:
    """State 0 is the first. Tokens and next states of state s stand at [starts[s], starts[s + 1]), tokens ascending.

    ``rows`` [R, words] uint32: masks, end ids included; ``row_of`` [S]: the row of a state; ``final`` [S] bool.
    """

    def __init__(
        self,
        starts: NDArray[np.int32],
        tokens: NDArray[np.int32],
        targets: NDArray[np.int32],
        rows: NDArray[np.uint32],
        row_of: NDArray[np.int32],
        final: NDArray[np.bool_],
    ) -> None:
        self.starts, self.tokens, self.targets = starts, tokens, targets
        self.rows, self.row_of, self.final = rows, row_of, final
        self.masks = [rows[index] for index in row_of]
        self.ends = final.tolist()
        self._bounds = starts.tolist()
        self._steps: dict[int, dict[int, int] | NDArray[np.int32]] = {}

    @property
    def size(self) -> int:
        """Bytes, what ``step`` keeps at its worst included."""
        dense = int((np.diff(self.starts) > SPARSE).sum())
        kept = 100 * min(len(self.tokens), SPARSE * len(self.final)) + 4 * dense * 32 * self.rows.shape[1]
        return int(kept + self.rows.nbytes + self.starts.nbytes + self.tokens.nbytes + self.targets.nbytes)

    def span(self, state: int) -> tuple[int, int]:
        """Where the state's tokens stand."""
        return self._bounds[state], self._bounds[state + 1]

    def step(self, state: int, token: int) -> int:
        """The next state; -1 if the token is not allowed."""
        found = self._steps.get(state)
        if found is None:
            found = self._steps[state] = self._successors(state)
        if isinstance(found, np.ndarray):
            following: int = found[token].item()
            return following
        return found.get(token, -1)

    def _successors(self, state: int) -> dict[int, int] | NDArray[np.int32]:
        """By token: a dictionary where they are few, an array over the vocabulary where they are many."""
        low, high = self.span(state)
        tokens, targets = self.tokens[low:high], self.targets[low:high]
        if high - low <= SPARSE:
            return dict(zip(tokens.tolist(), targets.tolist(), strict=True))
        dense = np.full(32 * self.rows.shape[1], -1, np.int32)
        dense[tokens] = targets
        return dense


def build(lang: Lang, vocabulary: Vocabulary) -> Table:
    """Raises ConstraintTooComplex beyond ``STATES`` states."""
    machine = automaton(lang, STATES)
    wave = np.zeros(1, np.int32)
    seen = {0}
    parts: list[tuple[NDArray[np.int32], ...]] = []
    while len(wave):
        parts.append(walk(vocabulary.trie, machine.follow, wave))
        reached = np.flatnonzero(np.bincount(parts[-1][2], minlength=1))
        fresh = [state for state in reached.tolist() if state not in seen]
        seen.update(fresh)
        wave = np.array(fresh, np.int32)
    source, tokens, targets = (np.concatenate([part[index] for part in parts]) for index in range(3))
    order = np.lexsort((tokens, source))
    starts = np.searchsorted(source[order], np.arange(len(machine.final) + 1)).astype(np.int32)
    return _with_rows(starts, tokens[order], targets[order], machine.final, vocabulary)


def _with_rows(
    starts: NDArray[np.int32],
    tokens: NDArray[np.int32],
    targets: NDArray[np.int32],
    final: NDArray[np.bool_],
    vocabulary: Vocabulary,
) -> Table:
    """Masks of all states; states that allow the same tokens share one."""
    known: dict[bytes, int] = {}
    rows: list[NDArray[np.uint32]] = []
    row_of = np.zeros(len(final), np.int32)
    for state in range(len(final)):
        allowed = tokens[starts[state] : starts[state + 1]]
        row = np.zeros(vocabulary.words, np.uint32)
        np.bitwise_or.at(row, allowed >> 5, np.uint32(1) << (allowed & 31).astype(np.uint32))
        set_ends(row, vocabulary.end_ids, bool(final[state]))
        key = hashlib.sha256(row.tobytes()).digest()
        if key not in known:
            known[key] = len(rows)
            rows.append(row)
        row_of[state] = known[key]
    return Table(starts, tokens, targets, np.array(rows, np.uint32), row_of, final)


class TableStore:
    """Tables on disk, by regex and vocabulary. A file that is damaged, or not there, is built again. Beyond ``limit``
    bytes those that were not used for the longest time go."""

    def __init__(self, folder: Path | None, limit: int = STORE_BYTES) -> None:
        self._folder = folder
        self._limit = limit

    def get(self, lang: Lang, vocabulary: Vocabulary) -> Table:
        path = self._path(raw_regex(lang), vocabulary)
        table = None if path is None else _read(path)
        if table is None:
            table = build(lang, vocabulary)
            if path is not None:
                _write(path, table)
                _tidy(path.parent, self._limit)
        return table

    def _path(self, regex: str, vocabulary: Vocabulary) -> Path | None:
        if self._folder is None:
            return None
        key = f"{VERSION}\0{vocabulary.fingerprint}\0{vocabulary.end_ids}\0{regex}"
        return self._folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.npz"


_ARRAYS = ("starts", "tokens", "targets", "rows", "row_of", "final")


def _read(path: Path) -> Table | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            table = Table(**{name: file[name] for name in _ARRAYS})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None  # wherever the damage is
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now
    return table


def _tidy(folder: Path, limit: int) -> None:
    """Others may write and remove here at the same time."""
    files: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                if entry.name.endswith(".npz"):
                    files.append((status.st_mtime, status.st_size, folder / entry.name))
                elif entry.name.endswith(".tmp") and status.st_mtime < time.time() - LEFT_S:
                    os.unlink(entry.path)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        total -= size
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, table: Table) -> None:
    """Atomic; a disk that is full or read-only costs a build next time, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **{name: getattr(table, name) for name in _ARRAYS})
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        return


class TableConstraint:
    """See ``base.CompiledConstraint``."""

    lane = "table"

    def __init__(self, table: Table, vocabulary: Vocabulary) -> None:
        self.table = table
        self.size = table.size
        self._vocabulary = vocabulary
        self._forcing = Forcing(table, vocabulary)

    def matcher(self) -> TableMatcher:
        return TableMatcher(self.table, self._vocabulary, self._forcing)


class TableMatcher:
    """See ``base.Matcher``. In text that is forced the mask holds the next id of the tokeniser's own encoding alone,
    as the engine's does, so that forcing changes nothing but the number of steps."""

    def __init__(self, table: Table, vocabulary: Vocabulary, forcing: Forcing) -> None:
        self._table = table
        self._vocabulary = vocabulary
        self._forcing = forcing
        self._states = [0]
        self._ids: list[int] = []
        self._ended = False

    def advance(self, ids: Sequence[int]) -> bool:
        if self._ended:
            return not ids
        states = []
        state = self._states[-1]
        for place, token in enumerate(ids):
            following = self._table.step(state, token)
            if following < 0:
                # The end, where the text may end and nothing comes behind it, is all that is left to try.
                self._ended = token in self._vocabulary.end_ids and self._table.ends[state] and place + 1 == len(ids)
                if not self._ended:
                    return False
                break
            state = following
            states.append(state)
        self._states += states
        self._ids += ids[: len(states)]
        return True

    def forced(self) -> list[int]:
        if self._ended:
            return []
        return list(self._forcing.ids(self._states[-1], self._ids[-1] if self._ids else None))

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        state = self._states[-1]
        if self._ended:
            row.fill(0)
            set_ends(row, self._vocabulary.end_ids, True)
            return
        forced = self._forcing.ids(state, self._ids[-1] if self._ids else None)
        if forced:
            row.fill(0)
            row[forced[0] >> 5] = np.uint32(1 << (forced[0] & 31))
        else:
            row[:] = self._table.masks[state]

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            del self._states[-count:], self._ids[-count:]

    def fork(self) -> TableMatcher:
        twin = TableMatcher(self._table, self._vocabulary, self._forcing)
        twin._states, twin._ids, twin._ended = self._states.copy(), self._ids.copy(), self._ended
        return twin

    @property
    def can_end(self) -> bool:
        return self._ended or bool(self._table.ends[self._states[-1]])

    @property
    def finished(self) -> bool:
        low, high = self._table.span(self._states[-1])
        return self._ended or (low == high and self.can_end)
