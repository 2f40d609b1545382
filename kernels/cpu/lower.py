"""Lowering: fused ops become the steps of a C++ program, and values share memory once their last reader is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ramet.kernels import _cpu
from ramet.kernels.cpu import fuse, record
from ramet.kernels.cpu.fuse import Fused, Fuser
from ramet.kernels.cpu.record import Op, Symbol
from ramet.kernels.ops import RopeSpec


def lower(program: _cpu.Program, ops: list[Op], result: Symbol) -> None:
    """Adds the steps of ``ops`` to ``program``, which then leaves ``result`` after each run."""
    fused = Fuser(ops, result).fuse()
    slot = _allocate(program, fused, result, fuse.forms(ops))
    for op in fused:
        _emit(program, op, slot)
    vocabulary = min((op.table.shape[0] for op in ops if isinstance(op, record.Embed)), default=0)
    heads_per_kv, kv_width = _head_shapes(ops)
    program.result(slot(result), vocabulary, heads_per_kv, kv_width)


def _head_shapes(ops: list[Op]) -> tuple[int, int]:
    """Query heads per KV head, and the width of a layer's keys (-1: nothing is stored); layers must agree."""
    queries = {(op.q.width, op.heads) for op in ops if isinstance(op, record.Attention)}
    keys = {width for op in ops if isinstance(op, record.Store) for width in (op.k.width, op.v.width)}
    if len(queries) > 1 or len(keys) > 1:
        raise ValueError("layers with different numbers or sizes of heads are not supported")
    kv_width = keys.pop() if keys else -1
    return (queries.pop()[0] // kv_width if queries and kv_width > 0 else 0), kv_width


def _takes_over(op: Fused, last: dict[Symbol, int], index: int) -> Symbol | None:
    """The input whose memory the output of ``op`` takes over."""
    if isinstance(op, fuse.MatmulAdd):
        return op.a
    return op.x if isinstance(op, record.Rope) and last[op.x] == index else None


def _allocate(
    program: _cpu.Program, ops: list[Fused], result: Symbol, forms: dict[Symbol, frozenset[str]]
) -> Callable[[Symbol], int]:
    last: dict[Symbol, int] = {}
    for i, op in enumerate(ops):
        made = fuse.output(op)
        last.update(dict.fromkeys([*fuse.inputs(op), *([made] if made else [])], i))
    last[result] = len(ops)
    slots: dict[Symbol, int] = {}
    free: dict[tuple[int, bool, frozenset[str]], list[int]] = {}

    def shape(symbol: Symbol) -> tuple[int, bool, frozenset[str]]:
        return symbol.width, symbol.wanted, forms.get(symbol, frozenset())

    for i, op in enumerate(ops):
        made, old = fuse.output(op), _takes_over(op, last, i)
        if made is not None:
            pool = free.get(shape(made))
            if old is not None:
                slots[made] = slots[old]
            elif pool:
                slots[made] = pool.pop()
            else:
                slots[made] = program.value(made.width, made.wanted)
            for form in forms.get(made, ()):
                program.also(slots[made], form)
        for symbol in {*fuse.inputs(op), *([made] if made else [])} - {old}:
            if last[symbol] == i:
                free.setdefault(shape(symbol), []).append(slots[symbol])
    return slots.__getitem__


def _emit(program: _cpu.Program, op: Fused, slot: Callable[[Symbol], int]) -> None:
    match op:
        case record.Embed():
            program.embed(op.table.native, op.factor, slot(op.out))
        case record.Norm():
            program.norm(slot(op.x), op.weight.native, op.weight.shape[0], op.eps, slot(op.out))
        case record.Matmul():
            program.matmul(slot(op.x), op.weight.native, slot(op.out), False)
        case record.Add():
            program.add(slot(op.a), slot(op.b), slot(op.out))
        case record.SiluMul():
            program.silu_mul(slot(op.gate), slot(op.up), slot(op.out))
        case record.GeluMul():
            program.gelu_mul(slot(op.gate), slot(op.up), slot(op.out))
        case record.Bias():
            program.bias(slot(op.x), op.vector.native, slot(op.out))
        case record.Rope():
            program.rotate(slot(op.x), slot(op.out), op.heads, _rope(program, op.spec))
        case record.Store():
            program.store(slot(op.k), slot(op.v), op.layer)
        case record.Attention():
            program.attention(slot(op.q), op.layer, op.heads, op.scale, op.window, slot(op.out))
        case record.TakeRows():
            program.take_rows(slot(op.x), slot(op.out))
        case fuse.Convert():
            program.convert(slot(op.x))
        case fuse.MatmulAdd():
            program.matmul(slot(op.x), op.weight.native, slot(op.out), True)
        case fuse.GateUp():
            program.gate_up(slot(op.x), op.gate.native, op.up.native, slot(op.out))
        case fuse.Qkv():
            natives = [weight.native for weight in (op.q, op.k, op.v)]
            biases = [weight.native for weight in op.biases]
            rope = _rope(program, op.spec)
            program.qkv(slot(op.x), natives, biases, rope, 2 * len(op.spec.inv_freq), op.layer, slot(op.out))


def _rope(program: _cpu.Program, spec: RopeSpec) -> int:
    return program.rope(np.ascontiguousarray(spec.inv_freq, np.float32), spec.interleaved)
