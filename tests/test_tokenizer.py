"""Ids are the truth: text survives the way to ids and back, and control tokens come from templates alone."""

from __future__ import annotations

import json
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from folders import write_folder, write_gguf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel, InvalidRequest
from ramet.runtime.tokenizer import Tokenizer
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

MISSING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


texts = st.text() | st.text(alphabet=st.sampled_from(list(" \n\t0123456789aA.,é漢🙂½٣'s")))
seeds = settings(max_examples=200, deadline=None)


@seeds
@given(text=texts)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    if MISSING & set(text.encode()):
        with pytest.raises(InvalidRequest, match=r"U\+[0-9A-F]{4}"):
            tokenizer.encode(text)
        return
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize("character", ["\x04", "\x1d", "\U00040000"])
def test_a_character_that_no_token_spells_is_named(tokenizer: Tokenizer, character: str) -> None:
    for special in (False, True):
        with pytest.raises(InvalidRequest, match=f"U\\+{ord(character):04X}") as error:
            tokenizer.encode(f"päper {character} plane", special=special)
        assert error.value.code == "character_not_in_vocabulary"


@seeds
@given(text=texts)
def test_digits_stand_alone(tokenizer: Tokenizer, text: str) -> None:
    assume(not MISSING & set(text.encode()))
    for token in tokenizer.encode(text):
        spelled = tokenizer.token_bytes(token)
        assert len(spelled) == 1 or not any(byte in b"0123456789" for byte in spelled)


def test_blanks_before_a_digit_are_not_split_off(tokenizer: Tokenizer) -> None:
    # byte-level cutting alone would leave the last blank to the digit
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("a  2026")] == [
        b"a",
        b"  ",
        b"2",
        b"0",
        b"2",
        b"6",
    ]


@seeds
@given(parts=st.lists(st.sampled_from(["<|im_end|>", "<|endoftext|>", "<repo_name>", "a", " ", "<|im", "_end|>"])))
def test_control_tokens_are_parsed_only_on_request(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    plain = tokenizer.encode(text)
    assert not set(plain) & tokenizer.special_ids and tokenizer.decode(plain) == text.encode()
    parsed = tokenizer.encode(text, special=True)
    names = {index: name for name, index in tokenizer.special_tokens.items()}
    assert "".join(names.get(token) or tokenizer.text([token]) for token in parsed) == text
    assert (set(parsed) & tokenizer.special_ids != set()) == any(name in text for name in names.values())


def test_nothing_is_added_to_a_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == [] and tokenizer.encode("", special=True) == []


def test_the_byte_table_spells_what_the_decoder_does(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.token_table) == tokenizer.vocab_size == 49_152
    partial = 0
    for token, spelled in enumerate(tokenizer.token_table):
        assert (spelled == b"") == (token in tokenizer.special_ids)
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            partial += 1
        else:
            assert token in tokenizer.special_ids or tokenizer.hf.decode([token]) == text
    assert partial == 313  # parts of characters, which decoding one id at a time would lose
    assert tokenizer.missing_bytes == MISSING


def test_ends_and_begin(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_ids == (2, 0) and tokenizer.bos_id == 1 and tokenizer.special_ids == frozenset(range(17))


def test_ids_outside_are_refused(tokenizer: Tokenizer) -> None:
    for token in (-1, 49_152):
        with pytest.raises(IndexError):
            tokenizer.token_bytes(token)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode("a\ud83d")


def test_the_fingerprint_is_that_of_the_vocabulary(tokenizer: Tokenizer, model_dir: Path, tmp_path: Path) -> None:
    assert Tokenizer.load(model_dir).fingerprint == tokenizer.fingerprint
    write_folder(tmp_path / "model")
    folder = store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")
    assert Tokenizer.load(folder).fingerprint != tokenizer.fingerprint


def test_padding_ids_of_the_logits_are_special(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    size = config["vocab_size"]
    folder = store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")
    padded = Tokenizer(folder.tokenizer.read_text(), replace(folder.meta, vocab_size=size + 7))
    assert padded.special_ids == {0, 1, 2, *range(size, size + 7)} and padded.token_bytes(size + 6) == b""


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "qwen35"])
def test_each_known_pre_tokenizer_keeps_the_text(tmp_path: Path, pre: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre=pre)
    tokenizer = Tokenizer.load(store.resolve(str(tmp_path / "tiny.gguf"), cache=tmp_path / "cache"))
    for text in ("It's 2026, the  end.\r\n\n x", "naïve Ångström", "\t🙂"):
        expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.text(tokenizer.encode(text)) == expected


def test_byte_fallback_vocabularies(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}, "▁": 259, "▁a": 260}
    other = HfTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    other.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    other.add_special_tokens(["<unk>", "<s>", "</s>"])
    other.save(str(tmp_path / "model" / "tokenizer.json"))
    tokenizer = Tokenizer.load(store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache"))
    assert tokenizer.decode([260, 3 + 0xC3, 3 + 0xA9, 259]) == " aé ".encode()
    assert tokenizer.missing_bytes == frozenset()


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidModel, match=r"tokenizer\.json"):
        store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")


def test_the_kept_vocabulary_is_the_derived_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    folder = store.resolve(str(tmp_path / "model"), cache=tmp_path / "cache")
    derived = Tokenizer(folder.tokenizer.read_text(), folder.meta)
    Tokenizer.load(folder)
    (file,) = folder.path.glob("vocabulary-*")
    for damage in (None, b"", b"abc", file.read_bytes()[:-1], bytes(4) + file.read_bytes()[4:]):
        if damage is not None:
            file.write_bytes(damage)
        again = Tokenizer.load(folder)
        for name in ("token_table", "special_ids", "special_tokens", "missing_bytes", "fingerprint"):
            assert getattr(again, name) == getattr(derived, name)
        assert len(file.read_bytes()) > 100  # mended


def test_plain_and_special_encoding_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b"
    plain, parsed = tokenizer.encode(text), tokenizer.encode(text, special=True)
    with ThreadPoolExecutor(4) as pool:
        wanted = [index % 3 == 0 for index in range(300)]
        found = list(pool.map(lambda special: tokenizer.encode(text, special=special), wanted))
    assert found == [parsed if special else plain for special in wanted]
