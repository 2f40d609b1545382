"""Rows 4, 5, 8 and 15: branches that share all that stands in front of them."""

from __future__ import annotations

from made_text import words

import ramet as rt

STEPS = ("Make a plan.", "Carry it out.", "Look back at it.", "Give the answer.")


@rt.function
def tree_of_thought(s: rt.State, question: str, size: int, levels: int) -> list[str]:
    s += rt.system("You solve problems step by step.") + rt.user(question)
    leaves: list[rt.State] = [s]
    for step in STEPS[:levels]:
        grown: list[rt.State] = []
        for leaf in leaves:
            forks = leaf.fork(2)
            forks += rt.user(step) + rt.assistant(rt.gen("thought", max_tokens=size, ignore_eos=True, temperature=1.0))
            grown.extend(forks)
        leaves = grown
    return [leaf["thought"] for leaf in leaves]


@rt.function
def beam_of_thought(s: rt.State, question: str, size: int, levels: int) -> str:
    """Not compiled: which branches live on is decided by their scores."""
    s += rt.system("You solve problems step by step.") + rt.user(question)
    beam: list[rt.State] = [s]
    for step in STEPS[:levels]:
        grown: list[rt.State] = []
        for leaf in beam:
            forks = leaf.fork(2)
            forks += rt.user(step) + rt.assistant(rt.gen("thought", max_tokens=size, ignore_eos=True, temperature=1.0))
            grown.extend(forks)
        beam = rt.top(grown, rt.score(grown, after="\nIs this right?", choices=[" Yes", " No"]), k=2)
    s["thought"] = beam[0]["thought"]
    return str(beam[0]["thought"])


TIP = words(160, 11)


@rt.function
def expand_tip(s: rt.State, template: str, tip: str, size: int) -> None:
    s += f"{template}\nThe tip: {tip}\nIn full:" + rt.gen("detail", max_tokens=size, temperature=0, ignore_eos=True)


@rt.function
def skeleton_of_thought(s: rt.State, topic: str, template: str, size: int, count: int) -> str:
    s += f"Tips for {topic}.\n"
    for i in range(count):
        s += f"{i + 1}." + rt.gen(f"tip_{i}", max_tokens=size, stop=["\n"], ignore_eos=True)
        s += "\n"
    details = [expand_tip(template, s[f"tip_{i}"], size) for i in range(count)]
    for i, detail in enumerate(details):
        s += f"\n{i + 1}. {s[f'tip_{i}']}: {detail['detail']}"
    s += "\nIn short:" + rt.gen("summary", max_tokens=size, ignore_eos=True)
    return str(s["summary"])


DIMENSIONS = ("clarity", "truth", "order", "style", "depth", "length")


@rt.function
def judge(s: rt.State, article: str, size: int, dimensions: int) -> None:
    s += rt.system("You judge articles.") + rt.user(article)
    forks = s.fork(dimensions)
    for name, fork in zip(DIMENSIONS, forks, strict=False):
        fork += rt.user(f"Judge its {name}, in a few words. {words(40, 17)}")
        fork += rt.assistant("Judgement:" + rt.gen("judgement", max_tokens=size, stop="END", ignore_eos=True))
    forks.join()
    s += rt.user("The judgements:\n" + "\n".join(s["judgement"]) + "\nGive a score from 1 to 10.")
    s += rt.assistant(rt.gen("score", regex="([1-9]|10)", max_tokens=4))


@rt.function
def self_consistency(s: rt.State, question: str, size: int, n: int) -> None:
    s += rt.user(question)
    s += rt.assistant("Let us think." + rt.gen("reasoning", max_tokens=size, n=n, temperature=0.9, ignore_eos=True))


@rt.function
def multi_chain(s: rt.State, question: str, size: int, chains: int) -> None:
    s += f"Question: {question}\n"
    forks = s.fork(chains)
    forks += lambda i: f"Way {i + 1}:"
    forks += rt.gen("way", max_tokens=size, temperature=0.7, stop="Question", ignore_eos=True)
    forks.join()
    s += "\n".join(f"Way {i + 1}: {s['way'][i]}" for i in range(chains))
    s += "\nAnswer:" + rt.gen("answer", max_tokens=size, ignore_eos=True)


@rt.function
def cot_decoding(s: rt.State, question: str, size: int, width: int) -> list[str]:
    """Not compiled: it goes on from the likeliest first tokens, whatever they are."""
    s += f"Question: {question}\nAnswer:"
    probe = s.fork(1)
    probe += rt.gen("first", max_tokens=0, return_logprob=True, top_logprobs_num=width, return_text_in_logprobs=True)
    first = probe[0].get_meta_info("first")["output_top_logprobs"][0]
    forks = s.fork(width)
    for fork, (_, _, text) in zip(forks, first, strict=True):
        fork += text + rt.gen("rest", max_tokens=size, ignore_eos=True)
    forks.join()
    return list(s["rest"])


def tree_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(160 if full else 40, 20 + i), 20 if full else 4, 4 if full else 2) for i in range(2 if full else 1)]


def beam_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(160 if full else 40, 30 + i), 16 if full else 4, 4 if full else 2) for i in range(2 if full else 1)]


def skeleton_items(full: bool) -> list[tuple[object, ...]]:
    template = words(330 if full else 60, 40)
    return [(words(4, 41 + i), template, 16 if full else 5, 5 if full else 2) for i in range(4 if full else 1)]


def judge_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(600 if full else 60, 50 + i), 24 if full else 5, 6 if full else 2) for i in range(4 if full else 1)]


def consistency_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(300 if full else 40, 60 + i), 16 if full else 5, 8 if full else 3) for i in range(4 if full else 1)]


def chain_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(200 if full else 40, 70 + i), 16 if full else 5, 5 if full else 2) for i in range(4 if full else 1)]


def cot_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(200 if full else 40, 80 + i), 16 if full else 4, 5 if full else 2) for i in range(4 if full else 1)]
