"""Fusing: recorded ops that pay to run together become one.

  * rms_norm and the rounding of its result to int8 or bf16, which the matmuls after it read, are one pass over the row
    (the step does it by itself where its output is read so; other producers get a ``Convert`` after them);
  * the projections of an attention layer, their rotation and the storing of keys and values (``Qkv``);
  * two matmuls of the same input and silu_mul (``GateUp``): gate and up never leave the cache;
  * matmul and the addition of the residual (``MatmulAdd``): written straight into the residual's rows.

Everything fused gives the same bits as its parts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

from ramet.kernels.cpu import record
from ramet.kernels.cpu.record import Op, Symbol
from ramet.kernels.cpu.weights import PackedWeight
from ramet.kernels.ops import RopeSpec


@dataclass(frozen=True, eq=False)
class Convert:
    """Brings ``x`` into the forms that matmuls read it in."""

    x: Symbol


@dataclass(frozen=True, eq=False)
class MatmulAdd:
    """out = a + x @ weight.T, in the memory of ``a``, which nothing reads afterwards."""

    out: Symbol
    a: Symbol
    x: Symbol
    weight: PackedWeight


@dataclass(frozen=True, eq=False)
class GateUp:
    out: Symbol
    x: Symbol
    gate: PackedWeight
    up: PackedWeight


@dataclass(frozen=True, eq=False)
class Qkv:
    """out = the rotated queries; rotated keys and values go to the cache."""

    out: Symbol
    x: Symbol
    q: PackedWeight
    k: PackedWeight
    v: PackedWeight
    biases: list[PackedWeight]
    spec: RopeSpec
    layer: int


Fused: TypeAlias = Op | Convert | MatmulAdd | GateUp | Qkv


def inputs(op: Fused) -> list[Symbol]:
    return [getattr(op, name) for name in ("x", "a", "b", "gate", "up", "k", "v", "q") if _is_symbol(op, name)]


def output(op: Fused) -> Symbol | None:
    return None if isinstance(op, (record.Store, Convert)) else op.out


def _converts(op: Fused) -> bool:
    """Whether the step of ``op`` also brings its output into other forms."""
    if isinstance(op, record.Attention):
        return op.q.width // op.heads % 32 == 0
    return isinstance(op, record.Norm | GateUp)


def _is_symbol(op: Fused, name: str) -> bool:
    return isinstance(getattr(op, name, None), Symbol)


def forms(ops: list[Op]) -> dict[Symbol, frozenset[str]]:
    """The values that matmuls read in int8 or bf16, with these."""
    found: dict[Symbol, frozenset[str]] = {}
    for op in ops:
        if isinstance(op, record.Matmul) and op.weight.form != "float":
            found[op.x] = found.get(op.x, frozenset()) | {op.weight.form}
    return found


class Fuser:
    def __init__(self, ops: list[Op], result: Symbol) -> None:
        self.ops = ops
        self.uses = Counter(symbol for op in ops for symbol in inputs(op))
        self.uses[result] += 1
        self.last_use = {symbol: i for i, op in enumerate(ops) for symbol in inputs(op)}
        self.last_use[result] = len(ops)
        self.made_by: dict[Symbol, Op] = {}
        for op in ops:
            made = output(op)
            if made is not None:
                self.made_by[made] = op

    def fuse(self) -> list[Fused]:
        """The ops in order, each fused group at the place of its last member."""
        converted = forms(self.ops)
        groups: dict[int, Fused] = {}
        covered: set[int] = set()
        numbers = {id(op): i for i, op in enumerate(self.ops)}
        for i, op in enumerate(self.ops):
            found = self._group(i, op)
            if found is None or any(numbers[id(member)] in covered for member in found[1]):
                continue
            groups[i] = found[0]
            covered |= {numbers[id(member)] for member in found[1]}
        fused: list[Fused] = []
        for i, op in enumerate(self.ops):
            if i in covered and i not in groups:
                continue
            final = groups.get(i, op)
            fused.append(final)
            made = output(final)
            if made in converted and not _converts(final):
                fused.append(Convert(made))
        return fused

    def _group(self, index: int, op: Op) -> tuple[Fused, list[Op]] | None:
        """The fused op that ends in ``op``, and its members (``op`` among them)."""
        if isinstance(op, record.SiluMul):
            return self._gate_up(op)
        if isinstance(op, record.Add):
            return self._residual(index, op)
        if isinstance(op, record.Store):
            return self._qkv(index, op)
        return None

    def _alone(self, symbol: Symbol) -> Op | None:
        """The producer of a value that is read once."""
        return self.made_by.get(symbol) if self.uses[symbol] == 1 else None

    def _gate_up(self, op: record.SiluMul) -> tuple[Fused, list[Op]] | None:
        gate, up = self._alone(op.gate), self._alone(op.up)
        if not isinstance(gate, record.Matmul) or not isinstance(up, record.Matmul) or gate.x is not up.x:
            return None
        return GateUp(op.out, gate.x, gate.weight, up.weight), [gate, up, op]

    def _residual(self, index: int, op: record.Add) -> tuple[Fused, list[Op]] | None:
        product = self._alone(op.b)
        if not isinstance(product, record.Matmul) or self.last_use[op.a] != index or op.a is product.x:
            return None
        return MatmulAdd(op.out, op.a, product.x, product.weight), [product, op]

    def _projection(self, symbol: Symbol, turned: bool) -> _Projection | None:
        """matmul, perhaps bias, and rope if ``turned``, that lead to ``symbol``."""
        op = self._alone(symbol)
        rope = bias = None
        if turned:
            if not isinstance(op, record.Rope):
                return None
            rope, op = op, self._alone(op.x)
        if isinstance(op, record.Bias):
            bias, op = op, self._alone(op.x)
        return _Projection(op, bias, rope) if isinstance(op, record.Matmul) else None

    def _qkv(self, index: int, op: record.Store) -> tuple[Fused, list[Op]] | None:
        reader = next((o for o in self.ops[index:] if isinstance(o, record.Attention) and o.layer == op.layer), None)
        q = self._projection(reader.q, True) if reader else None
        k, v = self._projection(op.k, True), self._projection(op.v, False)
        if not (reader and q and k and v and q.rope and k.rope):
            return None
        members = [*q.members, *k.members, *v.members]
        biases = [part.bias.vector for part in (q, k, v) if part.bias]
        width = 2 * len(q.rope.spec.inv_freq)
        if (
            any(self.ops.index(member) > index for member in members)
            or any(part.matmul.x is not q.matmul.x for part in (k, v))
            or not _same_rope(q.rope.spec, k.rope.spec)
            or len(biases) not in (0, 3)
            or width % 16
            or width * reader.heads != reader.q.width
        ):
            return None
        weights = (q.matmul.weight, k.matmul.weight, v.matmul.weight)
        return Qkv(reader.q, q.matmul.x, *weights, biases, q.rope.spec, op.layer), [*members, op]


@dataclass(frozen=True, eq=False)
class _Projection:
    matmul: record.Matmul
    bias: record.Bias | None
    rope: record.Rope | None

    @property
    def members(self) -> list[Op]:
        return [self.matmul, *([self.bias] if self.bias else []), *([self.rope] if self.rope else [])]


def _same_rope(a: RopeSpec, b: RopeSpec) -> bool:
    return a.interleaved == b.interleaved and bool((a.inv_freq == b.inv_freq).all())
