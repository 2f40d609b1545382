"""Fields that are copied from the document stand there, word for word, whatever the model would like to write."""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, Field
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.substrings import Substring
from ramet.runtime.protocol.errors import InvalidRequest, UnsupportedConstraint
from ramet.runtime.tokenizer import Tokenizer

from ramet.demo.packages import installed
from ramet.extraction.schema import target
from ramet.extraction.verbatim import Binding, Verbatim, VerbatimText


class Quote(BaseModel):
    who: Verbatim = Field(min_length=2, max_length=30)
    words: list[Verbatim] = Field(min_length=1, max_length=2)
    letters: VerbatimText | None = Field(max_length=5)
    free: str = Field(max_length=4)


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


def draw(binding: Binding, document: str, tokenizer: Tokenizer, rng: random.Random) -> dict[str, object]:
    """A record that the constraint allows, drawn at random."""
    matcher, ids = compile(binding.spec(document), tokenizer).matcher(), list[int]()
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    while not matcher.finished:
        step = matcher.forced()
        if not step:
            matcher.fill_mask(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
            bits[list(tokenizer.end_ids)] = 0
            allowed = np.flatnonzero(bits)
            step = [int(allowed[rng.randrange(len(allowed))])]
        assert matcher.advance(step)
        ids += step
    value = json.loads(tokenizer.decode(ids))
    assert isinstance(value, dict)
    return value


DOCUMENTS = [
    'He said: "no \\ way"\n\tand left — ünïcode 漢字 \U0001f600\x7f.',
    *(p.document.text for p in installed(12)),
]


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_what_is_copied_stands_in_the_document(number: int, tokenizer: Tokenizer) -> None:
    document, binding = DOCUMENTS[number][:2000], target(Quote).binding
    rng = random.Random(number)
    for _ in range(8):
        value = draw(binding, document, tokenizer, rng)
        spans = binding.spans(value, document)
        assert spans is not None
        copied = {"/who": value["who"], "/letters": value["letters"]}
        copied |= {f"/words/{at}": word for at, word in enumerate(value["words"])}  # type: ignore[call-overload]
        copied = {name: text for name, text in copied.items() if text is not None}
        assert set(spans) == set(copied)
        for name, (start, end) in spans.items():
            assert document[start:end] == copied[name]
            assert str(copied[name]) == str(copied[name]).strip()
        assert 2 <= len(str(value["who"])) <= 30
        assert value["letters"] is None or len(str(value["letters"])) <= 5


def test_words_are_not_cut(tokenizer: Tokenizer) -> None:
    class Word(BaseModel):
        word: Verbatim = Field(max_length=12)

    rng = random.Random(1)
    drawn = {str(draw(target(Word).binding, "alpha beta-gamma (x)", tokenizer, rng)["word"]) for _ in range(40)}
    whole = {"alpha", "beta-gamma", "(", "x", ")", "(x", "x)", "(x)"}
    assert drawn <= whole | {"beta-gamma (", "alpha beta-gamma"}
    assert len(drawn) > 4


def test_the_printed_schema_names_no_document() -> None:
    text = target(Quote).text
    assert '"x-ramet-verbatim": "words"' in text and "\u2983" not in text


@pytest.mark.parametrize("extra", [{"pattern": "^a"}, {"enum": ["a"]}, {"const": "a"}, {"format": "date"}])
def test_what_cannot_go_with_it_is_refused(extra: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(extra))):
        Binding({"type": "string", "x-ramet-verbatim": "words", **extra})


def test_one_of_several_strings_is_refused(tokenizer: Tokenizer) -> None:
    binding = Binding({"anyOf": [{"type": "string", "x-ramet-verbatim": "words"}, {"const": "none"}]})
    with pytest.raises(UnsupportedConstraint, match="field of its own"):
        compile(binding.spec("some text"), tokenizer)


def real_documents(limit: int) -> list[str]:
    """Descriptions of packages, licences, README files and manual pages: whatever is installed here."""
    roots = [Path(path) for path in sys.path if path.endswith("site-packages")]
    found = [Path("/usr/share/common-licenses"), Path("/usr/share/man/man1"), Path("/usr/share/doc"), *roots]
    names = ("*LICEN[CS]E*", "README*", "copyright", "GPL-*", "*.1", "*.1.gz", "*.md", "*.rst")
    files = sorted({path for root in found for name in names for path in root.rglob(name) if path.is_file()})
    texts = [package.document.text for package in installed(limit)]
    random.Random(4).shuffle(files)
    for path in files[: 2 * limit]:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
        if len(text) > 50:
            texts.append(text[:20_000])
    return texts[:limit]


class Spans(BaseModel):
    short: Verbatim = Field(max_length=12)
    long: Verbatim = Field(min_length=20, max_length=120)
    words: list[Verbatim] = Field(min_length=2, max_length=4)


@pytest.mark.slow
def test_a_thousand_spans_of_real_documents_stand_there(tokenizer: Tokenizer) -> None:
    binding, rng, drawn = target(Spans).binding, random.Random(7), 0
    for document in real_documents(220):
        value = draw(binding, document, tokenizer, rng)
        spans = binding.spans(value, document)
        assert spans is not None and len(spans) == 2 + len(value["words"])  # type: ignore[arg-type]
        written = {"/short": value["short"], "/long": value["long"]}
        written |= {f"/words/{at}": word for at, word in enumerate(value["words"])}  # type: ignore[call-overload]
        assert {name: document[start:end] for name, (start, end) in spans.items()} == written
        drawn += len(spans)
    assert drawn > 600  # how many documents there are depends on the machine


def test_a_mark_in_the_text_is_text(tokenizer: Tokenizer) -> None:
    document = "".join(map(chr, range(0xE000, 0xE010))) + " end \x7f\x00."
    assert json.loads(f'"{"".join(Substring(document, "characters").pieces())}"') == document
    assert json.loads(f'"{"".join(Substring(document).pieces())}"') == document


def test_a_long_document_is_bound_in_little_time(tokenizer: Tokenizer) -> None:
    """Of words; some 13 ms where nothing else runs, by letters 45 ms."""
    document = "\n".join(package.document.text for package in installed(80))[:20_000]
    binding = target(Spans).binding
    compile(binding.spec("warm up"), tokenizer)
    began = time.thread_time()
    compile(binding.spec(document), tokenizer)
    assert time.thread_time() - began < 0.2
