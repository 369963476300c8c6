"""Formats of texts: with a regular expression defined here, built into llguidance, or ignored.

A pattern may be narrower than its format, but never wider: ``iri`` only allows URIs, for example.
"""

from __future__ import annotations

_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,15})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
"""Without leap seconds (60), which only a few days have and most readers refuse."""
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_ALNUM, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
_LABEL = (
    f"{_ALNUM}(?:{_ALNUM}|{_INNER}{_ALNUM}|{_INNER}(?:{_ALNUM}{_ALNUM}|-{_ALNUM})"
    f"|{_INNER}(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,58}}{_ALNUM})?"
)
"""Up to 63 characters without ``--`` in the third and fourth place, where encoded names begin, whose letters no pattern
can check."""
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_UNRESERVED = r"a-zA-Z0-9._~!$&'()*+,;=@\-"
_CHAR = f"(?:[{_UNRESERVED}:]|%[0-9a-fA-F]{{2}})"
_CHAR_WITHOUT_COLON = f"(?:[{_UNRESERVED}]|%[0-9a-fA-F]{{2}})"
_TAIL = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_AUTHORITY = f"//(?:(?:[{_UNRESERVED.replace('@', '')}]|%[0-9a-fA-F]{{2}})*(?::[0-9]{{1,5}})?)(?:/{_CHAR}*)*"
_URI = f"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_AUTHORITY}|/?{_CHAR}+(?:/{_CHAR}*)*){_TAIL}"
_RELATIVE = f"(?:{_AUTHORITY}|/(?:{_CHAR}+(?:/{_CHAR}*)*)?|{_CHAR_WITHOUT_COLON}+(?:/{_CHAR}*)*)?{_TAIL}"

_VARIABLE = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?"
_TEMPLATE = rf"(?:[A-Za-z0-9._~!$&()*+,;=:@/?#\[\]-]|%[0-9a-fA-F]{{2}}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

_ESCAPE = r"\\[dDwWsSbBtnrfv.*+?^$|/()\[\]{}\\-]"
_CLASS = r"\[\^?(?:a-z|A-Z|0-9|[a-zA-Z0-9 _.,:;@#%&=!~/'\"<>$*+?(){}|]|\\[dDwWsStnrfv.*+?^$|/()\[\]{}\\-])+-?\]"
_TIMES = r"(?:[*+?]\??|\{[0-9]{1,3},?\}\??)?"


def _regex(depth: int) -> str:
    """A regular expression for nested groups."""
    atom = rf"[a-zA-Z0-9 _,:;@#%&=!~/'\"<>.-]|{_ESCAPE.replace('bB', '')}|{_CLASS}"
    if depth:
        atom += rf"|\((?:\?:)?{_regex(depth - 1)}\)"
    sequence = rf"\^?(?:(?:{atom}){_TIMES}|\\[bB])*\$?"
    return rf"{sequence}(?:\|{sequence})*"


FORMATS: dict[str, str | None] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "iri-reference": f"(?:{_URI}|{_RELATIVE})",
    "uri-template": _TEMPLATE,
    "regex": _regex(2),
    **dict.fromkeys(("duration", "email", "ipv4", "ipv6", "uri", "uuid")),
}
"""The pattern of each format; None if llguidance has its own. All other formats are annotations."""

SAME_AS = {"idn-email": "email", "iri": "uri"}
"""Formats that are replaced by narrower ones."""

LONGEST = {"hostname": 253, "idn-hostname": 253}
"""The maximum length of each format in characters."""
