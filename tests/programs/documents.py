"""Rows 9 to 14: documents, structured answers and conversations."""

from __future__ import annotations

from made_text import words
from pydantic import BaseModel, ConfigDict, Field

import ramet as rt


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    country: str = Field(max_length=12)
    inhabitants: int = Field(ge=0, le=99_999_999)
    coastal: bool


@rt.function
def json_whole(s: rt.State, text: str) -> City:
    city = rt.gen("city", schema=City)
    s += f"Extract the city from the text as JSON.\n{text}\nJSON:" + city
    return s[city]


@rt.function
def json_regex(s: rt.State, text: str) -> None:
    s += f"Give the facts of the text.\n{text}\nFacts: "
    s += rt.gen("facts", regex=r'\{"year": [0-9]{4}, "kind": "(town|river|person)"\}')


@rt.function
def json_by_field(s: rt.State, text: str) -> None:
    s += f"{text}\nAs JSON:\n"
    with s.var_scope("json_output"):
        s += '{"name": ' + rt.gen_string("name", max_tokens=8, stop=["\n"])
        s += ', "year": ' + rt.gen("year", regex="[0-9]{4}")
        s += ', "count": ' + rt.gen("count", regex="[1-9][0-9]?")
        s += ', "open": ' + rt.gen("open", dtype=bool)
        s += ', "kind": ' + rt.select("kind", ['"town"', '"river"', '"person"'])
        s += "}"


@rt.function
def document_qa(s: rt.State, document: str, question: str, size: int) -> None:
    s += rt.system("Answer from the document.") + rt.user(f"{document}\n\nQuestion: {question}")
    s += rt.assistant(rt.gen("answer", max_tokens=size, ignore_eos=True))


@rt.function
def multi_document(s: rt.State, first: str, second: str, question: str, size: int) -> None:
    s += rt.user_begin() + "Read these documents.\n"
    forks = s.fork(2)
    forks += [f"Document 1: {first}\n", f"Document 2: {second}\n"]
    forks.join("concate_and_append")
    s += f"Question: {question}" + rt.user_end()
    s += rt.assistant(rt.gen("answer", max_tokens=size, ignore_eos=True))


@rt.function
def chat(s: rt.State, turns: list[str], size: int) -> None:
    for i, turn in enumerate(turns):
        s += rt.user(turn) + rt.assistant(rt.gen(f"answer_{i}", max_tokens=size, ignore_eos=True))


@rt.function
def mtbench(s: rt.State, first: str, second: str, size: int) -> list[str]:
    s += rt.system("You are a helpful assistant.")
    with s.user():
        s += first
    with s.assistant():
        s += rt.gen("answer_1", max_tokens=size, ignore_eos=True)
    s += rt.user(second) + rt.assistant(rt.gen("answer_2", max_tokens=size, ignore_eos=True))
    return [s["answer_1"], s["answer_2"]]


@rt.function
def rag(s: rt.State, demos: str, passages: str, question: str, size: int) -> None:
    s += f"{demos}\n\nContext:\n{passages}\n\nQuestion: {question}\nAnswer:"
    s += rt.gen("answer", max_tokens=size, n=2, stop=["\n\n", "---"], temperature=0.7, ignore_eos=True)


def json_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(200 + i * 13 % 100 if full else 25, 200 + i),) for i in range(8 if full else 2)]


def qa_items(full: bool) -> list[tuple[object, ...]]:
    documents = [words(1200 if full else 100, 220 + k) for k in range(2)]
    return [(documents[i % 2], words(20 if full else 8, 230 + i), 16 if full else 4) for i in range(12 if full else 4)]


def multi_items(full: bool) -> list[tuple[object, ...]]:
    one, two = words(500 if full else 60, 240), words(500 if full else 60, 241)
    return [(one, two, words(20 if full else 8, 250 + i), 16 if full else 4) for i in range(6 if full else 2)]


def chat_items(full: bool) -> list[tuple[object, ...]]:
    turns = [[words(256 + 37 * k if full else 25, 260 + 9 * i + k) for k in range(4 if full else 2)] for i in range(3)]
    return [(row, 6 if full else 3) for row in turns[: 3 if full else 1]]


def long_chat_items(full: bool) -> list[tuple[object, ...]]:
    turns = [[words(200 if full else 25, 300 + 9 * i + k) for k in range(3 if full else 2)] for i in range(2)]
    return [(row, 96 if full else 8) for row in turns[: 2 if full else 1]]


def mtbench_items(full: bool) -> list[tuple[object, ...]]:
    return [
        (words(70 if full else 20, 340 + i), words(40, 360 + i), 64 if full else 5) for i in range(4 if full else 2)
    ]


def rag_items(full: bool) -> list[tuple[object, ...]]:
    demos = words(900 if full else 80, 380)
    return [
        (demos, words(250 if full else 30, 381 + i), words(15, 400 + i), 16 if full else 4)
        for i in range(6 if full else 2)
    ]
