"""tokenizer.json out of the arrays of a GGUF file: byte-level BPE (``gpt2``) and SentencePiece's BPE (``llama``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store.gguf import GgufFile
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type
SPECIAL = (UNKNOWN, CONTROL)
BLANK = "\u2581"  # stands for a space in SentencePiece vocabularies

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKED_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words together with their combining marks."""


def _bytes_only() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes_only()])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _three_digits() -> pre_tokenizers.PreTokenizer:
    return _split(_WORDS % 3)


def _one_digit() -> pre_tokenizers.PreTokenizer:
    return _split(_WORDS % 1)


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _bytes_only,
    "gpt-2": _bytes_only,
    "phi-2": _bytes_only,
    "olmo": _bytes_only,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "exaone": _single_digits,
    "llama-bpe": _three_digits,
    "llama3": _three_digits,
    "llama-v3": _three_digits,
    "falcon3": _three_digits,
    "lfm2": _three_digits,
    "smaug-bpe": _three_digits,
    "dbrx": _three_digits,
    "qwen2": _one_digit,
    "deepseek-r1-qwen": _one_digit,
    "qwen35": lambda: _split(_MARKED_WORDS),
}
"""By ``tokenizer.ggml.pre``: how text is cut before the merges apply."""

_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"})
"""A word that is a token is one, even where no merges lead to it."""

_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Text is brought into Unicode's composed form first."""


def write_tokenizer(file: GgufFile, target: Path) -> None:
    """Raises InvalidModel for kinds that cannot be rebuilt."""
    build_tokenizer(file).save(str(target), pretty=False)


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer that the file's arrays describe. Raises InvalidModel for other kinds."""
    kind = file.text("tokenizer.ggml.model")
    tokens, types = file.texts("tokenizer.ggml.tokens"), file.integers("tokenizer.ggml.token_type")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise _damaged(file)
    if kind == "gpt2":
        tokenizer = _byte_level(file, vocabulary)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, vocabulary, types)
    else:
        raise InvalidModel(
            f"{file.path}: the tokenizer model {kind!r} cannot be rebuilt from a GGUF file (those that can are 'gpt2', "
            "byte-level BPE, and 'llama', SentencePiece). Use a folder with safetensors and tokenizer.json instead."
        )
    marked = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in marked if k in SPECIAL])
    # Spaces of SentencePiece's own symbols are written as blanks, which text has after normalisation only.
    defined = [AddedToken(t, special=False, normalized=BLANK in t) for t, k in marked if k == USER_DEFINED and t]
    tokenizer.add_tokens(defined)
    return tokenizer


def _damaged(file: GgufFile) -> InvalidModel:
    return InvalidModel(f"{file.path}: the token arrays are damaged (a token twice, or a merge of one part).")


def _byte_level(file: GgufFile, vocabulary: dict[str, int]) -> Tokenizer:
    pre = file.text("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise InvalidModel(
            f"{file.path}: the pre-tokenizer {pre!r} is not known (known: {', '.join(_PRE_TOKENIZERS)}). "
            "Use a folder with safetensors and tokenizer.json instead."
        )
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in file.texts("tokenizer.ggml.merges"))]
    if not all(right for _, right in merges):
        raise _damaged(file)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, vocabulary: dict[str, int], types: list[int]) -> Tokenizer:
    """SentencePiece joins the neighbours whose union scores highest; merges in the order of scores do the same."""
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(types) or not any(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        raise InvalidModel(
            f"{file.path}: its SentencePiece vocabulary lacks scores or byte tokens, so it cannot be rebuilt. Use a "
            "folder with safetensors and tokenizer.json instead."
        )
    unknown = next((token for token, index in vocabulary.items() if types[index] == UNKNOWN), None)
    model = models.BPE(
        vocab=vocabulary,
        merges=_merges(vocabulary, types, scores),
        unk_token=unknown,
        fuse_unk=unknown is not None,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    blanks: list[normalizers.Normalizer] = [normalizers.Replace(" ", BLANK)]
    if bool(file.fields.get("tokenizer.ggml.add_space_prefix", True)):
        blanks.insert(0, normalizers.Prepend(BLANK))
    tokenizer.normalizer = normalizers.Sequence(blanks)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _merges(vocabulary: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, pieces of higher scores first."""
    normal = {token for token, index in vocabulary.items() if types[index] == NORMAL}
    pieces = sorted(
        (token for token in normal if len(token) > 1),
        key=lambda token: (-scores[vocabulary[token]], vocabulary[token]),
    )

    def halves(token: str) -> Iterator[tuple[str, str]]:
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        return ((left, right) for left, right in cuts if left in normal and right in normal)

    return [pair for token in pieces for pair in halves(token)]
