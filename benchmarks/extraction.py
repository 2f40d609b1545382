"""The extraction job over HTTP: short documents that share a long instruction, against any OpenAI-compatible servers.

    python benchmarks/extraction.py --url ramet=http://127.0.0.1:8000 --url vllm=http://127.0.0.1:8001

The servers take turns, ``--rounds`` times. Each turn begins with a line of its own, so that nothing is left in a cache
from the turn before. Printed are records per second of each turn and their median, the tokens of a record, how many of
the records validate, and how much of the prompts came from the cache, beside what a perfect cache would give.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema

from ramet.extraction.optimum import optimum

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"enum": ["delivery", "payment", "defect", "return", "other"]},
        "order": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "urgent": {"type": "boolean"},
        "reason": {"type": "string", "minLength": 8, "maxLength": 60},
    },
    "required": ["topic", "order", "urgent", "reason"],
    "additionalProperties": False,
}
TASK = """You sort the messages that customers send to a shop. Answer with one JSON record alone. Its fields are:

topic: delivery, if something has not come, or came late; payment, if money is the trouble; defect, if something does \
not work; return, if something is to go back; else other.
order: the number of the order, two capital letters, a dash and four digits, copied letter by letter.
urgent: true if the customer asks for an answer soon, or is angry.
reason: what happened, in a few words of the message itself."""
RULES = (
    "Do not guess what the message does not say.",
    "A message may speak of several things; take the one that the customer wants something done about.",
    "Numbers of streets, telephones and prices are not orders.",
    "Customers who only say thanks want nothing done.",
    "A parcel that was opened counts as a defect if the goods are damaged, and as delivery if parts are missing.",
    "A voucher that is not accepted is a payment.",
    "Being polite does not make a message less urgent.",
)
"""Repeated until the instruction has its length."""


@dataclass(frozen=True)
class Turn:
    """What one server did in one turn. ``best``: what a perfect cache would have given, as a share of the prompts."""

    seconds: float
    records: int
    valid: int
    prompt: int
    cached: int
    output: int
    best: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.rate:6.2f} records/s  {self.output / self.records:5.1f} tokens each  "
            f"valid {self.valid}/{self.records}  cached {self.cached / self.prompt:6.1%} (at best {self.best:.1%})"
        )


def instruction(words: int) -> str:
    text, number = TASK, 0
    while len(text.split()) < words:
        text += f"\n{number + 1}. {RULES[number % len(RULES)]}"
        number += 1
    return text


def messages(count: int, seed: int = 1) -> list[str]:
    """Invented messages of customers, of 40 to 110 words."""
    dice = random.Random(seed)
    opening = ("Hello,", "Dear shop,", "Good morning,", "To whom it may concern:")
    trouble = (
        "has not arrived",
        "was charged twice",
        "came with a broken handle",
        "is too small",
        "arrived without a lid",
    )
    filler = (
        "I have been a customer of yours for many years.",
        "My neighbour recommended your shop to me.",
        "I called twice and nobody answered.",
        "The weather has been terrible here, so I cannot come by.",
        "It was meant as a present for my sister.",
        "Last year everything went well.",
        "I live on the third floor at 42 Mill Road.",
    )
    found = []
    for _ in range(count):
        code = "".join(dice.choice("ABCDEFGHKLMNPQRSTUVWXYZ") for _ in range(2))
        parts = [
            f"my order {code}-{dice.randint(0, 9999):04d} {dice.choice(trouble)}.",
            *dice.sample(filler, dice.randint(2, 5)),
        ]
        dice.shuffle(parts)
        found.append(" ".join([dice.choice(opening), *parts, dice.choice(("Please answer soon!", "Thank you."))]))
    return found


def request(model: str, system: str, text: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "message", "schema": SCHEMA, "strict": True},
        },
        "temperature": 0,
        "max_tokens": 128,
    }


async def turn(url: str, model: str, system: str, texts: Sequence[str], window: int) -> Turn:
    """All ``texts``, at most ``window`` at a time."""
    gate = asyncio.Semaphore(window)
    limits = httpx.Limits(max_connections=window, max_keepalive_connections=window)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(text: str) -> dict[str, Any]:
            async with gate:
                reply = await client.post("/v1/chat/completions", json=request(model, system, text))
                reply.raise_for_status()
                answer: dict[str, Any] = reply.json()
                return answer

        began = time.monotonic()
        answers = await asyncio.gather(*map(one, texts))
        seconds = time.monotonic() - began
        prompts = [await ids(client, model, system, text) for text in texts]
    usages = [answer["usage"] for answer in answers]
    best, total = optimum((prompt, ()) for prompt in prompts)
    return Turn(
        seconds,
        len(answers),
        sum(map(valid, answers)),
        sum(usage["prompt_tokens"] for usage in usages),
        sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for usage in usages),
        sum(usage["completion_tokens"] for usage in usages),
        best / total,
    )


async def ids(client: httpx.AsyncClient, model: str, system: str, text: str) -> list[int]:
    """The prompt as the server encodes it."""
    conversation = request(model, system, text)["messages"]
    reply = await client.post("/tokenize", json={"model": model, "messages": conversation})
    reply.raise_for_status()
    tokens: list[int] = reply.json()["tokens"]
    return tokens


def valid(answer: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", required=True, metavar="NAME=URL", help="a server; give several")
    parser.add_argument("--model", default="default", help="the name that all servers know the model by")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--words", type=int, default=430, help="of the instruction (430: some 600 tokens)")
    parser.add_argument("--window", type=int, default=64, help="requests at a time")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    servers = dict(given.split("=", 1) for given in arguments.url)
    texts, base = messages(arguments.documents), instruction(arguments.words)
    turns: dict[str, list[Turn]] = {name: [] for name in servers}
    for round_ in range(arguments.rounds):
        for name, url in servers.items():
            # The first line differs from turn to turn: what an earlier one left in the cache is of no use.
            system = f"Job {time.time_ns()} of the mail room.\n{base}"
            done = asyncio.run(turn(url.rstrip("/"), arguments.model, system, texts, arguments.window))
            turns[name].append(done)
            print(f"round {round_ + 1}  {name:12} {done}", flush=True)
    medians = {name: statistics.median(each.rate for each in found) for name, found in turns.items()}
    first = next(iter(medians))
    for name, rate in medians.items():
        print(
            f"median   {name:12} {rate:6.2f} records/s"
            + ("" if name == first else f"  {first} is {medians[first] / rate:.2f} times as fast")
        )


if __name__ == "__main__":
    main()
