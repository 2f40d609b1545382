"""Rows 6, 7, 16 and 17: steps of agents over a text that grows."""

from __future__ import annotations

from made_text import words

import ramet as rt

FACTS = {"tea": "Tea comes from leaves.", "bread": "Bread is baked."}


@rt.function
def react_replay(s: rt.State, template: str, question: str, observations: list[str], size: int) -> None:
    s += f"{template}\nQuestion: {question}\n"
    for i, observation in enumerate(observations):
        trial = s.fork(1)
        trial += f"Thought {i + 1}:" + rt.gen("trial", max_tokens=size, stop="Observation", ignore_eos=True)
        trial.join()
        s += f"Thought {i + 1}: {observation}\n"
    s += "Answer:" + rt.gen("answer", max_tokens=size, ignore_eos=True)


@rt.function
def react_actions(s: rt.State, template: str, question: str, size: int) -> str:
    s += f"{template}\nQuestion: {question}\n"
    for i in range(2):
        s += f"Thought {i + 1}:" + rt.gen(f"thought_{i}", max_tokens=size, stop="\n", ignore_eos=True)
        s += "\nAction: " + rt.select(f"action_{i}", ["Search", "Finish"])
        if s[f"action_{i}"] == "Finish":
            s += "[" + rt.gen("answer", max_tokens=size, ignore_eos=True)
            return str(s["answer"])
        s += "[" + rt.gen(f"query_{i}", max_tokens=size, ignore_eos=True) + "]\nObservation: nothing was found.\n"
    return "none"


@rt.function
def react_live(s: rt.State, template: str, question: str, size: int) -> str:
    """Not compiled: the tool is Python, and looks at what was generated."""
    s += f"{template}\nQuestion: {question}\nSearch for: "
    s += rt.gen("query", regex="(tea|bread)")
    found = FACTS.get(s["query"], "Nothing was found.")
    s += f"\nObservation: {found}\nAnswer:" + rt.gen("answer", max_tokens=size, ignore_eos=True)
    return str(s["answer"])


@rt.function
def poignancy(s: rt.State, persona: str, event: str) -> None:
    s += rt.user(f"On a scale of 1 to 10, rate how much an event moves somebody. {words(90, 90)}\n{persona}\n{event}")
    s += rt.assistant(rt.gen("rating", regex="[1-9]", max_tokens=2))


@rt.function
def agent_event(s: rt.State, persona: str, action: str, size: int) -> None:
    s += f"Task: turn an action into a subject, a verb and an object. {words(130, 91)}\n{persona} is {action}\n("
    s += rt.gen("event", max_tokens=size, stop=[")", "}"], ignore_eos=True)
    s.sync()


def weather(city: str) -> dict[str, str]:
    """The weather of a city."""
    return {"city": city, "sky": "clear"}


def search(query: str, limit: int = 3) -> list[str]:
    """Finds pages."""
    return [f"{query} {i}" for i in range(min(limit, 3))]


@rt.function
def tool_agent(s: rt.State, rules: str, question: str, size: int) -> None:
    s += rt.system(rules, tools=[weather, search]) + rt.user(question)
    for i in range(2):
        s += rt.assistant(
            rt.gen(f"answer_{i}", tools=[weather, search], tool_choice="required", max_tokens=size, max_rounds=6)
        )
        s += rt.user("And what else?")
    s += rt.assistant(rt.gen("end", max_tokens=size))


PERSONAS = ("Ada, who builds bridges", "Ben, who grows apples", "Cora, who teaches music")


@rt.function
def debate(s: rt.State, rules: str, size: int, rounds: int) -> None:
    s += rules
    for turn in range(3 * rounds):
        speaker = s.fork(1)
        speaker += f"\nYou are {PERSONAS[turn % 3]}. You say:"
        speaker += rt.gen(f"said_{turn}", max_tokens=size, ignore_eos=True)
        speaker.join()
        s += f"\n{PERSONAS[turn % 3]}: {s[f'said_{turn}'][0]}"


def replay_items(full: bool) -> list[tuple[object, ...]]:
    template, steps = words(1000 if full else 100, 100), 4 if full else 2
    observations = [[words(80 if full else 10, 110 + 9 * i + k) for k in range(steps)] for i in range(6 if full else 1)]
    return [(template, words(25, 101 + i), row, 16 if full else 4) for i, row in enumerate(observations)]


def react_items(full: bool) -> list[tuple[object, ...]]:
    template = words(800 if full else 80, 120)
    return [(template, words(25 if full else 8, 121 + i), 16 if full else 4) for i in range(8 if full else 2)]


def poignancy_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(30, 130 + i % 6), words(20, 140 + i)) for i in range(24 if full else 3)]


def event_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(20, 150 + i % 6), words(30, 160 + i), 8 if full else 4) for i in range(24 if full else 3)]


def tool_items(full: bool) -> list[tuple[object, ...]]:
    rules = words(900 if full else 40, 170)
    return [
        (rules, f"How is the weather in {city}?", 6) for city in ("Oslo", "Rome", "Lima", "Bonn")[: 4 if full else 1]
    ]


def debate_items(full: bool) -> list[tuple[object, ...]]:
    return [(words(400 if full else 60, 180 + i), 24 if full else 4, 3 if full else 1) for i in range(2 if full else 1)]
