"""Roles of a conversation, and what else may be appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .expr import Appendable, Chain, Expr, Reasoning, RoleBegin, RoleEnd, ShowTools, as_expr
from .tools import Tool, as_tools
from .where import caller


def role(name: str, content: Appendable | None = None) -> Expr:
    """``content`` as one message of role ``name``; without content, an empty message."""
    where = caller()
    inside = as_expr(content).parts() if content is not None else ()
    return Chain((RoleBegin(name, where), *inside, RoleEnd(name, where)))


def system(content: Appendable | None = None, *, tools: Sequence[Callable[..., object] | Tool] | None = None) -> Expr:
    """A system message. ``tools``: functions that it shows to the model, for `gen` with ``tools=``."""
    if tools is None:
        return role("system", content)
    where = caller()
    inside = as_expr(content).parts() if content is not None else ()
    return Chain((RoleBegin("system", where), *inside, ShowTools(as_tools(tools), where), RoleEnd("system", where)))


def user(content: Appendable | None = None) -> Expr:
    """A user message."""
    return role("user", content)


def assistant(content: Appendable | None = None) -> Expr:
    """An assistant message; usually holds a `gen`."""
    return role("assistant", content)


def system_begin() -> Expr:
    return RoleBegin("system", caller())


def system_end() -> Expr:
    return RoleEnd("system", caller())


def user_begin() -> Expr:
    return RoleBegin("user", caller())


def user_end() -> Expr:
    return RoleEnd("user", caller())


def assistant_begin() -> Expr:
    return RoleBegin("assistant", caller())


def assistant_end() -> Expr:
    return RoleEnd("assistant", caller())


# ---------------------------------------------------------------- others


def separate_reasoning(
    expr: Expr | None = None, model_type: str | None = None, *, open: str = "<think>", close: str = "</think>"
) -> Reasoning:
    """Split what each named gen of ``expr`` says between ``open`` and ``close`` off its value, into the variable
    ``NAME_reasoning_content``. ``model_type`` is accepted: all its families use the same tags."""
    if expr is None:
        raise ValueError("separate_reasoning() needs the expression whose reasoning is to be split off")
    return Reasoning(expr, open, close, caller())


def image(path: object) -> Expr:
    """Not supported: always raises."""
    raise NotImplementedError("images are not supported: the models served here read text only")


def video(path: object, num_frames: int) -> Expr:
    """Not supported: always raises."""
    raise NotImplementedError("videos are not supported: the models served here read text only")
