"""How records are generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """How each record is generated.

    max_tokens: budget of one record. temperature 0 is greedy. seed: of sampled records (the same for each,
    so that a record depends on its document alone). document_tokens: longer documents are cut there (0: no
    cut). fit: what to do with a document that does not fit the context: "error" (status too_long), "truncate", or "map"
    (extract from chunks of it, and merge their records).
    retries: how often an answer that a validator refused is asked for again, with the refusal behind the document.
    on_length: what to do where the budget ends first: "error" (status length); "retry" (ask again, with twice the
    budget, as often as ``retries`` says, once at least); "close" (a short end that the schema allows, inside the
    budget). confidence: how sure the model was of each field, see ``confidence.py``.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    document_tokens: int = 0
    fit: Literal["error", "truncate", "map"] = "error"
    retries: int = 0
    on_length: Literal["error", "retry", "close"] = "error"
    confidence: bool = False
