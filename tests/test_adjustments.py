"""What is added to a row's logits: as counted anew from all its ids, however they came."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ramet.runtime.protocol.messages import Sampling
from ramet.runtime.worker.sampling import Adjustments

IDS = st.integers(0, 12)
PENALTIES = st.sampled_from([0.0, 0.5, -1.25])


@given(
    bias=st.dictionaries(IDS, st.floats(-100, 100, width=32), max_size=6),
    frequency=PENALTIES,
    presence=PENALTIES,
    parts=st.lists(st.lists(IDS, max_size=5), max_size=5),
    banned=st.lists(IDS, max_size=4),
    n_prompt=st.integers(0, 6),
)
def test_adjustments_are_those_of_all_ids(
    bias: dict[int, float],
    frequency: float,
    presence: float,
    parts: list[list[int]],
    banned: list[int],
    n_prompt: int,
) -> None:
    sampling = Sampling(
        logit_bias=tuple(bias.items()), frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=1.5
    )
    adjustments = Adjustments(sampling, n_prompt)
    ids: list[int] = []
    for part in parts:
        ids += part
        adjustments.count(ids)
        adjustments.additive(tuple(banned))
        wanted = dict(bias)
        if frequency or presence:
            for token in set(ids[n_prompt:]):
                count = ids[n_prompt:].count(token)
                wanted[token] = bias.get(token, 0.0) - frequency * count - presence
        for forbidden in ((), tuple(banned)):
            found, values = adjustments.additive(forbidden)
            assert len(set(found.tolist())) == len(found)
            expected = {**wanted, **dict.fromkeys(forbidden, float("-inf"))}
            assert dict(zip(found.tolist(), values.tolist(), strict=True)) == {
                token: float(np.float32(value)) for token, value in expected.items()
            }


def test_a_row_keeps_its_arrays() -> None:
    """A step does not go through the entries one by one."""
    adjustments = Adjustments(Sampling(logit_bias=tuple((i, 1.0) for i in range(1000))), 0)

    class Watched(dict[int, float]):
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("rebuilt from its entries")

        __iter__ = values = keys = items  # type: ignore[assignment]

    adjustments._bias = Watched(adjustments._bias)
    for step in range(5):
        adjustments.count(list(range(step)))
        assert len(adjustments.additive(())[0]) == 1000
