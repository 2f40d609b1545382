"""Tree of thought: every plan is carried out in two ways, every result answered in two, and the model picks the best.

The tree has one root and shared branches: each text is computed once, whatever hangs below it.

    python examples/tree_of_thought.py "Anna has 3 boxes of 12 pens and gives 7 away. How many are left?"
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import ramet as rt

BREADTH = 2
STEPS = (
    ("plan", "Make a plan of two short steps. Do not carry it out yet."),
    ("work", "Carry the plan out, step by step."),
    ("answer", "Give the answer in one short sentence."),
)


def grow(branches: Iterable[rt.State], name: str, request: str) -> list[rt.State]:
    """Every branch, forked; all children generate at the same time."""
    children: list[rt.State] = []
    for branch in branches:
        group = branch.fork(BREADTH)
        group += rt.user(request) + rt.assistant(rt.gen(name, max_tokens=60, temperature=0.8))
        children.extend(group)
    return children


@rt.function
def solve(s: rt.State, question: str) -> str:
    s += rt.system("You solve small problems. Be brief and exact.")
    s += rt.user(question)
    leaves: list[rt.State] = [s]
    for name, request in STEPS:
        leaves = grow(leaves, name, request)
    for leaf in leaves:
        leaf += rt.user("Is this answer right?") + rt.assistant(rt.select("right", ["Yes", "No"]))
    return str(max(leaves, key=confidence)["answer"])


def confidence(leaf: rt.State) -> float:
    """How much likelier "Yes" is than "No", in log-probability per token."""
    yes, no = leaf.get_meta_info("right")["normalized_prompt_logprobs"]
    return float(yes - no)


def main(question: str) -> None:
    with rt.Engine() as engine:
        state = solve.run(question, backend=engine, seed=1)
        print(state.result())
        tokens = engine.stats()["tokens"]
        print("tokens:", tokens)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Anna has 3 boxes of 12 pens and gives 7 away. How many are left?")
