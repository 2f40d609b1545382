"""What type checkers know of programs: each line says what `reveal_type` gives, for mypy and pyright."""
# ruff: noqa

from __future__ import annotations

from pydantic import BaseModel

import ramet as rt
from typing_extensions import reveal_type


class Plan(BaseModel):
    steps: list[str]


plan = rt.gen("plan", schema=Plan)
age = rt.gen("age", dtype=int)
free = rt.gen("free", max_tokens=4)
pick = rt.select("pick", ["a", "b"])

reveal_type(plan)  # Gen[Plan]
reveal_type(age)  # Gen[int]
reveal_type(free)  # Gen[str]
reveal_type(pick)  # Select
reveal_type(rt.gen_int("n"))  # Gen[int]


@rt.function
def program(s: rt.State, topic: str) -> Plan:
    s += topic + plan + age + free + pick
    reveal_type(s[plan])  # Plan
    reveal_type(s[age])  # int
    reveal_type(s[free])  # str
    reveal_type(s[pick])  # str
    return s[plan]


@rt.function
async def asynchronous(s: rt.AsyncState, topic: str) -> int:
    s += topic + plan + age
    reveal_type(await s[plan])  # Plan
    reveal_type(await s[age])  # int
    return await s[age]


reveal_type(program)  # Function[Plan]
reveal_type(program.run("tea"))  # State[Plan]
reveal_type(program.run("tea").result())  # Plan
reveal_type(program.bind(topic="x").run().result())  # Plan
reveal_type(program.compile().run("tea").result())  # Plan
reveal_type(asynchronous.run("tea").result())  # int
reveal_type(program.run("tea").ret_value)  # Plan | None
