"""Recording: a model's ``forward`` runs once over symbols, and leaves the list of its ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ramet.kernels.cpu.weights import PackedWeight
from ramet.kernels.ops import RopeSpec


@dataclass(frozen=True, eq=False)
class Symbol:
    """A value of the forward pass: [N, width], or [L, width] where ``wanted``. Compared by identity."""

    width: int
    wanted: bool = False


@dataclass(frozen=True, eq=False)
class Embed:
    out: Symbol
    table: PackedWeight
    factor: float


@dataclass(frozen=True, eq=False)
class Norm:
    out: Symbol
    x: Symbol
    weight: PackedWeight
    eps: float


@dataclass(frozen=True, eq=False)
class Matmul:
    out: Symbol
    x: Symbol
    weight: PackedWeight


@dataclass(frozen=True, eq=False)
class Add:
    out: Symbol
    a: Symbol
    b: Symbol


@dataclass(frozen=True, eq=False)
class SiluMul:
    out: Symbol
    gate: Symbol
    up: Symbol


@dataclass(frozen=True, eq=False)
class GeluMul:
    out: Symbol
    gate: Symbol
    up: Symbol


@dataclass(frozen=True, eq=False)
class Bias:
    out: Symbol
    x: Symbol
    vector: PackedWeight


@dataclass(frozen=True, eq=False)
class Rope:
    out: Symbol
    x: Symbol
    heads: int
    spec: RopeSpec


@dataclass(frozen=True, eq=False)
class Store:
    k: Symbol
    v: Symbol
    layer: int


@dataclass(frozen=True, eq=False)
class Attention:
    out: Symbol
    q: Symbol
    layer: int
    heads: int
    scale: float
    window: int


@dataclass(frozen=True, eq=False)
class TakeRows:
    out: Symbol
    x: Symbol


Op: TypeAlias = Embed | Norm | Matmul | Add | SiluMul | GeluMul | Bias | Rope | Store | Attention | TakeRows


@dataclass
class Recorder:
    """Implements ``ramet.kernels.ops.Ops``: every op checks its shapes and is noted down."""

    ops: list[Op] = field(default_factory=list)

    def embed(self, table: PackedWeight, factor: float = 1.0) -> Symbol:
        out = Symbol(table.shape[1])
        self.ops.append(Embed(out, table, factor))
        return out

    def rms_norm(self, x: Symbol, weight: PackedWeight, eps: float) -> Symbol:
        _same("rms_norm", x.width % weight.shape[0], 0, weight.name)
        out = Symbol(x.width, x.wanted)
        self.ops.append(Norm(out, x, weight, eps))
        return out

    def matmul(self, x: Symbol, weight: PackedWeight) -> Symbol:
        _same("matmul", x.width, weight.shape[1], weight.name)
        out = Symbol(weight.shape[0], x.wanted)
        self.ops.append(Matmul(out, x, weight))
        return out

    def add(self, a: Symbol, b: Symbol) -> Symbol:
        _same("add", a.width, b.width)
        out = Symbol(a.width, a.wanted)
        self.ops.append(Add(out, a, b))
        return out

    def silu_mul(self, gate: Symbol, up: Symbol) -> Symbol:
        _same("silu_mul", gate.width, up.width)
        out = Symbol(gate.width, gate.wanted)
        self.ops.append(SiluMul(out, gate, up))
        return out

    def gelu_mul(self, gate: Symbol, up: Symbol) -> Symbol:
        _same("gelu_mul", gate.width, up.width)
        out = Symbol(gate.width, gate.wanted)
        self.ops.append(GeluMul(out, gate, up))
        return out

    def bias(self, x: Symbol, vector: PackedWeight) -> Symbol:
        _same("bias", x.width, vector.shape[0], vector.name)
        out = Symbol(x.width, x.wanted)
        self.ops.append(Bias(out, x, vector))
        return out

    def rope(self, x: Symbol, heads: int, spec: RopeSpec) -> Symbol:
        _same("rope", x.width, heads * 2 * len(spec.inv_freq))
        out = Symbol(x.width, x.wanted)
        self.ops.append(Rope(out, x, heads, spec))
        return out

    def store_kv(self, k: Symbol, v: Symbol, layer: int) -> None:
        _same("store_kv", k.width, v.width)
        self.ops.append(Store(k, v, layer))

    def attention(self, q: Symbol, layer: int, heads: int, scale: float, window: int = 0) -> Symbol:
        out = Symbol(q.width)
        self.ops.append(Attention(out, q, layer, heads, scale, window))
        return out

    def take_rows(self, x: Symbol) -> Symbol:
        out = Symbol(x.width, wanted=True)
        self.ops.append(TakeRows(out, x))
        return out


def _same(op: str, given: int, wanted: int, weight: str = "") -> None:
    if given != wanted:
        raise ValueError(f"{op}{f' with {weight}' if weight else ''} got width {given}, where {wanted} is needed")
