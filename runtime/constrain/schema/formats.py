"""Languages of the formats that are enforced. Every other format is an annotation, as JSON Schema has it.

``date`` and ``date-time`` know the calendar: Feb 29 exists in leap years only, years
start at 1. Leap seconds are left out.
"""

from __future__ import annotations

from functools import lru_cache

from ramet.runtime.constrain.strings.lang import Lang
from ramet.runtime.constrain.strings.meaning import full

_DAY_31 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAY_30 = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_TWO = "(?:0[48]|[2468][048]|[13579][26])"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_LEAP_TWO}|{_LEAP_TWO}00)"
_DATE = f"(?:{_YEAR}-(?:{_DAY_31}|{_DAY_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
_ZONE = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9a-fA-F]{1,4}"
_LOW32 = f"(?:{_HEX}:{_HEX}|{_IPV4})"
_IPV6 = "(?:" + f"(?:{_HEX}:){{6}}{_LOW32}|::(?:{_HEX}:){{5}}{_LOW32}"
for _left in range(1, 8):
    _front = f"(?:(?:{_HEX}:){{0,{_left - 1}}}{_HEX})?::"
    if _left <= 5:
        _middle = f"(?:{_HEX}:){{{5 - _left}}}" if _left < 5 else ""
        _IPV6 += f"|{_front}{_middle}{_LOW32}"
    else:
        _IPV6 += f"|{_front}{_HEX}" if _left == 6 else f"|{_front}"
_IPV6 += ")"

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOSTNAME}|\[{_IPV4}\])"

_WIDE = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{dffff}"
"""Characters that IRIs add to URIs."""


def _uri(wide: str, *, relative: bool) -> str:
    """RFC 3986 (RFC 3987 with ``wide``)."""
    coded = "%[0-9a-fA-F]{2}"
    unreserved = rf"a-zA-Z0-9\-._~{wide}"
    sub = "!$&'()*+,;="
    char = f"(?:[{unreserved}{sub}:@]|{coded})"
    user = f"(?:(?:[{unreserved}{sub}:]|{coded})*@)?"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[a-zA-Z0-9\-._~{sub}:]+)\]|(?:[{unreserved}{sub}]|{coded})*)"
    segments = f"(?:/{char}*)*"
    hier = f"//{user}{host}(?::[0-9]*)?{segments}|/(?:{char}+{segments})?|"
    tail = rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    absolute = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{hier}{char}+{segments}|){tail}"
    if not relative:
        return absolute
    first = f"(?:[{unreserved}{sub}@]|{coded})+"
    return f"(?:{absolute}|(?:{hier}{first}{segments}|){tail})"


def _uri_template() -> str:
    literal = r"[!#$&()*+,\-./0-9:;=?@A-Z\[\]_a-z~\u00a1-\ud7ff\uf900-\ufdcf\ufdf0-\uffef]|%[0-9a-fA-F]{2}"
    name = r"(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2}))*"
    variable = rf"{name}(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*"


def _duration() -> str:
    time = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    return f"P(?:{date}(?:{time})?|{time}|[0-9]+W)"


_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_SOURCES = {
    "date-time": f"{_DATE}[tT]{_CLOCK}{_ZONE}",
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "duration": _duration(),
    "email": _EMAIL,
    "idn-email": r"[^\s@\"(),:;<>\[\]\\\x00-\x1f]+@[^\s@\"(),:;<>\[\]\\\x00-\x1f]+",
    "hostname": _HOSTNAME,
    "idn-hostname": r"[^\s\x00-\x2c\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": _uri("", relative=False),
    "uri-reference": _uri("", relative=True),
    "iri": _uri(_WIDE, relative=False),
    "iri-reference": _uri(_WIDE, relative=True),
    "uri-template": _uri_template(),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}

ENFORCED = frozenset(_SOURCES)


@lru_cache(maxsize=32)
def language(name: str) -> Lang | None:
    """The strings of the format; None if it is an annotation."""
    source = _SOURCES.get(name)
    return None if source is None else full(source, "ecma")
