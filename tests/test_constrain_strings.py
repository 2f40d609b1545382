"""The algebra of string languages agrees with `re`, with itself, and with another library's automata."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import random
import re
from fractions import Fraction

import pytest
from ramet.runtime.constrain import numbers
from ramet.runtime.constrain.schema.formats import language
from ramet.runtime.constrain.strings.chars import charset, unicode_property
from ramet.runtime.constrain.strings.lang import both, contains, length, literals, negate
from ramet.runtime.constrain.strings.meaning import full, search
from ramet.runtime.constrain.strings.tree import PatternError, PatternUnsupported
from ramet.runtime.constrain.strings.walk import disjoint, empty, finite, lengths

PATTERNS = [
    "a|b$",
    "^(a|b)*$",
    "(^a|b)c",
    "a$|^b",
    "^a?^b",
    "^(?!ab).*$",
    r"^(?=.*\d)(?=.*[a-z]).{2,4}$",
    "^(?:(?!ab).)*$",
    r"\bab\b",
    r"\Bb",
    r"a\b",
    "[^a-b1]",
    r"^[\w-]+$",
    "^.{2,3}$",
    "^((a|ab)(c|bcd))?$",
    r"^\s*\S+\s*$",
    "(?i)AB",
    "^[a-]$",
    r"^a{0}b{2}$",
    "",
    "^$",
]


def words(rng: random.Random, count: int) -> list[str]:
    short = ["".join(chars) for size in range(4) for chars in itertools.product("ab1 ", repeat=size)]
    return short + ["".join(rng.choices("abcdAB12- \n_.é", k=rng.randrange(9))) for _ in range(count)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_re_finds(pattern):
    lang = search(pattern)
    for text in words(random.Random(1), 300):
        if text.endswith("\n") and "$" in pattern:
            continue  # Python's $ also stands before a last newline
        assert contains(lang, text) == bool(re.search(pattern, text, re.ASCII)), text


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?<=a)b", r"\p{Nonsense}", "(?m)^a", "a{20000}"])
def test_what_is_not_regular_is_refused(pattern):
    with pytest.raises(PatternUnsupported):
        search(pattern)


@pytest.mark.parametrize("pattern", ["(", "a)", "[b-a]", "*a", "a{3,2}", "[", "\\"])
def test_what_is_not_well_formed_is_an_error(pattern):
    with pytest.raises(PatternError):
        search(pattern)


def test_algebra_is_pointwise():
    rng = random.Random(2)
    langs = [search(pattern) for pattern in PATTERNS]
    texts = words(rng, 60)
    for left, right in rng.sample(list(itertools.combinations(langs, 2)), 40):
        for text in texts:
            assert contains(both((left, right)), text) == (contains(left, text) and contains(right, text))
            assert contains(negate(left), text) != contains(left, text)
        if disjoint(left, right):
            assert not any(contains(left, text) and contains(right, text) for text in texts)


def test_disjointness_is_what_another_library_says():
    interegular = pytest.importorskip("interegular")
    sources = [
        "[a-c]+",
        "a[0-9]{2}",
        "(ab|cd)*",
        "[^a]b",
        "x{2,5}y?",
        "a.c",
        "[a-z]+-[0-9]+",
        "(a|b)(c|d)(e|f)",
        "a*b*",
    ]
    ours = {source: full(source) for source in sources}
    theirs = {source: interegular.parse_pattern(source).to_fsm() for source in sources}
    for left, right in itertools.combinations(sources, 2):
        assert disjoint(ours[left], ours[right]) == theirs[left].isdisjoint(theirs[right]), (left, right)


def test_emptiness_lengths_and_lists():
    assert empty(both((search("^a"), search("^b"))))
    assert empty(both((search("^[a-z]+$"), length(3, None), length(0, 2))))
    assert not empty(both((search("^[a-z]+$"), negate(literals(["x", "yy"])), length(1, 1))))
    assert lengths(full("ab?(cd){2,3}")) == (5, 8)
    assert sorted(finite(full("a[bc](d|)"), 10) or []) == ["ab", "abd", "ac", "acd"]
    assert finite(full("a*"), 10) is None


def test_sets_of_characters():
    letters, digits = charset([(0x61, 0x7A)]), charset([(0x30, 0x39)])
    assert 0x62 in letters and 0x30 not in letters
    assert not letters & digits
    assert (letters | digits).size == 36
    assert 0xD800 not in ~letters and 0x10FFFF in ~letters
    assert ord("é") in unicode_property("L") and ord("1") in unicode_property("Nd")


def test_dates_know_the_calendar():
    lang = language("date")
    for year, month, day in itertools.product((0, 1, 1900, 2000, 2023, 2024, 2100, 9999), range(14), range(33)):
        text = f"{year:04}-{month:02}-{day:02}"
        try:
            datetime.date.fromisoformat(text)
            valid = True
        except ValueError:
            valid = False
        assert contains(lang, text) == valid, text


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", ["2024-02-29T00:00:00Z", "2020-01-01t01:02:03.5+14:00"], ["2023-02-29T00:00:00Z", "2020-01-01"]),
        ("time", ["12:00:00Z"], ["24:00:00Z", "12:00:00"]),
        ("duration", ["P1Y2M3DT4H5M6S", "PT5S", "P3W"], ["P", "P1DT", "1D"]),
        ("email", ["a.b+c@d-e.org"], ["a", "a..b@c", "@b"]),
        ("hostname", ["a.b-c.d"], ["-a", "a_b", "a..b"]),
        ("uri", ["http://u@h:1/p?q#f", "urn:a:b", "http://[::1]/"], ["/a", "http://a b", "http://x/{"]),
        ("uri-reference", ["", "../a", "//h/p", "?q"], ["a b", "\\a"]),
        ("iri", ["http://ä.ö/ü"], ["ä b"]),
        ("uri-template", ["/{a}/{+b,c*}", "{?q:3}"], ["{", "{a b}", "}"]),
        ("uuid", ["0" * 8 + "-0000" * 3 + "-" + "a" * 12], ["0" * 32]),
        ("json-pointer", ["", "/a~0~1/"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["01", "/a"]),
        ("ipv4", ["0.0.0.0", "255.1.2.3"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
    ],
)
def test_formats(name, good, bad):
    lang = language(name)
    assert all(contains(lang, text) for text in good)
    assert not any(contains(lang, text) for text in bad)


def test_addresses_of_version_6():
    rng = random.Random(3)
    lang = language("ipv6")
    parts = ["1", "abcd", "0", "::", ":", "1.2.3.4", "ffff", "g"]
    for _ in range(3000):
        text = ":".join(rng.choices(parts[:7], k=rng.randrange(1, 9))).replace(":::", "::").replace(":::", "::")
        try:
            ipaddress.IPv6Address(text)
            valid = True
        except ValueError:
            valid = False
        assert contains(lang, text) == valid, text


def test_unknown_formats_are_annotations():
    assert language("color") is None


def test_bounds_of_numbers_are_exact():
    values = [Fraction(n, 100) for n in range(-700, 701, 7)] + [Fraction(n) for n in range(-120, 121)]
    for bound, exclusive in itertools.product(
        map(Fraction, (0, 1, 5, -5, "5/2", "-5/2", "1/3", 99, 100)), (False, True)
    ):
        low = numbers.at_least(bound, exclusive=exclusive)
        high = numbers.at_most(bound, exclusive=exclusive)
        for value in values:
            text = f"{float(value):.2f}".rstrip("0").rstrip(".")
            assert contains(low, text) == (value > bound or (value == bound and not exclusive)), text
            assert contains(high, text) == (value < bound or (value == bound and not exclusive)), text


def test_multiples_and_integers():
    for step in map(Fraction, (1, 2, 3, 5, 6, 8, 10, 12, 15, 25, 100, "1/2", "1/4", "1/100")):
        lang = numbers.multiples(step)
        for value in (*map(Fraction, range(-130, 131)), *(Fraction(n, 100) for n in range(-40, 41))):
            text = f"{float(value):.2f}".rstrip("0").rstrip(".")
            assert contains(lang, text) == ((value / step).denominator == 1), (step, text)
    assert numbers.multiples(Fraction(7)) is None
    for low, high in ((None, 5), (-3, None), (-20, 105), (7, 7), (None, -4)):
        lang = numbers.integers(low, high)
        for value in range(-130, 131):
            assert contains(lang, str(value)) == ((low is None or value >= low) and (high is None or value <= high))
