"""Rows: what comes out depends on the request alone, however the work is cut up, batched, pushed back or resumed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.runtime.protocol.messages import ConstraintSpec, Sampling, Stops
from worker_fakes import END, TOKEN_BYTES, VOCAB, Outcome, Request, alone, new_driver, spec, text_of

INF = float("inf")
ids = st.integers(1, VOCAB - 1)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.6]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((3, 2.0), (5, -3.0))]),
    key=st.integers(0, 2**64 - 1),
)
place = st.one_of(ids.map(lambda i: [i]), ids.map(lambda i: [i]), st.lists(ids, min_size=2, max_size=20, unique=True))
scripts = st.one_of(st.none(), st.lists(place, min_size=1, max_size=16).map(spec))
stop_sets = st.builds(
    Stops,
    strings=st.sampled_from([(), (b"ab",), (b"ca", b"bca"), (b"-",), (b"dab", b"xx")]),
    ids=st.sampled_from([(), (7,), (30, 31)]),
    ignore_end=st.booleans(),
)
requests = st.builds(
    Request,
    prompt=st.lists(ids, min_size=1, max_size=20),
    max_tokens=st.integers(0, 18),
    min_tokens=st.sampled_from([0, 0, 3]),
    sampling=samplings,
    stops=stop_sets,
    logprobs=st.sampled_from([-1, -1, 0, 3]),
    logits_from=st.sampled_from([-1, -1, 0, 4]),
    constraint=scripts,
)


@given(requests, st.integers(0, 2**32))
def test_any_split_of_ceilings_gives_the_same(request: Request, seed: int) -> None:
    choose = random.Random(seed)
    driver = new_driver(block_size=choose.choice([1, 2, 4, 16]))
    driver.add(1, request)
    assert driver.finish(lambda: choose.choice([1, 1, 2, 3, 7]))[1].essence() == alone(request).essence()


@given(st.lists(requests, min_size=2, max_size=5), st.integers(0, 2**32))
@settings(max_examples=40)
def test_a_batch_gives_each_row_what_it_gets_alone(batch: list[Request], seed: int) -> None:
    choose = random.Random(seed)
    driver = new_driver()
    for row, request in enumerate(batch):
        driver.add(row, request)
        driver.step(lambda: choose.choice([1, 2, 5, 50]))
    outcomes = driver.finish(lambda: choose.choice([1, 2, 5, 50]))
    for row, request in enumerate(batch):
        assert outcomes[row].essence() == alone(request).essence()


@given(requests, st.integers(0, 2**32))
def test_resume_at_any_point_goes_on_undisturbed(request: Request, seed: int) -> None:
    """Pushed back (or its worker died) after any step, with all ids that were reported."""
    choose = random.Random(seed)
    driver = new_driver()
    driver.add(1, request)
    for _ in range(400):
        outcome = driver.outcomes[1]
        if outcome.end is not None:
            break
        if choose.random() < 0.4:
            if choose.random() < 0.5:
                driver = new_driver()
            outcome.prompt_logprobs, outcome.prompt_from = [], -1  # the scheduler asks for the rest only; here for all
            driver.add(1, request, outcome)
        driver.step(lambda: choose.choice([1, 3, 9, 30]))
    else:
        pytest.fail("the row does not end")
    reference = alone(request)
    if request.logits_from >= 0:  # an end that was decided at the resume skips the prompt's scores
        outcome.prompt_logprobs, outcome.prompt_from = reference.prompt_logprobs, reference.prompt_from
    assert outcome.essence() == reference.essence()


@given(requests)
def test_jump_forward_changes_no_id(request: Request) -> None:
    """On scripts whose masks allow one id where one is forced, jumping is only quicker; also where min_tokens bans a
    stop id that the constraint forces."""
    on, off = alone(request), alone(request, jump_forward=False)
    assert (on.ids, on.end) == (off.ids, off.end)
    assert not any(off.forced)
    assert [round(e.raw, 5) for e in on.logprobs] == [round(e.raw, 5) for e in off.logprobs]


@given(requests)
def test_limits_and_ends(request: Request) -> None:
    outcome = alone(request)
    end = outcome.end
    assert end is not None
    assert len(outcome.ids) <= request.max_tokens
    if end.reason in ("end", "stop") and request.constraint is None:
        assert len(outcome.ids) >= min(request.min_tokens, request.max_tokens)
    if end.reason == "length":
        assert len(outcome.ids) == request.max_tokens
    if end.reason == "end" and request.stops.ignore_end:
        assert request.constraint is not None
    if end.reason == "stop":
        assert end.stop is not None
        at = end.stop.at - len(request.prompt)
        if end.stop.which >= 0:
            stop = request.stops.strings[end.stop.which]
            text = text_of(outcome.ids)
            kept = text_of(outcome.ids[:at]) + end.stop.leftover
            assert text.startswith(kept + stop)
            assert len(kept + stop) > len(text_of(outcome.ids[:-1])), "the last id completes the stop"
        else:
            assert at == len(outcome.ids)
    if request.constraint is not None and end.reason != "error":
        script = eval(request.constraint.text)
        assert all(token in allowed for token, allowed in zip(outcome.ids, script, strict=False))
        if len(outcome.ids) == len(script) and request.max_tokens and end.reason != "stop":
            assert end.reason == "end", "a complete value never ends by length"


def test_prompt_scores_are_those_of_generation() -> None:
    """Score ids that were generated greedily: the same raw values as when they were drawn."""
    request = Request([5, 6, 7], max_tokens=8, logprobs=2, stops=Stops(ignore_end=True))
    drawn = alone(request)
    scored = alone(Request([5, 6, 7, *drawn.ids], max_tokens=0, logprobs=2, logits_from=2))
    assert scored.prompt_from == 3 and scored.end is not None and scored.end.reason == "length"
    assert [(e.raw, e.top) for e in scored.prompt_logprobs] == [(e.raw, e.top) for e in drawn.logprobs]


def test_forced_ids_come_first_and_carry_true_logprobs() -> None:
    script = [[4], [5], [6, 7, 8], [9], [10]]
    plain = alone(Request([3, 3], constraint=spec(script)))
    assert plain.forced == bytes([1, 1, 0, 1, 1]) and plain.end is not None and plain.end.reason == "end"
    with_logprobs = alone(Request([3, 3], constraint=spec(script), logprobs=0))
    assert with_logprobs.ids == plain.ids and with_logprobs.forced == plain.forced
    assert [e.masked for e in with_logprobs.logprobs][0::4] == [0.0, 0.0]
    assert all(e.raw < 0 for e in with_logprobs.logprobs)


def test_forced_ids_are_computed_in_one_step_with_the_prompt() -> None:
    driver = new_driver()
    driver.add(1, Request([3] * 10, constraint=spec([[4], [5], [6, 7], [8], [9]])))
    driver.step(lambda: 100)
    outcome = driver.outcomes[1]
    assert len(outcome.ids) == 5 and outcome.computed == 12
    assert outcome.end is not None, "the run after the choice completes the value without a further step"


def test_a_stop_inside_forced_ids_cuts_the_run() -> None:
    by_text = {text: i for i, text in enumerate(TOKEN_BYTES)}
    script = spec([[by_text[b"xy"]], [by_text[b"c"]], [by_text[b"abc"]], [by_text[b"d"]]])
    outcome = alone(Request([3], constraint=script, stops=Stops(strings=(b"bc",))))
    assert text_of(outcome.ids) == b"xycabc"
    assert outcome.end is not None and outcome.end.stop is not None
    assert (outcome.end.stop.at, outcome.end.stop.leftover) == (3, b"a")


def test_end_ids_are_suppressed_before_min_tokens_and_under_ignore_end() -> None:
    bias = Sampling(temperature=0.0, logit_bias=((END, 100.0),))
    assert alone(Request([3], sampling=bias)).ids == []
    assert len(alone(Request([3], sampling=bias, min_tokens=4)).ids) == 4
    ignoring = alone(Request([3], sampling=bias, stops=Stops(ignore_end=True)))
    assert len(ignoring.ids) == 12 and END not in ignoring.ids
    asked_for = alone(Request([3], sampling=bias, stops=Stops(ids=(END,), ignore_end=True)))
    assert asked_for.end is not None and asked_for.end.stop is not None and asked_for.end.stop.which == -1


def test_a_failing_row_ends_alone() -> None:
    driver = new_driver()
    good = Request([3, 4, 5])
    driver.add(1, good)
    driver.add(2, Request([3], constraint=spec([[4, 5], [6, 7]], fault=1)))
    driver.add(3, Request([3], constraint=spec([[END], [5]]), min_tokens=2))
    driver.add(4, Request([3], constraint=ConstraintSpec("unheard-of", "")))
    driver.add(5, Request([]))
    outcomes = driver.finish()
    assert outcomes[1].essence() == alone(good).essence()
    for row, part in ((2, "scripted fault"), (4, "unheard-of"), (5, "empty prompt")):
        end = outcomes[row].end
        assert end is not None and end.reason == "error" and part in end.message, (row, end)


def test_a_mask_that_leaves_nothing_is_that_rows_error() -> None:
    request = Request([3], constraint=spec([[END, 4], [END, 5]]), min_tokens=1)
    assert alone(request).ids[0] == 4
    nothing = Request([3], constraint=spec([[7, 8]]), sampling=Sampling(0.0, logit_bias=((7, -INF), (8, -INF))))
    end = alone(nothing).end
    assert end is not None and end.reason == "error" and "no id is allowed" in end.message


@pytest.mark.parametrize("jump_forward", [True, False])
def test_a_constraint_goes_before_min_tokens(jump_forward: bool) -> None:
    """A stop id that it demands is an id like any other until min_tokens, and an end that it demands is the end."""
    for script in ([[7], [8], [7, 8], [9], [7]], [[7, 8], [7], [8], [9], [7]]):
        request = Request([3], constraint=spec(script), min_tokens=4, stops=Stops(ids=(7, 8)))
        outcome = alone(request, jump_forward=jump_forward)
        assert len(outcome.ids) == 4
        assert outcome.end is not None and outcome.end.stop is not None and outcome.end.stop.which == -1
    for ignore_end in (False, True):
        request = Request([3], constraint=spec([[5, 6], [END]]), min_tokens=9, stops=Stops(ignore_end=ignore_end))
        outcome = alone(request, jump_forward=jump_forward)
        assert outcome.end is not None and outcome.end.reason == "end" and len(outcome.ids) == 1


def test_a_failed_step_forgets_its_rows_and_the_worker_lives_on() -> None:
    driver = new_driver()
    request = Request([3, 4, 5])
    driver.add(1, request)
    driver.step(lambda: 2)
    driver.core.runner.fail_next = MemoryError("scripted")  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        driver.step(lambda: 2)
    driver.step(lambda: 2)
    assert driver.outcomes[1] == Outcome(computed=2), "a queued plan finds no row"
    driver.add(1, request, driver.outcomes[1])
    assert driver.finish()[1].essence() == alone(request).essence()


def test_a_plan_without_room_is_an_error_not_a_corruption() -> None:
    driver = new_driver()
    driver.add(1, Request([3] * 10))
    driver.size = 1 << 20  # the driver believes that one block holds everything
    driver.step(lambda: 10)
    end = driver.outcomes[1].end
    assert end is not None and end.reason == "error" and "hold" in end.message
