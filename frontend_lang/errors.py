"""What a program raises where a value is read: program, variable and source line, with the cause chained."""

from __future__ import annotations

from ramet.runtime.protocol.errors import RametError

from .where import UNKNOWN, Where


class ProgramError(RametError):
    """A call of a program failed, or was not run because an earlier one had failed.

    ``program``, ``variable`` (None for a call without a name), ``where`` (source line of the call), ``cause`` (the
    error underneath; also ``__cause__``) and ``text`` (what the branch held when it failed).
    """

    def __init__(
        self,
        message: str,
        *,
        program: str = "",
        variable: str | None = None,
        where: Where = UNKNOWN,
        cause: BaseException | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message)
        self.program = program
        self.variable = variable
        self.where = where
        self.cause = cause
        self.text = text
        self.code = getattr(cause, "code", "program_error")
        self.__cause__ = cause


class ProgramCancelled(ProgramError):
    """The program was cancelled: by its caller, by a time limit, or because its body raised."""


class UnknownVariable(ProgramError, KeyError):
    """A name that no call of this state has. Also a KeyError."""

    def __str__(self) -> str:
        return str(self.args[0])


class NoBackend(RametError):
    """A program was run without a backend."""

    code = "no_backend"


def failed_call(program: str, variable: str | None, where: Where, cause: BaseException, text: str) -> ProgramError:
    """The error of one call, as the user reads it."""
    what = f"variable {variable!r}" if variable is not None else "a call without a name"
    kind = type(cause).__name__
    message = f"program {program!r}, {what} ({where}): {kind}: {cause}"
    return ProgramError(message, program=program, variable=variable, where=where, cause=cause, text=text)


def cut_value(variable: str | None, where: Where, tokens: int, cause: BaseException) -> ProgramError:
    """The error of a typed value that has no end, because the call had used up its tokens."""
    message = (
        f"variable {variable!r} ({where}) has no typed value: it was cut after {tokens} tokens, by max_tokens or the "
        "end of the context; bound its strings and lists (maxLength, maxItems; in pydantic Field(max_length=...)), or "
        "give a larger max_tokens"
    )
    return ProgramError(message, variable=variable, where=where, cause=cause)


def skipped_call(first: ProgramError, variable: str | None, where: Where) -> ProgramError:
    """The error of a call that came after a failed one."""
    what = f"variable {variable!r}" if variable is not None else "a call without a name"
    message = f"program {first.program!r}, {what} ({where}) was not run, because an earlier call failed: {first}"
    kind = ProgramCancelled if isinstance(first, ProgramCancelled) else ProgramError
    return kind(message, program=first.program, variable=variable, where=where, cause=first.cause, text=first.text)
