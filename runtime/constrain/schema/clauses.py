"""Which keys may be present together: clauses, closed under resolution so that no text runs into a wall."""

from __future__ import annotations

from collections.abc import Iterable

from ramet.runtime.protocol.errors import ConstraintTooComplex

Clause = frozenset[tuple[str, bool]]
"""At least one of: the key is present (True), the key is absent (False)."""

LIMIT = 400


def present(key: str) -> Clause:
    return frozenset(((key, True),))


def absent(key: str) -> Clause:
    return frozenset(((key, False),))


def _tautology(clause: Clause) -> bool:
    return any((key, not sign) in clause for key, sign in clause)


def _reduced(clauses: Iterable[Clause]) -> list[Clause]:
    """Without tautologies and clauses that another one implies."""
    kept: list[Clause] = []
    units: set[tuple[str, bool]] = set()
    longer: list[Clause] = []
    for clause in sorted(set(clauses), key=len):
        if len(clause) == 1:
            units |= clause
        elif _tautology(clause) or not units.isdisjoint(clause) or any(other <= clause for other in longer):
            continue
        else:
            longer.append(clause)
        kept.append(clause)
    return kept


def close(clauses: Iterable[Clause]) -> list[Clause] | None:
    """All that follows from the clauses by resolution, subsumed ones left out; None if they contradict each other."""
    kept = _reduced(clauses)
    units = {next(iter(clause)) for clause in kept if len(clause) == 1}
    if len(units) == len(kept):
        return None if any((key, not sign) in units for key, sign in units) else kept
    while True:
        fresh: set[Clause] = set()
        for index, left in enumerate(kept):
            for right in kept[:index]:
                clashes = [item for item in left if (item[0], not item[1]) in right]
                if len(clashes) == 1:
                    (key, sign) = clashes[0]
                    resolvent = (left - {(key, sign)}) | (right - {(key, not sign)})
                    if not any(other <= resolvent for other in kept):
                        fresh.add(frozenset(resolvent))
        if not fresh:
            break
        kept = _reduced([*kept, *fresh])
        if len(kept) > LIMIT:
            raise ConstraintTooComplex("the schema ties too many keys to each other")
    return None if frozenset() in kept else kept
