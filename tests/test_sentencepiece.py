"""SentencePiece vocabularies out of GGUF files: against the rule itself, against the library where it is installed,
and where texts are put together of pieces."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from folders import write_spm_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.frontend_lang.backend import Piece
from ramet.runtime import store
from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.store.gguf import GgufFile
from ramet.runtime.store.gguf_tokenizer import build_tokenizer
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.tokenizer.prefix import inner
from tokenizers import pre_tokenizers

from ramet.text_side import TextSide

PIECES = "▁ a b e t h é 漢 ▁a ab he th the ▁the ▁▁ aa aaa aaaa bab ▁th et ▁t ha that ▁that".split()  # noqa: SIM905
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = [*SPECIAL, *BYTES, *PIECES, "[USER]"]
SCORES = [*[0.0] * 259, *[-float(rank) for rank, _ in enumerate(PIECES)], 0.0]
TYPES = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]


def fields(prefix: bool) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def joined(text: str, prefix: bool) -> list[int]:
    """The rule: of all neighbours whose union is a piece, those of the highest score join, the leftmost of equals."""
    symbols = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
    scores = dict(zip(PIECES, SCORES[259:], strict=False))
    while True:
        options = [
            (-scores[symbols[i] + symbols[i + 1]], i)
            for i in range(len(symbols) - 1)
            if symbols[i] + symbols[i + 1] in scores
        ]
        if not options:
            break
        at = min(options)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [TOKENS.index(symbol)] if symbol in scores else [3 + byte for byte in symbol.encode()]
    return ids


texts = st.text(alphabet="abeth é漢\n🙂x▁", max_size=40) | st.text(alphabet="ath ", max_size=40) | st.text(max_size=20)


@settings(max_examples=400, deadline=None)
@given(text=texts, prefix=st.booleans())
def test_pieces_join_by_their_scores(text: str, prefix: bool) -> None:
    built = build_tokenizer(GgufFile(Path("x"), fields(prefix), {}))  # type: ignore[arg-type]
    assert built.encode(text, add_special_tokens=False).ids == joined(text, prefix)


@pytest.mark.parametrize("prefix", [True, False])
def test_against_the_library(tmp_path: Path, prefix: bool) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    words = Path(__file__).read_text(encoding="utf-8").split()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(" ".join(words[i : i + 9]) for i in range(0, len(words), 9)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=420, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, minloglevel=2,
        add_dummy_prefix=prefix, user_defined_symbols=[] if prefix else ["▁▁", "\n\n", "[USER]"],
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(library.vocab_size())
    kinds = [
        2 if library.is_unknown(i) else 3 if library.is_control(i) else 6 if library.is_byte(i) else 1 for i in ids
    ]
    tokens = [library.id_to_piece(i) for i in ids]
    kinds = [4 if token in ("▁▁", "\n\n", "[USER]") and not prefix else kinds[i] for i, token in enumerate(tokens)]
    given_fields = fields(prefix) | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [library.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
    }
    built = build_tokenizer(GgufFile(Path("x"), given_fields, {}))  # type: ignore[arg-type]
    built.encode_special_tokens = True
    draw = random.Random(1)
    for _ in range(1500):
        text = " ".join(draw.choices([*words, "", "\n\n", "漢字", "🙂é", "[USER]", "0123"], k=draw.randint(1, 8)))
        assert built.encode(text, add_special_tokens=False).ids == library.encode(text), text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> store.ModelFolder:
    folder = tmp_path_factory.mktemp("spm")
    write_spm_gguf(folder / "tiny.gguf", TOKENS, SCORES, TYPES)
    return store.resolve(str(folder / "tiny.gguf"), cache=folder / "cache")


@pytest.fixture(scope="module")
def tokenizer(model: store.ModelFolder) -> Tokenizer:
    return Tokenizer.load(model)


def test_bytes_of_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("the\n that🙂 é")) == " the\n that🙂 é".encode()
    assert tokenizer.missing_bytes == frozenset()
    assert tokenizer.special_ids >= {0, 1, 2}


def test_a_blank_is_written_at_the_beginning_alone(tokenizer: Tokenizer) -> None:
    """Texts that follow another one are encoded as they stand; behind a control token a stretch begins anew."""
    assert tokenizer.text(tokenizer.encode("the")) == " the"
    assert tokenizer.text(tokenizer.encode("the", follows="text")) == "the"
    assert tokenizer.text(tokenizer.encode("the", follows="special")) == " the"
    assert tokenizer.encode("<s>", follows="text") != [1] and tokenizer.encode("<s>", special=True) == [1]
    ids = tokenizer.encode("<s>the</s>that", special=True)
    assert [1, *tokenizer.encode("the"), 2, *tokenizer.encode("that")] == ids


def test_control_tokens_in_a_message_stay_text(model: store.ModelFolder, tokenizer: Tokenizer) -> None:
    template = ChatTemplate(model.meta, tokenizer)
    plain = template.ids([{"role": "user", "content": "the"}])
    assert plain == tokenizer.encode(template.render([{"role": "user", "content": "the"}]), special=True)
    hidden = template.ids([{"role": "user", "content": "the </s> the"}])
    assert hidden.count(2) == plain.count(2) and "the </s> the" in tokenizer.text(hidden)


def test_programs_give_the_ids_of_the_chat(model: store.ModelFolder, tokenizer: Tokenizer) -> None:
    """Pieces of a program, put together, are encoded as the whole; what follows generated text gets no blank."""
    side, template = TextSide(tokenizer, model.meta), ChatTemplate(model.meta, tokenizer)
    begin, end = template.role_text("user", True)
    begin = template.fragments.prefix + begin
    pieces = [Piece(begin, special=True), Piece("the "), Piece("that"), Piece(end, special=True)]
    ids = asyncio.run(side.encode([*pieces, Piece(template.fragments.generation, special=True)], True))
    assert ids == template.ids([{"role": "user", "content": "the that"}])
    assert tokenizer.text(asyncio.run(side.encode([Piece("the")], False))) == "the"


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_blanks_of_a_pre_tokenizer(scheme: str) -> None:
    """The two other ways in which a tokenizer.json states it."""
    built = build_tokenizer(GgufFile(Path("x"), fields(False), {}))  # type: ignore[arg-type]
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    found = inner(built.to_str())
    assert found is not None and found.after_special == (scheme == "first")
    plain = type(built).from_str(found.definition)
    assert plain.encode("the").tokens == ["the"] and built.encode("the").tokens == ["▁the"]
    assert inner(plain.to_str()) is None
