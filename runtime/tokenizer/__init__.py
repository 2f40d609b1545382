"""Text and ids: encoding by the ``tokenizers`` library, byte tables out of the vocabulary."""

from __future__ import annotations

from ramet.runtime.tokenizer.tokenizer import Follows, Tokenizer

__all__ = ["Follows", "Tokenizer"]
