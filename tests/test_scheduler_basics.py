"""What a client may rely on, one behaviour at a time, on the KV oracle."""

from __future__ import annotations

import pytest
from oracle_world import World
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.protocol.messages import Limits, Namespace, Sampling, Stops
from ramet.runtime.scheduler.branch import Branch, Request
from ramet.runtime.scheduler.queue import BranchQueue


def config(**changes: object) -> SchedulerConfig:
    base: dict[str, object] = {"block_size": 4, "chunk_tokens": 32, "max_rows": 8, "check_invariants": True}
    return SchedulerConfig(**(base | changes))  # type: ignore[arg-type]


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7 + i * i + i // 3) % 60 for i in range(length)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 31, 32, 33, 100])
def test_a_request_says_what_the_oracle_says(length: int, depth: int) -> None:
    world = World(config=config(plan_depth=depth))
    ids = prompt(length)
    request = world.submit(ids, 9)
    world.run()
    heard = world.of(request)
    assert heard.ids == world.greedy(ids, 9)
    assert heard.offset == length
    usage = heard.finished.usage
    assert heard.finished.reason == "length"
    assert (usage.prompt, usage.cached, usage.computed) == (length, 0, length)
    assert (usage.completion, usage.sampled, usage.forced) == (9, 9, 0)
    blocks = world.stats()["blocks"]
    assert blocks["private"] == blocks["locked"] == 0


def test_a_repeated_prompt_is_cached_up_to_its_last_id() -> None:
    world = World()
    for length in (32, 30):
        ids = prompt(length, seed=length)
        first = world.submit(ids, 4)
        world.run()
        again = world.submit(ids, 4)
        world.run()
        assert world.of(again).ids == world.of(first).ids == world.greedy(ids, 4)
        assert world.of(again).finished.usage.cached == length - 1, "whole blocks, then a copied head, then one id"


def test_requests_that_arrive_together_compute_a_shared_prefix_once() -> None:
    world = World(blocks=512, config=config(chunk_tokens=64, max_rows=32))
    shared = prompt(400)
    requests = [(ids, world.submit(ids, 4)) for ids in ([*shared, *prompt(20, seed=3 + i)] for i in range(20))]
    world.run()
    for ids, request in requests:
        assert world.of(request).ids == world.greedy(ids, 4)
    computed = world.stats()["tokens"]["computed"]
    assert computed <= 400 + 20 * 24


def test_without_pending_prefixes_they_all_compute_it() -> None:
    world = World(blocks=512, config=config(chunk_tokens=2048, max_rows=32, switches=Switches(pending=False)))
    shared = prompt(100)
    for i in range(4):
        world.submit([*shared, *prompt(20, seed=3 + i)], 1)
    world.run()
    assert world.stats()["tokens"]["computed"] == 4 * 120


def test_who_waits_for_a_prefix_starts_in_the_very_next_step() -> None:
    """A plan queued behind the one that completes the prefix would hold its owner alone."""
    world = World(config=config(chunk_tokens=256, plan_depth=2))
    shared = list(range(40))
    for i in range(4):
        world.submit([*shared, 41 + i], 8)
    world.run()
    assert [len(plan.rows) for plan in world.plans[:2]] == [1, 4]


def test_choices_share_their_prompt_and_count_it_once() -> None:
    world = World()
    ids = prompt(42)
    request = world.submit(ids, 6, temperature=1.0, key=5, n=4)
    world.run()
    said = [tuple(world.of(request, choice).ids) for choice in range(4)]
    assert len(set(said)) == 4, "each choice has a key of its own"
    assert world.of(request, 0).finished.usage.prompt == 42
    assert all(world.of(request, choice).finished.usage.prompt == 0 for choice in (1, 2, 3))
    assert world.runner.computed == 42 + 3 + 4 * 5, "the other choices compute the prompt's last id alone"


def test_a_fork_copies_the_tail_of_a_running_branch() -> None:
    world = World(blocks=256)
    ids = prompt(17)
    parent = world.submit(ids, 40)
    while len(world.of(parent).ids) < 10:
        world.step()
    known = ids + world.of(parent).ids
    before = world.runner.computed
    child = world.submit([1, 2, 3], 5, parent=((parent, 0), 26))
    while not world.of(child).terminal:
        world.step()
    assert world.of(child).ids == world.greedy([*known[:26], 1, 2, 3], 5)
    assert world.of(child).finished.usage.cached == 26
    world.run()
    assert world.of(parent).ids == world.greedy(ids, 40)
    assert world.runner.computed - before < 60


@pytest.mark.parametrize("at", [0, 1, 7, 8, 20, 25])
def test_a_kept_branch_can_be_cut_anywhere(at: int) -> None:
    world = World(blocks=256)
    ids = prompt(18)
    parent = world.submit(ids, 7, keep=True)
    world.run()
    full = ids + world.of(parent).ids
    assert world.stats()["requests"]["kept"] == 1
    child = world.submit([9, 9], 4, parent=((parent, 0), at))
    world.run()
    assert world.of(child).ids == world.greedy([*full[:at], 9, 9], 4)
    assert world.of(child).finished.usage.cached == min(at, 24), "the last id of a branch has no KV"
    world.release(parent)
    blocks = world.stats()["blocks"]
    assert blocks["private"] == blocks["locked"] == 0


def test_a_fork_of_an_unknown_branch_is_refused_by_name() -> None:
    world = World()
    request = world.submit([1], parent=((77, 0), 3), n_prompt=4)
    assert world.rejected[b"client", request].code == "unknown_branch"
    parent = world.submit(prompt(8), 2, tenant="a")
    world.run()
    other = world.submit([1], parent=((parent, 0), 3), tenant="b")
    assert world.rejected[b"client", other].code == "unknown_branch", "a namespace does not see another's branches"


def test_cancel_ends_every_choice_once_and_frees_its_blocks() -> None:
    world = World()
    request = world.submit(prompt(40), 50, n=3)
    queued = world.submit(prompt(20), 5)
    world.step()
    world.step()
    world.cancel(request)
    world.cancel(request)
    world.cancel(queued)
    assert [world.of(request, choice).finished.reason for choice in range(3)] == ["cancelled"] * 3
    assert world.of(queued).finished.reason == "cancelled"
    world.run()
    blocks = world.stats()["blocks"]
    assert blocks["private"] == blocks["locked"] == 0


def test_scores_are_those_of_the_whole_sequence() -> None:
    world = World(blocks=256)
    context = prompt(22)
    choices = [[5], [5, 6], [7, 8, 9, 10, 11]]
    request = world.score(context, choices)
    world.run()
    scored = world.scored[b"client", request]
    assert [len(entries) for entries in scored.logprobs] == [1, 2, 5]
    assert scored.logprobs[0][0] == scored.logprobs[1][0], "a choice may begin another"
    cold = World(blocks=256, config=config(chunk_tokens=7, switches=Switches(tree=False)))
    again = cold.score(context, choices)
    cold.run()
    assert cold.scored[b"client", again].logprobs == scored.logprobs
    assert scored.usage.prompt == 22 + 8
    assert world.runner.computed <= 22 + 8 + 3


def test_prompt_logprobs_are_complete_whatever_is_cached() -> None:
    world = World(blocks=256)
    ids = prompt(40)
    cold = world.submit(ids, 2, logits_from=10, logprobs=0)
    world.run()
    warm = world.submit(ids, 2, logits_from=10, logprobs=0)
    world.run()
    assert len(world.of(cold).prompt_logprobs) == 29
    assert world.of(warm).prompt_logprobs == world.of(cold).prompt_logprobs
    assert world.of(warm).finished.usage.cached == 10
    assert world.of(warm).logprobs == world.of(cold).logprobs


def test_a_full_queue_refuses_with_both_numbers() -> None:
    world = World(device=False, config=config(max_queued=2))
    for _ in range(2):
        world.submit(prompt(5))
    third = world.submit(prompt(5))
    refusal = world.rejected[b"client", third]
    assert refusal.code == "queue_full" and "2" in refusal.message and "--max-queued" in refusal.message


def test_limits_are_refused_at_once_with_both_numbers() -> None:
    world = World(blocks=8, config=config(context=24))
    long = world.submit(prompt(30))
    assert world.rejected[b"client", long].code == "context_length_exceeded"
    assert "30" in world.rejected[b"client", long].message and "24" in world.rejected[b"client", long].message
    world = World(blocks=8)
    big = world.submit(prompt(40))
    assert world.rejected[b"client", big].code == "pool_too_small"
    assert "40" in world.rejected[b"client", big].message and "32" in world.rejected[b"client", big].message
    fits = world.submit(prompt(30), 500)
    world.run()
    assert world.of(fits).finished.reason == "length"
    assert len(world.of(fits).ids) == 3, "the answer ends where the pool does"


def test_a_request_waits_for_the_worker_and_outlives_it() -> None:
    world = World(device=False)
    ids = prompt(30)
    request = world.submit(ids, 20)
    assert not world.step()
    world.new_worker()
    for _ in range(5):
        world.step()
    assert world.of(request).ids
    world.kill_worker()
    world.run()
    assert world.of(request).ids == world.greedy(ids, 20)


def test_deadlines_end_what_runs_and_what_waits() -> None:
    world = World(config=config(max_rows=1))
    running = world.submit(prompt(5), 500, remaining_ms=100)
    queued = world.submit(prompt(6), 5, remaining_ms=50)
    late = world.submit(prompt(7), 5, remaining_ms=0)
    world.run()
    assert world.rejected[b"client", late].code == "timeout"
    for request in (running, queued):
        assert world.of(request).finished.reason == "cancelled"
        assert "timeout" in world.of(request).finished.message


def test_a_row_is_pushed_back_and_says_the_same() -> None:
    world = World(blocks=12, config=config())
    prompts = [prompt(9, seed=i) for i in range(4)]
    requests = [world.submit(ids, 30) for ids in prompts]
    world.run()
    for ids, request in zip(prompts, requests, strict=True):
        assert world.of(request).ids == world.greedy(ids, 30)


def test_three_crashes_end_the_one_row_that_causes_them() -> None:
    """The victim's every step fails; its neighbours must come through."""
    world = World()
    victim = world.submit(prompt(8), 10)
    others = [world.submit(prompt(9, seed=i), 10) for i in (2, 3)]
    world.step()
    while world.step() if not _next_names(world, victim) else world.fail_step():
        pass
    assert world.of(victim).finished.reason == "error"
    for seed, request in zip((2, 3), others, strict=True):
        assert world.of(request).ids == world.greedy(prompt(9, seed=seed), 10)


def _next_names(world: World, request: int) -> bool:
    if not world._sent and not world.schedule():
        return False
    rows = {start.row for start in world.starts if start.ids[:32] == world.starts[0].ids[:32]}
    return any(row.row in rows for row in world._sent[0].rows)


def test_flush_spares_what_is_in_use_and_drain_takes_nothing_new() -> None:
    world = World()
    world.submit(prompt(20), 3)
    world.run()
    running = world.submit(prompt(24, seed=5), 30)
    for _ in range(4):
        world.step()
    locked = world.stats()["blocks"]["locked"]
    assert locked > 0
    assert world.control("flush")["freed_blocks"] > 0
    blocks = world.stats()["blocks"]
    assert blocks["evictable"] == 0 and blocks["locked"] == locked
    world.control("drain")
    refused = world.submit(prompt(4))
    assert world.rejected[b"client", refused].code == "draining"
    world.run()
    assert world.of(running).ids == world.greedy(prompt(24, seed=5), 30)


def test_a_frontend_that_dies_takes_its_requests_and_branches_along() -> None:
    world = World()
    kept = world.submit(prompt(20), 2, keep=True, client=b"a")
    world.run()
    running = world.submit(prompt(30), 20, client=b"a")
    other = world.submit(prompt(30), 5, client=b"b")
    world.step()
    world.take(world.scheduler.forget_client(b"a", world.now))
    world.run()
    assert world.of(running, client=b"a").finished.reason == "cancelled"
    assert world.of(other, client=b"b").ids == world.greedy(prompt(30), 5)
    assert world.stats()["requests"]["kept"] == 0
    assert world.of(kept, client=b"a").finished.reason == "length"


def test_rows_with_a_common_prefix_are_grouped_in_whole_segments_and_levels() -> None:
    world = World(blocks=512, config=config(block_size=16, chunk_tokens=512))
    system = prompt(200)
    branch_a, branch_b = [*system, *prompt(130, seed=2)], [*system, *prompt(130, seed=3)]
    for ids in (branch_a, branch_b):
        for seed in (5, 6):
            world.submit([*ids, *prompt(10, seed=seed)], 20)
    for _ in range(12):
        world.step()
    groups = world.plans[-1].groups
    assert sorted((len(g.rows), g.start, g.stop) for g in groups) == [(2, 192, 320), (2, 192, 320), (4, 0, 192)]


def test_resending_with_all_ids_goes_on_where_the_stream_stopped() -> None:
    world = World()
    ids = prompt(21)
    said = world.greedy(ids, 12)
    request = world.submit([*ids, *said[:5]], 12, n_prompt=21, forced=bytes(5))
    world.run()
    heard = world.of(request)
    assert heard.offset == 26 and heard.ids == said[5:]
    assert heard.finished.usage.completion == 12


def test_what_is_to_be_kept_a_while_outlasts_what_came_later() -> None:
    world = World(blocks=24)
    kept, later = prompt(40, seed=1), prompt(40, seed=2)
    world.submit(kept, 2, retain_s=60.0)
    world.run()
    world.submit(later, 2)
    world.run()
    world.submit(prompt(40, seed=3), 2)
    world.run()
    assert world.stats()["blocks"]["evictable"] > 0
    again = world.submit(kept, 2)
    world.run()
    assert world.of(again).finished.usage.cached >= 20, "a quarter of the pool may be so kept"


def test_a_tenant_keeps_no_more_than_its_quota() -> None:
    world = World(blocks=64, config=config(quotas={"t": 32}))
    for seed in range(4):
        world.submit(prompt(40, seed=seed), 2, tenant="t")
        world.run()
    assert world.stats()["blocks"]["evictable"] == 8


def test_a_row_that_kills_three_workers_ends_with_an_error_that_is_heard() -> None:
    world = World()
    request = world.submit(prompt(8), 10)
    other = world.submit(prompt(9, seed=2), 10)
    for _ in range(3):
        world.schedule()
        world.kill_worker()
    assert world.of(request).finished.reason == "error"
    assert "the worker died" in world.of(request).finished.message
    world.run()
    assert world.of(other).finished.reason == "length"


# ---------------------------------------------------------------- what must not grow, be lost, or be made twice


def test_a_worker_that_dies_clears_the_device_tier() -> None:
    world = World()
    world.submit(prompt(20), 4)
    world.run()
    world.kill_worker()
    kinds = [event["kind"] for event in world.control("events")["events"]]
    assert "stored" in kinds and kinds[-1] == "cleared" and kinds.count("cleared") == 1


@pytest.mark.parametrize("argument", ["²", "9" * 5000, "-1", "x", "１"])
def test_a_bad_control_is_answered_with_an_error(argument: str) -> None:
    world = World()
    assert "got" in world.control("events", argument)["error"]
    assert "known:" in world.control(argument)["error"]


def test_an_ended_kept_branch_is_not_made_twice() -> None:
    world = World()
    request = world.submit(prompt(10), 3, keep=True)
    world.run()
    said = list(world.of(request).ids)
    world.take(world.scheduler.submit(b"client", world.submitted[b"client", request], world.now))
    assert "was not used" in world.rejected.pop((b"client", request)).message
    world.run()
    assert world.of(request).ids == said and len(world.of(request).terminal) == 1
    world.release(request)
    assert world.stats()["blocks"]["private"] == 0 == world.stats()["requests"]["kept"]


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    world = World()
    for _ in range(500):
        world.cancel(world.submit([1, 2, 3], 4, remaining_ms=3_600_000))
    assert len(world.scheduler._deadlines) < 100
    last = world.submit([1, 2, 3], 4, remaining_ms=1000)
    assert world.scheduler.wait_s(world.now) == 1.0
    world.now += 2
    world.run()
    assert world.of(last).finished.reason == "cancelled"


def test_a_backlog_does_not_make_the_queue_remember_those_that_left() -> None:
    queue = BranchQueue("cache-aware", 64)
    queue.shares.enter("")

    def branch(seq: int, hint: int) -> Branch:
        request = Request(b"c", seq, Namespace(), 0, seq, float("inf"))
        made = Branch(request, 0, bytearray(4), 1, Sampling(), Limits(4), Stops())
        made.cached_hint = hint
        return made

    hot = branch(0, 1000)
    queue.add(hot)
    for seq in range(1, 3000):
        cold = branch(seq, seq % 7)
        queue.add(cold)
        queue.note(hot, 1000 + seq)
        queue.admit(cold)
    lane = queue._levels[0][""]
    assert len(lane) == 1 and len(lane._hot) < 100 and lane.hottest() is hot
