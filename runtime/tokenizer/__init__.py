"""Text and ids: encoding by the ``tokenizers`` library, byte tables out of the vocabulary."""

from __future__ import annotations

from ramet.runtime.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
