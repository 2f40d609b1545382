"""Everything the scheduler knows, in one place; the parts that work on it are handed the same object."""

from __future__ import annotations

from collections import OrderedDict, deque

from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.messages import Drop, ToFrontend, ToWorker

from .admission import Lengths
from .branch import Branch, Request, Row
from .constraints import Constraints
from .groups import Grouping
from .memory import Memory
from .queue import BranchQueue
from .stats import Counters

Key = tuple[bytes, int, int]
"""(client, id of the Submit, choice)."""

_RECENT_BRANCHES = 4096
_RECENT_BYTES = 16 * 1024 * 1024


class Books:
    """Mutable state of one scheduler. Ordered containers only: the same calls give the same plans."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.lengths = Lengths()
        self.memory: Memory | None = None
        self.queue = BranchQueue(config.switches.order, config.max_overtakes)
        self.running: dict[int, Row] = {}
        self.returning: dict[int, Row] = {}
        """Rows that were pushed back while a sent plan names them: their branches requeue when it lands."""
        self.parked: dict[int, Branch] = {}
        """Ended branches that still have a row (kept, or with unseated children), oldest first, by row id."""
        self.requests: dict[tuple[bytes, int], Request] = {}
        self.branches: dict[Key, Branch] = {}
        """Branches that are open or kept."""
        self.recent: OrderedDict[Key, Branch] = OrderedDict()
        """Branches that ended a moment ago: a fork that crossed their end on the way still finds their ids."""
        self.suspects: dict[int, Branch] = {}
        """Branches blamed for two crashes, by id(): they run alone."""
        self.constraints = Constraints()
        self.outbox: list[tuple[bytes, ToFrontend]] = []
        self.to_worker: list[ToWorker] = []
        """What goes to the worker with, or without, the next plan."""
        self.grouping = Grouping()
        self.step = 0
        self.rows_made = 0
        self.arrivals = 0
        self.draining = False
        self.now = 0.0
        """Of the last schedule or apply."""
        self.step_times: deque[tuple[float, float]] = deque(maxlen=256)
        self._recent_bytes = 0

    def emit(self, client: bytes, message: ToFrontend) -> None:
        self.outbox.append((client, message))

    def take_outbox(self) -> list[tuple[bytes, ToFrontend]]:
        out, self.outbox = self.outbox, []
        return out

    def drop_at_worker(self, row: Row) -> None:
        if row.start is None:
            self.to_worker.append(Drop(row.id))

    def find(self, client: bytes, branch_id: int, choice: int) -> Branch | None:
        key = (client, branch_id, choice)
        return self.branches.get(key) or self.recent.get(key)

    def register(self, branch: Branch) -> None:
        self.branches[branch.request.client, branch.request.id, branch.choice] = branch

    def forget(self, branch: Branch) -> None:
        """The branch is over; its ids are remembered for a while."""
        key = (branch.request.client, branch.request.id, branch.choice)
        if self.branches.pop(key, None) is None:
            return
        self.recent[key] = branch
        self._recent_bytes += len(branch.ids)
        while len(self.recent) > _RECENT_BRANCHES or self._recent_bytes > _RECENT_BYTES:
            _, old = self.recent.popitem(last=False)
            self._recent_bytes -= len(old.ids)

    def forget_client(self, client: bytes) -> None:
        for key in [key for key in self.recent if key[0] == client]:
            self._recent_bytes -= len(self.recent.pop(key).ids)
