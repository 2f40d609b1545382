"""The physical floor of a workload: the work that nobody can avoid, over the rates of the machine.

Prompts form a tree of tokens; each node is computed once, at its position. Decoding goes in steps that hold as many
rows as may run at once; a step reads all weights once, and once the K and V of each node that its rows stand on::

    node:  0 ........ shared ......... own ... | prompt ends
           |   once for all below it  |  once  | row: new tokens, one a step

What a row generates is never counted twice, so a conversation's history is free. A schema may force several tokens of
an answer at once, which this does not know: there (W6) a good server can go below this floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from ramet.bench.results import Floor, Rates
from ramet.bench.weights import Weights
from ramet.bench.workloads import Workload
from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.store import ModelMeta
from ramet.runtime.tokenizer import Tokenizer

_SALT = "#1234567\n"
_ANSWER = " word"
_KV_BYTES = 2
"""bf16."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class _Round:
    """Prompts that may run beside each other. ``answered``: (begin, end) of earlier rounds' answers, per prompt."""

    prompts: tuple[Ids, ...]
    answered: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class _Step:
    """Work of one decode step. ``kv_tokens``: distinct ones; ``context``: summed over rows."""

    rows: int
    kv_tokens: int
    context: int


@dataclass(frozen=True)
class Model:
    """What a floor needs to know of a model."""

    meta: ModelMeta
    tokenizer: Tokenizer
    weights: Weights

    @property
    def kv_bytes(self) -> int:
        """Of one token, all layers, in bf16."""
        return 2 * self.meta.layers * self.meta.kv_heads * self.meta.head_dim * _KV_BYTES

    def linear_ops(self, tokens: int, logits: int) -> int:
        return 2 * self.weights.layer_elements * tokens + 2 * self.weights.head_elements * logits

    def attention_ops(self, contexts: int) -> int:
        """Scores and sums for queries that see ``contexts`` keys together."""
        return 4 * self.meta.layers * self.meta.heads * self.meta.head_dim * contexts


def floor(model: Model, workload: Workload, rates: Rates | None = None, *, new_tokens: float | None = None) -> Floor:
    """``new_tokens``: of an answer (mean), where it is shorter than the workload allows. Times need ``rates``."""
    new = max(1, round(new_tokens or workload.max_tokens))
    rounds = _chat_rounds(model, workload, new) if workload.kind == "chat" else _plain_rounds(model, workload)
    fresh, fresh_contexts = _fresh(rounds)
    requests = sum(len(each.prompts) for each in rounds)
    steps = [step for each in rounds for step in _steps(each.prompts, workload.concurrency, new)]
    decoded = sum(step.rows for step in steps)
    bare = Floor(
        workload=workload.name,
        prefill_tokens=fresh,
        prompt_tokens=sum(len(ids) for each in rounds for ids in each.prompts),
        steps=len(steps),
        rows=max((step.rows for step in steps), default=0),
        weight_bytes=len(steps) * model.weights.bytes_per_step,
        kv_bytes=model.kv_bytes * sum(step.kv_tokens for step in steps),
        linear_ops=model.linear_ops(fresh + decoded, requests + decoded),
        attention_ops=model.attention_ops(fresh_contexts + sum(step.context for step in steps)),
    )
    if rates is None:
        return bare
    clock = _Clock(model, rates)
    memory = [clock.memory(step) for step in steps]
    compute = [clock.compute(step.rows, step.rows, step.context) for step in steps]
    prefill_s = clock.compute(fresh, requests, fresh_contexts)
    return structs.replace(
        bare,
        prefill_s=prefill_s,
        memory_s=sum(memory),
        compute_s=sum(compute),
        total_s=prefill_s + sum(map(max, memory, compute)),
    )


class _Clock:
    """Seconds of work. The bandwidth is the highest that was seen in any pass over the large buffer: a floor that a
    busy neighbour could raise would be none."""

    def __init__(self, model: Model, rates: Rates) -> None:
        linear = rates.int8_gops if model.weights.quantised else rates.bf16_gflops
        if not linear or not rates.bf16_gflops:
            raise InvalidRequest("the rates of this machine are incomplete: measure them again with --machine")
        self._model = model
        self._bandwidth = 1e9 * rates.read_large[2]
        self._linear = 1e9 * linear
        self._attention = 1e9 * rates.bf16_gflops

    def memory(self, step: _Step) -> float:
        return (self._model.weights.bytes_per_step + self._model.kv_bytes * step.kv_tokens) / self._bandwidth

    def compute(self, tokens: int, logits: int, contexts: int) -> float:
        linear = self._model.linear_ops(tokens, logits) / self._linear
        return linear + self._model.attention_ops(contexts) / self._attention


def _plain_rounds(model: Model, workload: Workload) -> list[_Round]:
    prompts = tuple(tuple(model.tokenizer.encode(_SALT + session.turns[0])) for session in workload.sessions)
    return [_Round(prompts, ((),) * len(prompts))]


def _chat_rounds(model: Model, workload: Workload, new: int) -> list[_Round]:
    """One round per turn, with words that stand for the answers."""
    template = ChatTemplate(model.meta, model.tokenizer)
    answer = _ANSWER.strip() + _ANSWER * (new - 1)
    size = len(model.tokenizer.encode(answer))
    histories = [[{"role": "system", "content": _SALT + session.system}] for session in workload.sessions]
    answered: list[tuple[tuple[int, int], ...]] = [()] * len(histories)
    rounds = []
    for turn in range(len(workload.sessions[0].turns)):
        prompts = []
        for session, history in zip(workload.sessions, histories, strict=True):
            history.append({"role": "user", "content": session.turns[turn]})
            prompts.append(tuple(template.ids(history)))
            history.append({"role": "assistant", "content": answer})
        rounds.append(_Round(tuple(prompts), tuple(answered)))
        answered = [(*old, (len(ids), len(ids) + size)) for old, ids in zip(answered, prompts, strict=True)]
    return rounds


def _fresh(rounds: Sequence[_Round]) -> tuple[int, int]:
    """(tokens, keys that they see together) of the tree of all prompts, without what answers put into it."""
    tokens, contexts = _distinct([ids for each in rounds for ids in each.prompts])
    for begin, end in (span for spans in rounds[-1].answered for span in spans):
        tokens -= end - begin
        contexts -= _contexts(begin, end)
    return tokens, contexts


def _steps(prompts: Sequence[Ids], concurrency: int, new: int) -> Iterator[_Step]:
    """The first new token comes out of the prompt's own computation: new - 1 steps follow."""
    for start in range(0, len(prompts), concurrency):
        group = prompts[start : start + concurrency]
        tokens, _ = _distinct(group)
        together = sum(map(len, group))
        for done in range(1, new):
            yield _Step(len(group), tokens + len(group) * done, together + len(group) * done)


def _distinct(prompts: Sequence[Ids]) -> tuple[int, int]:
    """(nodes, sum of their depths) of the prefix tree of ``prompts``. In sorted order a prompt shares the most with its
    neighbour."""
    tokens = contexts = 0
    before: Ids = ()
    for ids in sorted(prompts):
        common = next(
            (i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids))
        )
        tokens += len(ids) - common
        contexts += _contexts(common, len(ids))
        before = ids
    return tokens, contexts


def _contexts(begin: int, end: int) -> int:
    """Keys that the tokens at positions begin to end - 1 see together, themselves included."""
    return (begin + 1 + end) * (end - begin) // 2
