"""Personal data in text: e-mails, phones, CPF, CNPJ, payment cards.

Every pattern starts at a fixed boundary and has bounded repeats, so the cost is linear in the text. Numbers count only
when their check digits hold, and their layout is one that people write: dates, versions, ISBNs, UUIDs and hashes stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Found = tuple[str, int]
"""The kind of what was found, and where it ends."""
Judge = Callable[[re.Match[str]], Found | None]
"""Looks at a match: what it is, or None when it only looks like it."""

# One line break between groups of digits is still the same number: mails and diffs wrap.
_GAP = r"(?:[ .\-]?(?:\r?\n|\\n)[ \t>+|]{0,8}|[ .\-\u00a0\u2009\u2011])"
# Letters may touch through an underscore or a hyphen (file names), digits may not: 1.2.3 or a UUID goes on.
# The last two alternatives: right after an escape of JSON (\n) or of a URL (%3D), whose letters belong to no word.
_LEFT = r"(?:(?<![^\W_])(?<!\d[.\-])|(?<=\\[bfnrt])|(?<=%[0-9A-F]{2}))"
_RIGHT = r"(?![^\W_]|[.\-]\d)"


def luhn(digits: str) -> bool:
    """Whether the digits carry a valid Luhn check digit."""
    total = 0
    for index, char in enumerate(reversed(digits)):
        value = int(char)
        if index % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def valid_cpf(digits: str) -> bool:
    """Whether eleven digits are a CPF: both check digits hold and not all digits are equal."""
    numbers = [int(char) for char in digits]
    if len(numbers) != 11 or len(set(numbers)) == 1:
        return False
    for length in (9, 10):
        total = sum(number * (length + 1 - index) for index, number in enumerate(numbers[:length]))
        if total * 10 % 11 % 10 != numbers[length]:
            return False
    return True


def valid_cnpj(text: str) -> bool:
    """Whether fourteen characters are a CNPJ, in the numeric form or in the alphanumeric one of 2026."""
    text = text.upper()
    if len(text) != 14 or len(set(text)) == 1:
        return False
    # The value of a character is its ASCII code less 48; a digit of any script counts as itself.
    values = [int(char) if char.isdigit() else ord(char) - 48 for char in text]
    for length in (12, 13):
        weights = [(length - 1 - index) % 8 + 2 for index in range(length)]
        rest = sum(value * weight for value, weight in zip(values, weights, strict=False)) % 11
        if values[length] != (0 if rest < 2 else 11 - rest):
            return False
    return True


_CARD_NETWORKS: tuple[tuple[re.Pattern[str], frozenset[int]], ...] = tuple(
    (re.compile(prefix), frozenset(lengths))
    for prefix, lengths in (
        (r"4", (13, 16, 19)),
        (r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720", (16,)),
        (r"3[47]", (15,)),
        (r"36|38|30[0-5]|309", (14, 16)),
        (r"6011|64[4-9]|65|62", (16, 17, 18, 19)),
        (r"35(?:2[89]|[3-8])", (16, 17, 18, 19)),
        (r"50(?:4175|6[67]|9)|627780|636(?:297|368)|606282|3841", (16, 19)),
        (r"5018|5020|5038|5893|6304|6759|676[1-3]", (13, 14, 15, 16, 17, 18, 19)),
    )
)


def valid_card(digits: str) -> bool:
    """Whether the digits are a payment card: Luhn, and a prefix and length that a network issues."""
    return (
        len(set(digits)) > 1
        and any(len(digits) in lengths and prefix.match(digits) for prefix, lengths in _CARD_NETWORKS)
        and luhn(digits)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words in a string, split: as literals one by one they would fill a page.
_COUNTRY_CODES = _words(
    "1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 "
    "81 82 84 86 90 91 92 93 94 95 98 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 "
    "233 234 235 236 237 238 239 240 241 242 243 244 245 246 248 249 250 251 252 253 254 255 256 257 258 260 "
    "261 262 263 264 265 266 267 268 269 290 291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 "
    "372 373 374 375 376 377 378 380 381 382 383 385 386 387 389 420 421 423 500 501 502 503 504 505 506 507 "
    "508 509 590 591 592 593 594 595 596 597 598 599 670 672 673 674 675 676 677 678 679 680 681 682 683 685 "
    "686 687 688 689 690 691 692 800 850 852 853 855 856 870 880 886 888 960 961 962 963 964 965 966 967 968 "
    "970 971 972 973 974 975 976 977 979 992 993 994 995 996 998"
)
_AREAS_BR = _words(
    "11 12 13 14 15 16 17 18 19 21 22 24 27 28 31 32 33 34 35 37 38 41 42 43 44 45 46 47 48 49 51 53 54 55 61 "
    "62 63 64 65 66 67 68 69 71 73 74 75 77 79 81 82 83 84 85 86 87 88 89 91 92 93 94 95 96 97 98 99"
)


def _brazilian(digits: str) -> bool:
    """Whether ten or eleven digits are a Brazilian number with its area code."""
    if digits[:2] not in _AREAS_BR:
        return False
    return (len(digits) == 11 and digits[2] == "9") or (len(digits) == 10 and digits[2] in "2345")


def valid_international(digits: str) -> bool:
    """Whether digits written after a plus sign are a phone number of E.164."""
    if digits.startswith("1"):
        return len(digits) == 11 and digits[1] in "23456789" and digits[4] in "23456789"
    if digits.startswith("55"):
        return len(digits) in {12, 13} and _brazilian(digits[2:])
    return 9 <= len(digits) <= 15 and any(digits[:size] in _COUNTRY_CODES for size in (1, 2, 3))


def digits_of(text: str) -> str:
    """Only the digits, in ASCII, whatever script they were written in."""
    return "".join(str(int(char)) for char in text if char.isdecimal())


_EMAIL = re.compile(
    # The local part starts where no address character precedes it, so every run is read once; the letter of an
    # escape (\n in JSON) is not part of it.
    r"(?:(?<![\w.+'%\-])(?!(?<=\\)[bfnrt])|(?<=\\[bfnrt]))(?P<local>(?:[\w.+'\-]|%(?!40))++)"
    r"(?:@|\uff20|%40|\\u0040|&#64;|&commat;|\s?[\[(]\s?(?:at|arroba)\s?[\])]\s?)"
    r"(?P<domain>(?:\w(?:[\w\-]{0,61}\w)?(?:\.|\s?[\[(]\s?(?:dot|ponto)\s?[\])]\s?)){1,8}[^\W\d_]{2,24})(?!\w)"
)
_EMAIL_AT = re.compile(r"(?<=<)\w[\w.+\-]{0,63} (?:at|arroba) (?:[\w\-]{1,63}\.){1,5}[a-z]{2,24}(?=>)", re.IGNORECASE)
_AT_SIGNS = ("@", "\uff20", "%40", "\\u0040", "&#64;", "&commat;")
_EMAIL_HINT = re.compile(r"[\[(] ?(?:at|arroba|AT|ARROBA) ?[\])]")
# ``checkout@v4.1.beta`` is a version, ``icon@2x.png`` an image of double density.
_NOT_A_DOMAIN = re.compile(r"v?\d+\.\d|[1-4]x\.", re.IGNORECASE)

_CPF = re.compile(rf"{_LEFT}(?:\d{{3}}{_GAP}\d{{3}}{_GAP}\d{{3}}(?:{_GAP}|/)?\d{{2}}|\d{{9}}-?\d{{2}}){_RIGHT}")
_CNPJ = re.compile(
    rf"{_LEFT}(?:[^\W_]{{2}}[. ][^\W_]{{3}}[. ][^\W_]{{3}}(?:/|{_GAP})?[^\W_]{{4}}(?:{_GAP})?\d{{2}}"
    rf"|[0-9A-Z]{{8}}/[0-9A-Z]{{4}}-?\d{{2}}|[0-9A-Z]{{12}}-?\d{{2}}){_RIGHT}"
)
_CARD = re.compile(
    rf"{_LEFT}(?:\d{{4}}{_GAP}\d{{4}}{_GAP}\d{{4}}{_GAP}\d{{1,4}}(?:{_GAP}\d{{3}})?"
    rf"|\d{{4}}{_GAP}\d{{6}}{_GAP}\d{{4,5}}|\d{{13,19}}){_RIGHT}"
)
_PHONE_PLUS = re.compile(
    rf"(?<![^\W_])(?:\+|%2B|00(?=55))\(?\d(?:[()]?(?:{_GAP})?[()]?\d){{7,17}}+(?!\d)", re.IGNORECASE
)
_PHONE_BR = re.compile(
    rf"{_LEFT}(?:55{_GAP})?(?:\(0?\d{{2}}\)[ ]?|0?\d{{2}}[ .\-])(?:9[ .]?)?\d{{4}}{_GAP}\d{{4}}{_RIGHT}"
)
_PHONE_BR_PLAIN = re.compile(rf"{_LEFT}(?:\(\d{{2}}\) ?9?\d{{8}}|(?:55)?\d{{2}} ?9\d{{8}}){_RIGHT}")
_PHONE_US = re.compile(rf"{_LEFT}(?:1[ .\-])?(?:\([2-9]\d{{2}}\) ?|[2-9]\d{{2}}[.\-])[2-9]\d{{2}}[.\-]\d{{4}}{_RIGHT}")
_PHONE_LABELLED = re.compile(
    r"\b(?P<label>(?:tel(?:efone|ephone)?|fone|phone|celular|cell|mobile|whats ?app)"
    r"(?:[ _](?:number|n[úu]mero|n[º°o]))?"
    r"\.?\\?[\"']?[ \t]{0,3}[:=]?[ \t]{0,3}\\?[\"']?)(?P<number>[+(]?\d[\d ().\-]{6,18}\d)(?!\w)",
    re.IGNORECASE,
)
_TIMESTAMP = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])[0-5]\d[0-5]\d")
_YEARS = re.compile(r"(?:19|20)\d\d(?:19|20)\d\d")
_GROUP_END = re.compile(r"\d(?!\d)")


def _longest(match: re.Match[str], kind: str, valid: Callable[[str], bool]) -> Found | None:
    """The longest run of whole digit groups of the match that is valid: what follows may be another number."""
    ends = [group.end() for group in _GROUP_END.finditer(match[0])]
    for end in reversed(ends):
        if valid(digits_of(match[0][:end])):
            return kind, match.start() + end
    return None


def _email(match: re.Match[str]) -> Found | None:
    # ``git@host:path`` is the address of a repository, not of a person.
    if match["local"] == "git" or _NOT_A_DOMAIN.match(match["domain"]):
        return None
    return "EMAIL", match.end()


def _cpf(match: re.Match[str]) -> Found | None:
    return ("CPF", match.end()) if valid_cpf(digits_of(match[0])) else None


def _cnpj(match: re.Match[str]) -> Found | None:
    raw = "".join(char for char in match[0].replace("\\n", "") if char.isalnum())
    if not valid_cnpj(raw):
        return None
    if match[0].isalnum():
        # Without punctuation it must not be an upper-case word or a compact time of day.
        if raw[:12].isalpha():
            return None
        if _TIMESTAMP.fullmatch(raw) and raw[8:12] != "0001":
            return None
    return "CNPJ", match.end()


def _card(match: re.Match[str]) -> Found | None:
    return _longest(match, "CARD", valid_card)


def _phone_plus(match: re.Match[str]) -> Found | None:
    # ``%2B`` is a plus sign with one digit in its spelling; ``00`` is the plus sign of an old dial.
    skip = 1 if match[0][0] == "%" else 2 if match[0][0] == "0" else 0
    return _longest(match, "PHONE", lambda digits: valid_international(digits[skip:]))


def _phone_br(match: re.Match[str]) -> Found | None:
    digits = digits_of(match[0]).removeprefix("0")
    if len(digits) in {12, 13}:
        digits = digits.removeprefix("55")
    if len(digits) == 10 and "(" not in match[0] and ("-" not in match[0] or _YEARS.fullmatch(digits[2:])):
        return None
    return ("PHONE", match.end()) if _brazilian(digits) else None


def _phone_labelled(match: re.Match[str]) -> Found | None:
    return ("PHONE", match.end()) if 8 <= len(digits_of(match["number"])) <= 15 else None


Region = tuple[int, int]
"""Where in a text a match may lie: from, to."""
Regions = Callable[[str], list[Region]]
"""Finds them cheaply: most text holds none, and nothing else of it is read. Without overlaps, in order."""

# Ten digits with no more between two of them than a gap of any rule. As many more as follow belong to the region.
_TEN_DIGITS = re.compile(r"\d(?:\D{0,14}\d){9,}")
_TWO_DIGITS = re.compile(r"\d\d(?![^\W_])")
_LONGEST_CNPJ = 40
_PHONE_WORDS = ("tel", "fone", "phone", "celular", "cell", "mobile", "whats")
# What stands in front of the first digit of a number, and how far to its right a rule looks.
_LEAD = 4
_LOOKAHEAD = 2


def _whole(text: str) -> list[Region]:
    return [(0, len(text))]


def _near_at(text: str) -> list[Region]:
    found = any(sign in text for sign in _AT_SIGNS) or _EMAIL_HINT.search(text) is not None
    return _whole(text) if found else []


def _near_angle(text: str) -> list[Region]:
    return _whole(text) if "<" in text and (" at " in text or " arroba " in text) else []


def _near_ten_digits(text: str) -> list[Region]:
    return [(max(0, found.start() - _LEAD), found.end() + _LOOKAHEAD) for found in _TEN_DIGITS.finditer(text)]


def _near_two_digits(text: str) -> list[Region]:
    regions: list[Region] = []
    for found in _TWO_DIGITS.finditer(text):
        start, end = max(0, found.start() - _LONGEST_CNPJ), found.end() + _LOOKAHEAD
        if regions and start <= regions[-1][1]:
            regions[-1] = (regions[-1][0], end)
        else:
            regions.append((start, end))
    return regions


def _near_plus(text: str) -> list[Region]:
    return _whole(text) if "+" in text or "%2" in text or "00" in text else []


def _near_phone_word(text: str) -> list[Region]:
    lowered = text.lower()
    return _whole(text) if any(word in lowered for word in _PHONE_WORDS) else []


@dataclass(frozen=True, slots=True)
class PersonalRule:
    """A pattern, who judges its matches, and where in a text to look for them."""

    regions: Regions
    pattern: re.Pattern[str]
    judge: Judge
    keep: str = ""
    """Name of a leading group that stays, e.g. a label."""


PERSONAL: tuple[PersonalRule, ...] = (
    PersonalRule(_near_at, _EMAIL, _email),
    PersonalRule(_near_angle, _EMAIL_AT, lambda match: ("EMAIL", match.end())),
    PersonalRule(_near_two_digits, _CNPJ, _cnpj),
    PersonalRule(_near_ten_digits, _CARD, _card),
    PersonalRule(_near_ten_digits, _CPF, _cpf),
    PersonalRule(_near_plus, _PHONE_PLUS, _phone_plus),
    PersonalRule(_near_phone_word, _PHONE_LABELLED, _phone_labelled, keep="label"),
    PersonalRule(_near_ten_digits, _PHONE_BR, _phone_br),
    PersonalRule(_near_ten_digits, _PHONE_BR_PLAIN, _phone_br),
    PersonalRule(_near_ten_digits, _PHONE_US, lambda match: ("PHONE", match.end())),
)
"""In this order: a CNPJ or card would otherwise be half read as a phone."""
