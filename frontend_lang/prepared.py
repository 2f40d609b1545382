"""The expressions of a graph, made once for all of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .choices import as_method
from .constraint import Constraint
from .expr import Expr, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, ShowTools, Text
from .graph import Block, ChooseOp, GenOp, Graph, RoleOp, ScopeOp, SelectOp, TextOp, ToolsOp, ToolSpec
from .options import make_options
from .tools import Tool, ToolUse
from .where import Where

ExprOp = TextOp | ToolsOp | GenOp | SelectOp | RoleOp | ScopeOp


class Prepared:
    """``exprs``: the expressions of its slots, where the program was compiled here: they have parsers of typed values,
    and are what a caller asks a state for. ``tools``: the functions behind its tools, by name."""

    def __init__(self, graph: Graph, exprs: Sequence[Expr] = (), tools: Mapping[str, Tool] | None = None) -> None:
        self.graph = graph
        self._given, self._tools = exprs, tools or {}
        self._exprs: dict[int, Expr] = {}
        self._prepare(graph.body)

    def __getitem__(self, op: ExprOp) -> Expr:
        """Of any op but a text that quotes values."""
        return self._exprs[id(op)]

    def where(self, op: TextOp | ToolsOp | GenOp | SelectOp) -> Where:
        return Where(op.file or self.graph.file, op.line, self.graph.name)

    def _prepare(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, ChooseOp):
                for case in op.cases.values():
                    self._prepare(case)
            elif isinstance(op, (TextOp, ToolsOp, GenOp, SelectOp, RoleOp, ScopeOp)):
                expr = self._expr(op)
                if expr is not None:
                    self._exprs[id(op)] = expr

    def _expr(self, op: ExprOp) -> Expr | None:
        if isinstance(op, (GenOp, SelectOp)) and op.slot < len(self._given):
            return self._given[op.slot]
        match op:
            case TextOp():
                texts = [part for part in op.parts if isinstance(part, str)]
                return Text("".join(texts), self.where(op)) if len(texts) == len(op.parts) else None
            case ToolsOp():
                return ShowTools(tuple(map(self._tool, op.tools)), self.where(op))
            case SelectOp():
                return Select(op.name, op.choices, as_method(op.method), where=self.where(op))
            case GenOp():
                return self._gen(op)
            case RoleOp():
                where = Where(self.graph.file, 0, self.graph.name)
                return RoleBegin(op.role, where) if op.begin else RoleEnd(op.role, where)
            case ScopeOp():
                where = Where(self.graph.file, 0, self.graph.name)
                return ScopeBegin(op.name, where) if op.begin else ScopeEnd(op.name, where)

    def _gen(self, op: GenOp) -> Expr:
        constraint = None if op.constraint is None else Constraint(op.constraint, op.what, op.whole)
        use, asked = None, op.tools
        if asked is not None:
            use = ToolUse(tuple(map(self._tool, asked.tools)), asked.max_rounds, asked.choice, asked.errors)
        return Gen(op.name, make_options(op.options), constraint, None, self.where(op), use)

    def _tool(self, spec: ToolSpec) -> Tool:
        return self._tools.get(spec.name) or Tool(spec.name, spec.description, spec.parameters)
