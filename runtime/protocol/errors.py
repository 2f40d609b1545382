"""One exception hierarchy: each message says what was given, what is allowed and what to change."""

from __future__ import annotations


class RametError(Exception):
    """Base of every error that ramet raises on purpose."""

    code = "internal_error"


class InvalidRequest(RametError):
    """The request cannot be served as given (HTTP 400). ``param`` names the offending field, where there is one."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConstraintError(RametError):
    """A constraint could not be compiled; ``kind`` is one of unsupported, too_complex, timed_out, crashed, invalid."""

    kind = "invalid"
    code = "invalid_constraint"


class InvalidConstraint(ConstraintError):
    """The specification itself is not well formed (bad JSON Schema, regex or grammar)."""


class UnsupportedConstraint(ConstraintError):
    """A keyword cannot be enforced. ``keyword`` names it, ``pointer`` is its JSON pointer in the given schema."""

    kind = "unsupported"
    code = "unsupported_constraint"

    def __init__(self, message: str, *, keyword: str, pointer: str = "") -> None:
        super().__init__(message)
        self.keyword = keyword
        self.pointer = pointer


class ConstraintTooComplex(ConstraintError):
    kind = "too_complex"
    code = "constraint_too_complex"


class ConstraintTimeout(ConstraintError):
    kind = "timed_out"
    code = "constraint_timeout"


class ConstraintCrashed(ConstraintError):
    kind = "crashed"
    code = "constraint_crashed"


class Overloaded(RametError):
    """The queue is full or the server drains (HTTP 429 / 503): try again later."""

    code = "overloaded"


class RequestTimeout(RametError):
    """The request's own time limit passed before it ended."""

    code = "timeout"


class GenerationFailed(RametError):
    """An accepted request ended with ``error``."""

    code = "generation_failed"


class Unavailable(GenerationFailed):
    """A process of the runtime was given up: nothing is generated any more until it is started anew (HTTP 503)."""

    code = "unavailable"


class ModelNotFound(RametError):
    """The model, or a file of it, is not there; the message says how to get it."""

    code = "model_not_found"


class InvalidModel(RametError):
    """A model file is damaged, or of a kind that is not supported; the message names the file and what is allowed."""

    code = "invalid_model"
