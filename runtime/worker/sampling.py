"""From the rows that sample in a step to one SampleBatch: parallel arrays, kept per slot between steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import SampleBatch, SampleResult
from ramet.runtime.protocol.messages import Sampling, TokenLogprob


class Adjustments:
    """Logit changes of one row that ask for a look at its ids: logit_bias and penalties.

    Frequency and presence count ids at and after n_prompt, repetition all ids. Ids are counted once, as they appear.
    """

    __slots__ = (
        "_bias",
        "_counted",
        "_counts",
        "_frequency",
        "_ids",
        "_n_prompt",
        "_place",
        "_presence",
        "_seen",
        "_seen_set",
        "_values",
        "repetition",
    )

    def __init__(self, sampling: Sampling, n_prompt: int) -> None:
        self._bias = dict(sampling.logit_bias)
        # What is added to which logit, and where each id stands there: changed in place, so that a step costs what is
        # new and not what there is.
        self._ids = array("i", self._bias)
        self._values = array("f", self._bias.values())
        self._place = {token: place for place, token in enumerate(self._ids)}
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self.repetition = sampling.repetition_penalty
        self._n_prompt = n_prompt
        self._counted = 0
        self._counts: dict[int, int] = {}
        self._seen = array("i")
        self._seen_set: set[int] = set()

    @staticmethod
    def of(sampling: Sampling, n_prompt: int) -> Adjustments | None:
        """None where the row's logits are taken as they are."""
        plain = not (sampling.logit_bias or sampling.frequency_penalty or sampling.presence_penalty)
        return None if plain and sampling.repetition_penalty == 1.0 else Adjustments(sampling, n_prompt)

    def count(self, ids: Sequence[int]) -> None:
        """Take in what has been appended to ``ids`` since the last call."""
        if self.repetition != 1.0:
            for token in ids[self._counted :]:
                if token not in self._seen_set:
                    self._seen_set.add(token)
                    self._seen.append(token)
        if self._frequency or self._presence:
            for token in ids[max(self._counted, self._n_prompt) :]:
                count = self._counts[token] = self._counts.get(token, 0) + 1
                self._set(token, self._bias.get(token, 0.0) - self._frequency * count - self._presence)
        self._counted = len(ids)

    def _set(self, token: int, value: float) -> None:
        place = self._place.get(token)
        if place is None:
            self._place[token] = len(self._ids)
            self._ids.append(token)
            self._values.append(value)
        else:
            self._values[place] = value

    def additive(self, banned: tuple[int, ...]) -> _Pairs:
        """(ids, each once; what is added to their logits): -inf for those that are banned."""
        ids, values = np.array(self._ids, np.int32), np.array(self._values, np.float32)
        if not banned:
            return ids, values
        values[[place for token in banned if (place := self._place.get(token)) is not None]] = -np.inf
        more = [token for token in dict.fromkeys(banned) if token not in self._place]
        return np.append(ids, np.array(more, np.int32)), np.append(values, np.full(len(more), -np.inf, np.float32))

    @property
    def scaled(self) -> NDArray[np.int32]:
        return np.array(self._seen, dtype=np.int32)


class SamplingTable:
    """Sampling parameters by slot, so that a step gathers them in a few array reads."""

    def __init__(self) -> None:
        self._temperature = np.zeros(0, np.float32)
        self._top_p = np.zeros(0, np.float32)
        self._top_k = np.zeros(0, np.int32)
        self._min_p = np.zeros(0, np.float32)
        self._key = np.zeros(0, np.uint64)
        self._logprobs = np.zeros(0, np.int32)

    def resize(self, slots: int) -> None:
        for name in ("_temperature", "_top_p", "_top_k", "_min_p", "_key", "_logprobs"):
            old = getattr(self, name)
            new = np.zeros(slots, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def set(self, slot: int, sampling: Sampling, logprobs: int) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._min_p[slot] = sampling.min_p
        self._key[slot] = sampling.key
        self._logprobs[slot] = logprobs

    def assemble(
        self,
        slots: NDArray[np.intp],
        positions: Sequence[int],
        adjustments: Sequence[Adjustments | None],
        banned: Sequence[tuple[int, ...]],
        mask: NDArray[np.uint32] | None,
        masked: NDArray[np.bool_] | None,
    ) -> SampleBatch:
        """Parallel over the rows that sample: their slots, the absolute positions of the ids to be drawn, their
        adjustments (already counted up to date) and banned ids; mask and masked as in SampleBatch."""
        adjust = scale = None
        if any(a is not None for a in adjustments) or any(banned):
            adjust = _ragged([_additive(a, b) for a, b in zip(adjustments, banned, strict=True)])
            if any(a is not None and a.repetition != 1.0 for a in adjustments):
                scale = _ragged([_scaled(a) for a in adjustments])
        return SampleBatch(
            temperature=self._temperature[slots],
            top_p=self._top_p[slots],
            top_k=self._top_k[slots],
            min_p=self._min_p[slots],
            key=self._key[slots],
            position=np.array(positions, np.int64),
            logprobs=self._logprobs[slots],
            mask=mask,
            masked=masked,
            adjust_start=adjust and adjust[0],
            adjust_ids=adjust and adjust[1],
            adjust_values=adjust and adjust[2],
            scale_start=scale and scale[0],
            scale_ids=scale and scale[1],
            scale_values=scale and scale[2],
        )


_Pairs = tuple["NDArray[np.int32]", "NDArray[np.float32]"]
_Ragged = tuple["NDArray[np.int32]", "NDArray[np.int32]", "NDArray[np.float32]"]


def _additive(adjustments: Adjustments | None, banned: tuple[int, ...]) -> _Pairs:
    if adjustments is not None:
        return adjustments.additive(banned)
    return np.array(tuple(dict.fromkeys(banned)), np.int32), np.full(len(set(banned)), -np.inf, np.float32)


def _scaled(adjustments: Adjustments | None) -> _Pairs:
    if adjustments is None or adjustments.repetition == 1.0:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    ids = adjustments.scaled
    return ids, np.full(len(ids), adjustments.repetition, np.float32)


def _ragged(rows: Sequence[_Pairs]) -> _Ragged:
    start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(ids) for ids, _ in rows], out=start[1:])
    return start, np.concatenate([ids for ids, _ in rows]), np.concatenate([values for _, values in rows])


def sampled_logprob(result: SampleResult, row: int, top: int) -> TokenLogprob:
    """Entry of the id drawn in ``row``, with its ``top`` best alternatives."""
    best = zip(result.top_ids[row, :top].tolist(), result.top_raw[row, :top].tolist(), strict=True)
    return TokenLogprob(
        raw=float(result.raw[row]),
        masked=float(result.masked[row]),
        top=tuple((token, value) for token, value in best if token >= 0),
    )


def scored_logprob(raw: float, top_ids: list[int], top_raw: list[float], *, forced: bool) -> TokenLogprob:
    """Entry of a known id: a prompt's (masked = raw) or a forced one (masked = 0: it had no alternative)."""
    return TokenLogprob(raw=raw, masked=0.0 if forced else raw, top=tuple(zip(top_ids, top_raw, strict=True)))
