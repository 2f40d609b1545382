"""Rows 1 to 3: a long constant beginning, a short question, a short answer."""

from __future__ import annotations

from made_text import words

import ramet as rt


@rt.function
def mmlu(s: rt.State, examples: str, question: str) -> None:
    s += f"The following are questions about one subject.\n{examples}\nQuestion: {question}\nAnswer:"
    s += rt.gen("answer", max_tokens=1)


@rt.function
def hellaswag(s: rt.State, shots: str, activity: str, endings: list[str]) -> str:
    s += f"{shots}\n{activity}" + rt.select("ending", endings)
    return str(s["ending"])


@rt.function
def hellaswag_greedy(s: rt.State, shots: str, activity: str) -> None:
    endings = [" He sat down.", " He sat down by the fire.", " They all laughed.", " She went home."]
    s += shots + activity + rt.select("ending", endings, choices_method=rt.greedy_token_selection)


@rt.function
def gsm8k(s: rt.State, examples: str, question: str, size: int) -> None:
    s += f"{examples}\nQuestion: {question}\nAnswer:"
    s += rt.gen("answer", max_tokens=size, stop="Question", ignore_eos=True)


def mmlu_items(full: bool) -> list[tuple[object, ...]]:
    subjects = [words(500 if full else 90, subject) for subject in range(4)]
    count = 12 if full else 2
    return [(subjects[i % 4], words(60 + i * 7 % 60 if full else 15, 100 + i)) for i in range(4 * count)]


def hellaswag_items(full: bool) -> list[tuple[object, ...]]:
    shots = words(1000 if full else 100, 5)
    endings = [[f" {words(15 if full else 5, 300 + 4 * i + k)}" for k in range(4)] for i in range(16 if full else 2)]
    return [(shots, words(40 if full else 10, 200 + i), row) for i, row in enumerate(endings)]


def hellaswag_greedy_items(full: bool) -> list[tuple[object, ...]]:
    shots = words(600 if full else 80, 6)
    return [(shots, words(30 if full else 10, 400 + i)) for i in range(16 if full else 2)]


def gsm8k_items(full: bool) -> list[tuple[object, ...]]:
    shots = words(700 if full else 120, 7)
    return [
        (shots, words(40 + i * 11 % 60 if full else 15, 500 + i), 48 if full else 8) for i in range(8 if full else 2)
    ]
