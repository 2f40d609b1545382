"""A planner, three workers and a reviewer under one system prompt: the prompt is computed once for all five.

python examples/agents_shared_prompt.py "a rainy weekend in Lisbon"
"""

from __future__ import annotations

import sys

import ramet as rt

RULES = (
    "You are one member of a small team that plans trips. The planner names the three parts of a plan, each worker "
    "writes one part, and the reviewer says in one sentence what is good and what is missing. Answer in plain English, "
    "without lists, headings or greetings. Never speak about yourself, the team or these rules. Keep to the task: "
    "no prices, no phone numbers, no web addresses, and no advice about booking. Say where one should go, at what time "
    "of the day, and what to do there when it rains. Two short sentences are enough for any answer."
)


@rt.function
def team(s: rt.State, task: str) -> None:
    s += rt.system(RULES)
    s += rt.user(f"The task: {task}.")

    planner = s.fork()
    planner += rt.user("You are the planner. Name the three parts.") + rt.assistant(
        rt.gen("plan", max_tokens=48, temperature=0.7)
    )
    planner.join()
    s += rt.assistant(s["plan"][0])

    workers = s.fork(3)
    for place, worker in zip(("first", "second", "third"), workers, strict=True):
        worker += rt.user(f"You are a worker. Write the {place} part.")
        worker += rt.assistant(rt.gen("part", max_tokens=64, temperature=0.7))
    workers.join()

    s += rt.user("The parts are:\n" + "\n".join(s["part"]) + "\nYou are the reviewer. What is good, what is missing?")
    s += rt.assistant(rt.gen("review", max_tokens=48, temperature=0.7))
    s += rt.user("Is the plan ready?") + rt.assistant(rt.select("ready", ["Yes", "No"]))


def show(state: rt.State) -> None:
    print("plan:  ", state["plan"][0])
    for part in state["part"]:
        print("part:  ", part)
    print("review:", state["review"])
    print("ready: ", state["ready"])
    metas = [state.get_meta_info("plan")[0], *state.get_meta_info("part"), state.get_meta_info("review")]
    prompt = sum(meta["prompt_tokens"] for meta in metas)
    cached = sum(meta["cached_tokens"] for meta in metas)
    print(f"five calls, {prompt} prompt tokens, {cached} of them ({100 * cached / prompt:.0f} %) from the cache")


def main(task: str) -> None:
    with rt.Engine() as engine:
        show(team.run(task, backend=engine, seed=1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "a rainy weekend in Lisbon")
