"""The call structures of programs that people run, without their words: who shares what with whom.

Each function gives the requests of one program. Lengths follow the public benchmarks that the programs come from (see
``docs/scheduler.md``); contents are names. Warm-up calls and fork hints, which ramet does not need, are left out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from ramet.runtime.scheduler.trace import Segment, TraceRequest

Prompt = tuple[Segment, ...]


class Script:
    """Builds a list of requests. ``part``: tokens that nothing else shares, unless the part is used again."""

    def __init__(self, seed: int) -> None:
        self.requests: list[TraceRequest] = []
        self.dice = random.Random(seed)
        self._names = itertools.count()

    def part(self, low: int, high: int = 0) -> Segment:
        return (f"part {next(self._names)}", self.dice.randint(low, high) if high else low)

    def call(self, prompt: Prompt, output: int, *, after: Sequence[int] = (), score: bool = False, n: int = 1) -> int:
        """Index of the new request."""
        self.requests.append(TraceRequest(prompt, output, after=tuple(after), score=score, n=n))
        return len(self.requests) - 1

    def said(self, index: int) -> Segment:
        """What request ``index`` generates."""
        return (f"out {index}", self.requests[index].output)


def mmlu_5shot(s: Script) -> None:
    for _ in range(4):
        shots = s.part(500)
        for _ in range(40):
            s.call((shots, s.part(60, 140)), 1)


def hellaswag_select(s: Script) -> None:
    shots = s.part(1500)
    for _ in range(60):
        question = s.part(40, 70)
        for _ in range(4):
            s.call((shots, question, s.part(15, 35)), 0, score=True)


def gsm8k_5shot(s: Script) -> None:
    shots = s.part(700)
    for _ in range(60):
        s.call((shots, s.part(40, 120)), 120)


def tree_of_thought(s: Script, branches: int = 2) -> None:
    for _ in range(8):
        leaves: list[tuple[Prompt, tuple[int, ...]]] = [((s.part(160),), ())]
        for asked in (70, 40, 30, 25):
            ask = s.part(asked)
            grown = []
            for prefix, after in leaves:
                for _ in range(branches):
                    call = s.call((*prefix, ask), 60, after=after)
                    grown.append(((*prefix, ask, s.said(call)), (call,)))
            leaves = grown


def skeleton_of_thought(s: Script) -> None:
    template, system = s.part(330), s.part(40)
    for _ in range(10):
        text: Prompt = (system, s.part(8))
        tips: list[int] = []
        for _ in range(5):
            text = (*text, s.part(2))
            tips.append(s.call(text, 10, after=tips[-1:]))
            text = (*text, s.said(tips[-1]))
        for tip in tips:
            s.call((template, s.part(12), s.said(tip)), 100, after=(tips[-1],))


def react_replay(s: Script) -> None:
    template = s.part(1100)
    for _ in range(15):
        text: Prompt = (template, s.part(25))
        last: list[int] = []
        for _ in range(s.dice.randint(3, 6)):
            text = (*text, s.part(3))
            last = [s.call(text, 60, after=last)]
            text = (*text, s.part(60, 120))


def generative_agents(s: Script) -> None:
    templates = [s.part(n) for n in (90, 130, 25, 330, 200)]
    last: list[int] = []
    for _ in range(60):
        template = s.dice.choices(templates, [1, 2, 2, 3, 2])[0]
        last = [s.call((template, s.part(30, 110)), 8, after=last)]


def llm_judge(s: Script) -> None:
    system, dimensions = s.part(35), [s.part(85) for _ in range(6)]
    for _ in range(10):
        article: Prompt = (system, s.part(600))
        judges = [s.call((*article, dimension), 120) for dimension in dimensions]
        s.call((*article, s.part(12), *(s.said(judge) for judge in judges), s.part(20)), 2, after=judges)


def json_one_schema(s: Script) -> None:
    instruction = s.part(60)
    for _ in range(40):
        s.call((instruction, s.part(300, 600), s.part(20)), 80)


def json_by_field(s: Script) -> None:
    instruction = s.part(20)
    for _ in range(20):
        text: Prompt = (instruction, s.part(300, 600), s.part(25))
        last: list[int] = []
        for _ in range(5):
            text = (*text, s.part(5))
            last = [s.call(text, 6, after=last)]
            text = (*text, s.said(last[0]))


def long_document_qa(s: Script) -> None:
    system = s.part(20)
    for _ in range(3):
        document = s.part(1500)
        for _ in range(10):
            s.call((system, document, s.part(15, 40)), 40)


def question_first_qa(s: Script) -> None:
    """The bad order of ``long_document_qa``: nothing but the system prompt can be shared."""
    system = s.part(20)
    for _ in range(3):
        document = s.part(1500)
        for _ in range(10):
            s.call((system, s.part(15, 40), document), 40)


def _chat(s: Script, low: int, high: int) -> None:
    texts: list[Prompt] = [() for _ in range(12)]
    last: list[list[int]] = [[] for _ in range(12)]
    for _ in range(4):
        for i in range(12):
            texts[i] = (*texts[i], s.part(256, 512))
            last[i] = [s.call(texts[i], s.dice.randint(low, high), after=last[i])]
            texts[i] = (*texts[i], s.said(last[i][0]))


def chat_short(s: Script) -> None:
    _chat(s, 4, 8)


def chat_long(s: Script) -> None:
    _chat(s, 256, 512)


def mtbench(s: Script) -> None:
    system = s.part(25)
    for _ in range(20):
        text: Prompt = (system, s.part(70))
        first = s.call(text, 200)
        s.call((*text, s.said(first), s.part(40)), 200, after=(first,))


def dspy_rag(s: Script) -> None:
    demos = s.part(900)
    for _ in range(40):
        s.call((demos, s.part(250, 450)), 60)


def self_consistency(s: Script) -> None:
    for _ in range(10):
        s.call((s.part(300),), 100, n=8)


def tool_agents(s: Script) -> None:
    system = s.part(1200)
    texts: list[Prompt] = [(system, s.part(40)) for _ in range(6)]
    last: list[list[int]] = [[] for _ in range(6)]
    for _ in range(5):
        for i in range(6):
            last[i] = [s.call(texts[i], 40, after=last[i])]
            texts[i] = (*texts[i], s.said(last[i][0]), s.part(80))


def _debate(s: Script, persona_last: bool) -> None:
    rules, transcript = s.part(400), (s.part(50),)
    personas = [s.part(20) for _ in range(3)]
    last: list[int] = []
    for _ in range(3):
        for persona in personas:
            prompt = (rules, *transcript, persona) if persona_last else (rules, persona, *transcript)
            last = [s.call(prompt, 100, after=last)]
            transcript = (*transcript, s.part(5), s.said(last[0]))


def debate(s: Script) -> None:
    _debate(s, persona_last=True)


def debate_persona_first(s: Script) -> None:
    _debate(s, persona_last=False)


def no_sharing(s: Script) -> None:
    for _ in range(40):
        s.call((s.part(100, 400),), 100)


# (row of the table, program, expected share with one token per page, with 16); None: not in the table
PROGRAMS: list[tuple[str, Callable[[Script], None], float | None, float | None]] = [
    ("1", mmlu_5shot, 0.81, 0.81),
    ("2", hellaswag_select, 0.98, 0.97),
    ("3", gsm8k_5shot, 0.88, 0.86),
    ("4", tree_of_thought, 0.97, 0.96),
    ("5", skeleton_of_thought, 0.92, 0.89),
    ("6", react_replay, 0.93, 0.92),
    ("7", generative_agents, 0.68, 0.64),
    ("8", llm_judge, 0.71, 0.69),
    ("9", json_one_schema, 0.11, 0.09),
    ("10", json_by_field, 0.81, 0.80),
    ("11", long_document_qa, 0.89, 0.89),
    ("11b", question_first_qa, None, None),
    ("12a", chat_short, 0.60, 0.60),
    ("12b", chat_long, 0.75, 0.75),
    ("13", mtbench, 0.74, 0.71),
    ("14", dspy_rag, 0.70, 0.70),
    ("15", self_consistency, 0.87, 0.84),
    ("16", tool_agents, 0.92, 0.92),
    ("17", debate, 0.82, 0.81),
    ("17b", debate_persona_first, 0.65, 0.64),
    ("18", no_sharing, 0.0, 0.0),
]


def requests_of(program: Callable[[Script], None], seed: int = 0) -> list[TraceRequest]:
    script = Script(seed)
    program(script)
    return script.requests
