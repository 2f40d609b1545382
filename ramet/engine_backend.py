"""The backend of programs that run in this process's own engine: token ids in, chunks out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import cast

from ramet.frontend_lang.backend import Branch, BranchKey, Cut, End, GenCall, TokenChunk
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.token_branch import TokenBranch
from ramet.runtime.frontend.client import Client, Generation
from ramet.runtime.frontend.requests import GenerateRequest, ScoreRequest
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import BranchRef, Namespace, TokenLogprob, Usage
from ramet.runtime.store import ModelMeta
from ramet.runtime.tokenizer import Tokenizer
from ramet.text_side import TextSide


class EngineBackend(TextSide):
    """See ``ramet.frontend_lang.backend``: both protocols, Backend and TokenBackend."""

    keeps = True

    def __init__(
        self,
        loop: LoopThread,
        client: Client,
        tokenizer: Tokenizer,
        meta: ModelMeta,
        namespace: Namespace | None = None,
        max_priority: int | None = None,
    ) -> None:
        """``max_priority``: what calls may say as theirs, up or down; None: anything."""
        super().__init__(tokenizer, meta)
        self.namespace = namespace or Namespace()
        self._max_priority = max_priority
        self.loop = loop
        self.client = client

    # ------------------------------------------------------------ Backend

    def open(self, path: tuple[int, ...] = ()) -> Branch:
        return TokenBranch(self, path)

    async def flush_cache(self) -> None:
        """Drop every cached block that no request uses."""
        await self.client.control("flush")

    async def server_info(self) -> dict[str, object]:
        """The scheduler's counters."""
        return await self.client.control("stats")

    def close(self) -> None:
        """The engine owns the loop and the client."""

    # ------------------------------------------------------------ requests

    def generate(self, parent: Cut | None, ids: Sequence[int], call: GenCall, keep: bool) -> EngineStream:
        self._check_priority(call)
        return EngineStream(self.client.generate(generate_request(parent, ids, call, keep, self.namespace)), call)

    async def score(
        self, parent: Cut | None, ids: Sequence[int], continuations: Sequence[Sequence[int]], call: GenCall
    ) -> tuple[list[list[TokenLogprob]], Usage]:
        self._check_priority(call)
        result = await self.client.score(
            ScoreRequest(ids, continuations, _parent(parent), 0, call.priority, call.timeout_s, self.namespace)
        )
        return [list(row) for row in result.logprobs], result.usage

    def _check_priority(self, call: GenCall) -> None:
        most = self._max_priority
        if most is not None and not -most <= call.priority <= most:
            raise InvalidRequest(
                f"priority is {call.priority}; this server takes {-most} to {most} (ramet serve --max-priority)",
                param="priority",
            )

    def release(self, branch: BranchKey) -> None:
        self.client.release(cast("BranchRef", branch))


def _parent(cut: Cut | None) -> tuple[BranchRef, int] | None:
    return None if cut is None else (cast("BranchRef", cut.branch), cut.at)


def generate_request(
    parent: Cut | None, ids: Sequence[int], call: GenCall, keep: bool, namespace: Namespace | None = None
) -> GenerateRequest:
    """The client's request of a call of the DSL."""
    start = call.prompt_logprobs_from
    return GenerateRequest(
        ids=ids,
        parent=_parent(parent),
        temperature=call.temperature,
        top_p=call.top_p,
        top_k=call.top_k,
        min_p=call.min_p,
        frequency_penalty=call.frequency_penalty,
        presence_penalty=call.presence_penalty,
        repetition_penalty=call.repetition_penalty,
        logit_bias=dict(call.logit_bias),
        seed=call.seed,
        key_path=call.path,
        max_tokens=call.max_tokens,
        min_tokens=call.min_tokens,
        stop=call.stop,
        stop_ids=call.stop_token_ids,
        ignore_eos=call.ignore_eos,
        constraint=call.constraint,
        logprobs=call.logprobs,
        logits_from=max(0, start - 1) if start >= 0 else -1,
        n=call.n,
        priority=call.priority,
        timeout_s=call.timeout_s,
        keep=keep,
        namespace=namespace or Namespace(),
    )


class EngineStream:
    """A generation of the client, as the DSL reads it."""

    def __init__(self, generation: Generation, call: GenCall) -> None:
        self._generation = generation
        self._wants_prompt = call.prompt_logprobs_from >= 0

    def branch(self, choice: int) -> BranchKey:
        return self._generation.branches[choice]

    def cancel(self) -> None:
        self._generation.cancel()

    async def __aiter__(self) -> AsyncGenerator[TokenChunk, None]:
        async for chunk in self._generation:
            finish = chunk.finish
            prompt: tuple[int, Sequence[TokenLogprob]] | None = None
            if finish is not None and self._wants_prompt and chunk.choice == 0:
                result = (await self._generation.result())[0]
                prompt = (result.prompt_logprobs_from, result.prompt_logprobs)
            yield TokenChunk(
                chunk.choice,
                chunk.text,
                chunk.ids,
                [flag != 0 for flag in chunk.forced],
                chunk.logprobs,
                prompt,
                None if finish is None else End(finish.reason, finish.usage, finish.stop, finish.message),
                self._generation.cached_tokens,
            )
