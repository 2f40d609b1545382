"""One kind of object, ready to be written: named keys, classes of other keys, what must be together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

from ramet.runtime.constrain.schema.clauses import Clause, absent, close
from ramet.runtime.constrain.schema.context import Conjunction, Context
from ramet.runtime.constrain.schema.objects import Layer, ObjectBranch, Somewhere
from ramet.runtime.constrain.schema.scalars import Literal
from ramet.runtime.constrain.strings.lang import ANY, Lang, both, contains, literals, negate
from ramet.runtime.constrain.strings.walk import finite, surely_empty
from ramet.runtime.protocol.errors import ConstraintTooComplex

PATTERNS = 7
"""Bound of the different key patterns of one object: their combinations are looked at one by one."""

DEMANDS = 5
"""Bound of the different demands on one value that alternatives make: their subsets are looked at one by one."""

LISTED = 200
"""Bound of key names that are written out where propertyNames lists them."""

EMPTY_STATES = 150


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Keys of a language, and what their values are."""

    lang: Lang
    value: Conjunction


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write a member: its value, and the duties that this does."""

    value: Conjunction
    hits: tuple[int, ...] = ()


@dataclass(slots=True)
class ObjectShape:
    """``clauses``: closed under resolution, units left out (they are in ``required``, or the key is gone).

    ``duties``: each is done by a member written in a way that hits it, or by the absence of one of its keys.
    ``ways`` and ``class_ways``: how the members of ``keys`` and ``classes`` may be written.
    """

    keys: dict[str, Conjunction]
    required: frozenset[str]
    classes: list[KeyClass]
    clauses: list[Clause]
    low: int
    high: int | None
    duties: list[frozenset[str]]
    ways: dict[str, list[Way]]
    class_ways: list[list[Way]]

    def children(self) -> Iterator[Conjunction]:
        for ways in (*self.ways.values(), *self.class_ways):
            for way in ways:
                yield way.value

    def productive(self, known: set[Conjunction]) -> bool:
        if not all(self.keys[key] in known for key in self.required):
            return False
        open_ended = any(item.value in known for item in self.classes)
        if not open_ended and sum(value in known for value in self.keys.values()) < self.low:
            return False
        done = {
            hit
            for ways in (*self.ways.values(), *self.class_ways)
            for way in ways
            if way.value in known
            for hit in way.hits
        }
        return all(absent or index in done for index, absent in enumerate(self.duties))


def object_shape(branch: ObjectBranch) -> ObjectShape | None:
    """None if no object fits."""
    layers = branch.closed_layers()
    context = branch.context
    names = context.scalars.strings(branch.names)
    keys: dict[str, Conjunction] = {}
    clauses = list(branch.clauses)
    for key in _named(branch, layers, names):
        value = context.canonical(branch.conjunction(key, layers))
        if (branch.names and not contains(names, key)) or not context.possible(value):
            clauses.append(absent(key))
        else:
            keys[key] = value
    closed = close(clauses)
    if closed is None:
        return None
    gone = {key for clause in closed if len(clause) == 1 for key, sign in clause if not sign}
    required = frozenset(key for clause in closed if len(clause) == 1 for key, sign in clause if sign)
    classes, makers = _classes(branch, layers, names, [*keys, *gone])
    keys = {key: value for key, value in keys.items() if key not in gone}
    high = branch.high if classes or branch.high is None or branch.high < len(keys) else None
    low = branch.low if branch.low > len(required) else 0
    if (high is not None and high < max(low, len(required))) or (not classes and len(keys) < low):
        return None
    duties, ways, class_ways = _duties(branch, keys, required, gone, classes, makers)
    rest = [clause for clause in closed if len(clause) > 1]
    shape = ObjectShape(keys, required, classes, rest, low, high, duties, ways, class_ways)
    done = {hit for every in (*ways.values(), *class_ways) for way in every for hit in way.hits}
    return shape if all(absent or index in done for index, absent in enumerate(duties)) else None


def _named(branch: ObjectBranch, layers: Iterable[Layer], names: Lang) -> list[str]:
    """Keys that are spoken of by name, in the order of the document."""
    found: dict[str, None] = {}
    for layer in layers:
        found.update(dict.fromkeys(layer.properties))
    for clause in branch.clauses:
        found.update((key, None) for key, _ in sorted(clause))
    for duty in branch.duties:
        found.update(dict.fromkeys(sorted(duty.absent)))
        found.update((key, None) for key, _ in duty.values)
        for somewhere in duty.somewhere:
            if somewhere.layer is not None:
                found.update(dict.fromkeys(somewhere.layer.properties))
    if branch.names:
        found.update(dict.fromkeys(finite(names, LISTED) or ()))
    return list(found)


def _classes(
    branch: ObjectBranch, layers: list[Layer], names: Lang, named: list[str]
) -> tuple[list[KeyClass], list[frozenset[Lang]]]:
    """Classes of the other keys, and for each the patterns that its keys match."""
    if branch.names and finite(names, LISTED) is not None:
        return [], []
    patterns: dict[Lang, None] = {}
    for layer in layers:
        if layer.patterns:
            patterns.update((pattern, None) for pattern, _ in layer.patterns)
    for somewhere in (item for duty in branch.duties for item in duty.somewhere):
        if somewhere.among is not None:
            patterns[somewhere.among] = None
        if somewhere.layer is not None:
            patterns.update((pattern, None) for pattern, _ in somewhere.layer.patterns)
    patterns.pop(ANY, None)
    if len(patterns) > PATTERNS:
        raise ConstraintTooComplex(f"an object with more than {PATTERNS} different key patterns")
    others = negate(literals(named))
    classes: list[KeyClass] = []
    makers: list[frozenset[Lang]] = []
    for choice in product((True, False), repeat=len(patterns)):
        matched = frozenset(pattern for pattern, yes in zip(patterns, choice, strict=True) if yes)
        value = _class_value(layers, matched)
        conjunction = branch.context.canonical(value)
        if not branch.context.possible(conjunction):
            continue
        parts = [pattern if yes else negate(pattern) for pattern, yes in zip(patterns, choice, strict=True)]
        free = both((*parts, names))
        lang = both((free, others))
        if free != ANY and surely_empty(lang, EMPTY_STATES):
            continue
        classes.append(KeyClass(lang, conjunction))
        makers.append(matched | {ANY})
    return classes, makers


def _class_value(layers: Iterable[Layer], matched: frozenset[Lang]) -> list[Literal]:
    found: list[Literal] = []
    for layer in layers:
        own = [lit for pattern, lit in layer.patterns if pattern in matched or pattern == ANY]
        found += [lit for lit in (own if own else [layer.additional]) if lit is not None]
    return found


def _duties(
    branch: ObjectBranch,
    keys: dict[str, Conjunction],
    required: frozenset[str],
    gone: set[str],
    classes: list[KeyClass],
    makers: list[frozenset[Lang]],
) -> tuple[list[frozenset[str]], dict[str, list[Way]], list[list[Way]]]:
    """Duties that are not done already, and the ways to write members in view of them."""
    if not branch.duties:
        return [], {key: [Way(value)] for key, value in keys.items()}, [[Way(item.value)] for item in classes]
    open_duties = [duty for duty in branch.duties if not duty.absent & gone and all(key in keys for key in duty.absent)]
    asked: dict[str, list[tuple[int, Literal | None]]] = {key: [] for key in keys}
    class_asked: list[list[tuple[int, Literal | None]]] = [[] for _ in classes]
    for index, duty in enumerate(open_duties):
        for key, lit in duty.values:
            if key in keys:
                asked[key].append((index, lit))
        for somewhere in duty.somewhere:
            for key in keys:
                if _concerns_key(somewhere, key):
                    asked[key].append((index, somewhere.lit))
            for position in range(len(classes)):
                if _concerns_class(somewhere, makers[position]):
                    class_asked[position].append((index, somewhere.lit))
    return (
        [duty.absent - required for duty in open_duties],
        {key: _ways(branch.context, value, asked[key]) for key, value in keys.items()},
        [_ways(branch.context, item.value, class_asked[place]) for place, item in enumerate(classes)],
    )


def _concerns_key(somewhere: Somewhere, key: str) -> bool:
    if somewhere.layer is not None:
        return not somewhere.layer.matched(key)
    return somewhere.among is not None and contains(somewhere.among, key)


def _concerns_class(somewhere: Somewhere, made_of: frozenset[Lang]) -> bool:
    if somewhere.layer is not None:
        return not any(pattern in made_of for pattern, _ in somewhere.layer.patterns)
    return somewhere.among in made_of


def _ways(context: Context, value: Conjunction, asked: list[tuple[int, Literal | None]]) -> list[Way]:
    """The plain way, and one for each set of further demands on the value that can be met together."""
    always: set[int] = set()
    by_literal: dict[Literal, set[int]] = {}
    for index, lit in asked:
        targets = () if lit is None else context.canonical((lit,))
        if not targets or context.implied(value, targets[0]):
            always.add(index)
        else:
            by_literal.setdefault(targets[0], set()).add(index)
    literals_asked = [lit for lit in by_literal if context.possible((*value, lit))]
    if len(literals_asked) > DEMANDS:
        raise ConstraintTooComplex("a key on whose value too many alternatives depend")
    ways = [Way(value, tuple(sorted(always)))]
    for size in range(1, len(literals_asked) + 1):
        for chosen in combinations(literals_asked, size):
            more = context.canonical((*value, *chosen))
            if context.possible(more):
                hits = always.union(*(by_literal[lit] for lit in chosen))
                ways.append(Way(more, tuple(sorted(hits))))
    return ways
