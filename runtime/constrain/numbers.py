"""Languages of JSON numbers as text.

``NUMBER`` has exponents; whatever is bounded or combined lives in ``DECIMAL``, without exponents, where every language
below holds all spellings of its values (``1``, ``1.0``, ``1.00``), so that complements are exact.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from ramet.runtime.constrain.strings.chars import DIGIT, chars, charset
from ramet.runtime.constrain.strings.lang import (
    EMPTY,
    NOTHING,
    Chars,
    Lang,
    alt,
    both,
    literal,
    rep,
    seq,
)

_ZERO = Chars(chars("0"))
_DIGIT = Chars(DIGIT)
_DIGITS = rep(_DIGIT, 0, None)
_POSITIVE = Chars(charset([(0x31, 0x39)]))
_MINUS = Chars(chars("-"))
_DOT = Chars(chars("."))
_NATURAL = alt((seq((_POSITIVE, _DIGITS)), _ZERO))
_FRACTION = seq((_DOT, rep(_DIGIT, 1, None)))
_NO_FRACTION = seq((_DOT, rep(_ZERO, 1, None)))
_SIGN = rep(Chars(chars("+-")), 0, 1)
_EXPONENT = seq((Chars(chars("eE")), _SIGN, rep(Chars(chars("012")), 0, 1), rep(_DIGIT, 1, 2)))
"""Up to 299: what a double can hold, with room for the digits in front."""

_MAGNITUDE = seq((_NATURAL, rep(_FRACTION, 0, 1)))
DECIMAL = seq((rep(_MINUS, 0, 1), _MAGNITUDE))
NUMBER = seq((DECIMAL, rep(_EXPONENT, 0, 1)))
NOT_NEGATIVE = seq((_MAGNITUDE, rep(_EXPONENT, 0, 1)))
INTEGER = alt((_ZERO, seq((rep(_MINUS, 0, 1), _POSITIVE, _DIGITS))))
"""Integers as JSON writers spell them."""

INTEGRAL = seq((rep(_MINUS, 0, 1), _NATURAL, rep(_NO_FRACTION, 0, 1)))
"""Every spelling of an integer in ``DECIMAL``."""


def exactly(value: int | Fraction | Decimal) -> Lang:
    """Every spelling of the value in ``DECIMAL``."""
    return both((at_least(Fraction(value)), at_most(Fraction(value))))


def at_least(bound: Fraction, *, exclusive: bool = False) -> Lang:
    if bound > 0:
        return _above(bound, exclusive)
    negative = seq((_MINUS, _below(-bound, exclusive)))
    if bound == 0 and exclusive:
        return _above(bound, exclusive)
    return alt((_MAGNITUDE, negative))


def at_most(bound: Fraction, *, exclusive: bool = False) -> Lang:
    if bound < 0:
        return seq((_MINUS, _above(-bound, exclusive)))
    if bound == 0 and exclusive:
        return seq((_MINUS, _above(bound, exclusive)))
    return alt((seq((_MINUS, _MAGNITUDE)), _below(bound, exclusive)))


def _parts(bound: Fraction) -> tuple[int, str, bool]:
    """Whole part, digits behind the point, and whether those are all of them (else there is a rest above)."""
    whole = bound.numerator // bound.denominator
    rest = bound - whole
    digits = ""
    while rest and len(digits) < 40:
        rest *= 10
        digit = rest.numerator // rest.denominator
        digits += str(digit)
        rest -= digit
    return whole, digits, not rest


def _above(bound: Fraction, exclusive: bool) -> Lang:
    """Magnitudes of at least (more than) ``bound`` >= 0."""
    whole, digits, exact = _parts(bound)
    exclusive = exclusive or not exact
    options = [seq((natural(whole + 1, None), rep(_FRACTION, 0, 1)))]
    if not digits and not exclusive:
        options.append(seq((literal(str(whole)), rep(_FRACTION, 0, 1))))
    else:
        options.append(seq((literal(str(whole)), _DOT, _fraction_above(digits, exclusive))))
    return alt(options)


def _fraction_above(digits: str, exclusive: bool) -> Lang:
    if not digits:
        return seq((_DIGITS, _POSITIVE, _DIGITS)) if exclusive else _DIGITS
    first = int(digits[0])
    options = [seq((Chars(chars(digits[0])), _fraction_above(digits[1:], exclusive)))]
    if first < 9:
        options.append(seq((_span(first + 1, 9), _DIGITS)))
    return alt(options)


def _below(bound: Fraction, exclusive: bool) -> Lang:
    """Magnitudes of at most (less than) ``bound`` >= 0."""
    whole, digits, exact = _parts(bound)
    exclusive = exclusive and exact
    options = []
    if whole > 0:
        options.append(seq((natural(0, whole - 1), rep(_FRACTION, 0, 1))))
    if digits:
        options.append(seq((literal(str(whole)), rep(seq((_DOT, _fraction_below(digits, exclusive))), 0, 1))))
    elif not exclusive:
        options.append(seq((literal(str(whole)), rep(_NO_FRACTION, 0, 1))))
    return alt(options)


def _fraction_below(digits: str, exclusive: bool) -> Lang:
    """Digits behind the point, at least one. Running out of digits early is below: the last given digit is not 0."""
    first = int(digits[0])
    options = []
    if first > 0:
        options.append(seq((_span(0, first - 1), _DIGITS)))
    same = Chars(chars(digits[0]))
    if len(digits) > 1:
        options.append(seq((same, rep(_fraction_below(digits[1:], exclusive), 0, 1))))
    elif not exclusive:
        options.append(seq((same, rep(_ZERO, 0, None))))
    return alt(options)


def natural(low: int, high: int | None) -> Lang:
    """Integers from ``low`` >= 0 without leading zeros."""
    if high is None:
        if low == 0:
            return _NATURAL
        size = len(str(low))
        return alt((_same_size(str(low), "9" * size), seq((_POSITIVE, rep(_DIGIT, size, None)))))
    if low > high:
        return NOTHING
    options = []
    for size in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (size - 1) if size > 1 else 0)
        options.append(_same_size(str(first), str(min(high, 10**size - 1))))
    return alt(options)


def integers(low: int | None, high: int | None) -> Lang:
    """Integers from ``low`` to ``high``, both inclusive, as JSON writers spell them."""
    if low is None and high is None:
        return INTEGER
    options: list[Lang] = []
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        options.append(seq((_MINUS, natural(nearest, None if low is None else -low))))
    if high is None or high >= 0:
        options.append(natural(max(low or 0, 0), high))
    return alt(options)


def _same_size(low: str, high: str) -> Lang:
    """Numerals between two of the same size."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return seq((_span(first, last), rep(_DIGIT, rest, rest)))
    if first == last:
        return seq((Chars(chars(low[0])), _same_size(low[1:], high[1:])))
    options = [seq((Chars(chars(low[0])), _same_size(low[1:], "9" * rest)))]
    if last - first > 1:
        options.append(seq((_span(first + 1, last - 1), rep(_DIGIT, rest, rest))))
    options.append(seq((Chars(chars(high[0])), _same_size("0" * rest, high[1:]))))
    return alt(options)


def _span(first: int, last: int) -> Lang:
    return Chars(charset([(0x30 + first, 0x30 + last)]))


_WIDTH = {1: 0, 2: 1, 5: 1, 4: 2, 25: 2, 8: 3, 125: 3}
"""How many last digits decide whether an integer is a multiple."""


def multiples(step: Fraction) -> Lang | None:
    """Every spelling of a multiple, where the last digits decide it (1, 2, 5, 10, 25, 0.01, 0.5, ...), or the last
    digits and the sum of digits (3, 6, 12, 15, ...); else None."""
    if step.denominator == 1 and step.numerator % 3 == 0:
        rest = multiples(step / 3)
        return None if rest is None or step.numerator % 9 == 0 else both((rest, _THREES))
    shift = 0
    while step.denominator != 1 and shift > -6:
        step, shift = step * 10, shift - 1
    while step.denominator == 1 and step.numerator % 10 == 0 and shift < 6:
        step, shift = step / 10, shift + 1
    width = _WIDTH.get(step.numerator) if step.denominator == 1 else None
    if width is None:
        return None
    if shift >= 0:
        whole = alt((_ZERO, seq((_positive_multiples(step.numerator, width), *([_ZERO] * shift)))))
        return seq((rep(_MINUS, 0, 1), whole, rep(_NO_FRACTION, 0, 1)))
    magnitude = _fractional_multiples(step.numerator, width, -shift)
    return None if magnitude is None else seq((rep(_MINUS, 0, 1), magnitude))


def _of_rest(rest: int) -> Lang:
    return Chars(charset((0x30 + digit, 0x30 + digit) for digit in range(rest, 10, 3)))


def _threes() -> Lang:
    """Digits whose sum is a multiple of 3: the automaton of three states, written out."""
    none, one, two = map(_of_rest, range(3))
    stay = rep(none, 0, None)
    back = alt((seq((one, stay, two)), none))
    away = alt((two, seq((one, stay, one))))
    loop = rep(alt((none, seq((two, stay, one)))), 0, None)
    home = alt((one, seq((two, stay, two))))
    digits = rep(alt((back, seq((away, loop, home)))), 1, None)
    return seq((rep(_MINUS, 0, 1), digits, rep(_NO_FRACTION, 0, 1)))


_THREES = _threes()


def _positive_multiples(step: int, width: int) -> Lang:
    if width == 0:
        return seq((_POSITIVE, _DIGITS))
    small = [literal(str(value)) for value in range(step, 10**width, step)]
    tails = alt(literal(f"{value:0{width}d}") for value in range(0, 10**width, step))
    return alt((*small, seq((_POSITIVE, _DIGITS, tails))))


def _fractional_multiples(step: int, width: int, places: int) -> Lang | None:
    """Multiples of ``step`` when read as an integer without the point that stands ``places`` digits from the end."""
    free = rep(_ZERO, 0, None)
    if step == 1:
        return seq((_NATURAL, rep(seq((_DOT, rep(_DIGIT, 1, places), free)), 0, 1)))
    width = max(width, places)
    if width > 3:
        return None
    options: list[Lang] = []
    for value in range(0, 10**width, step):
        text = f"{value:0{width}d}"
        head, tail = text[: width - places], text[width - places :].rstrip("0")
        whole = _NATURAL if not head else alt((seq((_POSITIVE, _DIGITS, literal(head))), literal(str(int(head)))))
        options.append(seq((whole, seq((_DOT, literal(tail), free)) if tail else rep(_NO_FRACTION, 0, 1))))
    return alt(options)
