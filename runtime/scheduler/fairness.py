"""Shares of tenants: deficit round robin over tokens.

Each tenant that has something queued gets a quantum of tokens per round; what its requests compute is charged to it. A
tenant in debt waits for as many rounds as it takes. Nobody saves up for later: who comes back after a pause has at
most the credit of the best of those that are there. Nor is a debt forgiven because its queue is empty for a moment, or
requests sent one by one would always go first: it is remembered while others are there, and rounds work it off.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection

QUANTUM = 64
"""Tokens of credit per round: small beside a request, so that no tenant is far ahead at any time."""

DEBTORS = 1024
"""Tenants with nothing open whose debts are remembered: the latest."""


class FairShare:
    """Tenants are known while they have open branches."""

    def __init__(self) -> None:
        self._credit: OrderedDict[str, float] = OrderedDict()
        """By tenant, in the order of their turns."""
        self._open: dict[str, int] = {}
        self._debts: OrderedDict[str, float] = OrderedDict()
        """Of tenants that have nothing open, below 0."""

    def enter(self, tenant: str) -> None:
        """A branch of ``tenant`` was accepted."""
        count = self._open.get(tenant, 0)
        self._open[tenant] = count + 1
        if not count:
            best = max(self._credit.values(), default=0.0)
            self._credit[tenant] = min(best, self._debts.pop(tenant, best))

    def leave(self, tenant: str) -> None:
        """A branch of ``tenant`` has ended."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]
            credit = self._credit.pop(tenant)
            if credit < 0:
                self._debts[tenant] = credit
                if len(self._debts) > DEBTORS:
                    self._debts.popitem(last=False)
            if not self._open:
                self._debts.clear()  # nobody was there to wait for it

    def charge(self, tenant: str, tokens: int) -> None:
        """``tokens`` were computed for ``tenant``."""
        if tenant in self._credit:
            self._credit[tenant] -= tokens

    def next(self, backlogged: Collection[str]) -> str:
        """Whose turn it is among those that have something queued (at least one)."""
        if len(backlogged) == 1:
            return next(iter(backlogged))
        if all(self._credit[tenant] <= 0 for tenant in backlogged):
            self._new_rounds(backlogged)
        for tenant in self._credit:
            if tenant in backlogged and self._credit[tenant] > 0:
                return tenant
        raise AssertionError("a round gives somebody credit")

    def _new_rounds(self, backlogged: Collection[str]) -> None:
        """As many rounds as it takes until one of them has credit; turns go on where the last round stopped."""
        rounds = math.floor(-max(self._credit[tenant] for tenant in backlogged) / QUANTUM) + 1
        for tenant in [tenant for tenant in self._credit if tenant in backlogged]:
            self._credit[tenant] += rounds * QUANTUM
            self._credit.move_to_end(tenant)
        for tenant, credit in list(self._debts.items()):
            if credit + rounds * QUANTUM >= 0:
                del self._debts[tenant]
            else:
                self._debts[tenant] = credit + rounds * QUANTUM
