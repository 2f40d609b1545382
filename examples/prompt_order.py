"""The same debate with two orders of the prompt: what is shared by all must stand first.

python examples/prompt_order.py
"""

from __future__ import annotations

import ramet as rt

RULES = "You take part in a debate. " + (
    "Be brief, be fair, answer the last speaker, and never repeat what was said before. " * 12
)
SPEAKERS = ("Ada, who builds bridges", "Ben, who grows wine", "Cleo, who flies planes")
TURNS = 9


@rt.function
def speak(s: rt.State, prompt: str) -> None:
    s += prompt + "Say:" + rt.gen("said", max_tokens=24, temperature=0, ignore_eos=True)


@rt.function
def debate(s: rt.State, persona_first: bool) -> None:
    transcript = ""
    for turn in range(TURNS):
        speaker = SPEAKERS[turn % len(SPEAKERS)]
        if persona_first:
            prompt = f"You are {speaker}.\n{RULES}\n{transcript}"
        else:
            prompt = f"{RULES}\n{transcript}You are {speaker}.\n"
        transcript += f"{speaker.split(',')[0]}: {speak(prompt=prompt)['said']}\n"


def tokens(engine: rt.Engine) -> tuple[int, int]:
    counted = engine.stats()["tokens"]
    assert isinstance(counted, dict)
    return counted["prompt"], counted["cached"]


def main() -> None:
    with rt.Engine() as engine:
        for persona_first in (True, False):
            engine.flush_cache()
            prompt_before, cached_before = tokens(engine)
            debate.run(persona_first=persona_first, backend=engine).sync()
            prompt, cached = (
                now - before for now, before in zip(tokens(engine), (prompt_before, cached_before), strict=True)
            )
            place = "first" if persona_first else "last"
            print(f"persona {place:5}: {prompt} prompt tokens, {cached} cached ({100 * cached / prompt:.0f} %)")


if __name__ == "__main__":
    main()
