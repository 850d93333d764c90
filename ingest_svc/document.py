"""Reading the structure of a document: front matter, header block, sections, lists, dates, references."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it up to the next heading, of whatever level."""

    level: int
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text by its parts."""

    headers: Mapping[str, str]
    """Front matter or header block; keys lower-cased, with dashes."""
    preamble: str
    """What stands before the first heading, without the headers."""
    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        """The first heading of the first level, if any."""
        return next((section.title for section in self.sections if section.level == 1), "")


_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_ATX = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*[ \t]*$")
_UNDERLINE = re.compile(r"([=\-~^\"'`+*#:.])\1{2,}[ \t]*$")
_HEADER = re.compile(
    r"(?:[-*][ \t]+)?(?:\*\*)?([^\W\d_][\w /\-]{0,40}?)(?:\*\*)?[ \t]*:(?:\*\*)?(?:[ \t]+(.*)|[ \t]*)$"
)
_BULLET = re.compile(r"[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+(.*)$")


def fold(text: str) -> str:
    """Lower case, accents off, runs of blanks to one: for comparing words, not for showing."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return " ".join(plain.lower().split())


def slug(text: str, limit: int = 60) -> str:
    """A text as part of an identity key."""
    return re.sub(r"[^a-z0-9]+", "-", fold(text)).strip("-")[:limit].strip("-")


def parse(text: str) -> Document:
    """Take a document apart. Any text is a document: what has no structure is all preamble."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    headers, rest = _front_matter(text)
    if not headers:
        headers, rest = _header_block(text)
    lines = _without_comments(rest).split("\n")
    sections: list[Section] = []
    preamble: list[str] = []
    body = preamble
    pending: tuple[int, str] | None = None
    underlines: list[str] = []
    fence = ""

    def close() -> None:
        if pending is not None:
            sections.append(Section(pending[0], pending[1], "\n".join(body).strip()))

    index = 0
    while index < len(lines):
        line = lines[index]
        mark = _FENCE.match(line)
        if mark is not None:
            fence = "" if fence == mark[1] else fence or mark[1]
        heading = None if fence else _heading(lines, index, underlines)
        if heading is None:
            body.append(line)
            index += 1
            continue
        close()
        level, title, used = heading
        pending, body = (level, title), []
        index += used
    close()
    return Document(headers, "\n".join(preamble).strip(), tuple(sections))


def _without_comments(text: str) -> str:
    """The text without the comments of HTML, which templates are full of; one that never ends is text."""
    parts: list[str] = []
    position = 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        parts.append(text[position:start])
        position = end + 3
    parts.append(text[position:])
    return "".join(parts)


def _heading(lines: list[str], index: int, underlines: list[str]) -> tuple[int, str, int] | None:
    line = lines[index]
    atx = _ATX.match(line)
    if atx is not None:
        return len(atx[1]), _plain(atx[2]), 1
    following = lines[index + 1] if index + 1 < len(lines) else ""
    underline = _UNDERLINE.match(following)
    if underline is None or not line.strip() or line[0] in " \t" or _UNDERLINE.match(line) or _BULLET.match(line):
        return None
    # In reStructuredText the order in which underlines appear gives their levels; Markdown has = and -.
    mark = underline[1]
    if mark not in "=-" and len(following.strip()) < len(line.strip()):
        return None
    if mark == "-" and index and lines[index - 1].strip():
        return None
    if mark not in underlines:
        underlines.append(mark)
    return underlines.index(mark) + 1, _plain(line), 2


def _plain(title: str) -> str:
    return title.strip().strip("*_`").strip()


def _front_matter(text: str) -> tuple[dict[str, str], str]:
    lines = text.lstrip("\n").split("\n")
    if not lines or lines[0].strip() not in {"---", "+++"}:
        return {}, text
    mark = lines[0].strip()
    end = next((i for i, line in enumerate(lines[1:400], 1) if line.strip() == mark), None)
    if end is None:
        return {}, text
    headers: dict[str, str] = {}
    key = ""
    for line in lines[1:end]:
        bullet = re.match(r"[ \t]*-[ \t]+(.*)$", line)
        if bullet is not None and key:
            headers[key] = ", ".join(filter(None, (headers[key], _unquote(bullet[1]))))
            continue
        field = re.match(r"([^\W\d_][\w \-]{0,40}?)[ \t]*[:=][ \t]*(.*)$", line)
        if field is not None:
            key = header_key(field[1])
            value = field[2].split(" #", 1)[0].strip() if not field[2].startswith(('"', "'")) else field[2].strip()
            if value.startswith("[") and value.endswith("]") and "](" not in value:
                value = ", ".join(_unquote(part) for part in value[1:-1].split(","))
            headers[key] = "" if value in {"|", ">", "|-", ">-", "null", "~"} else _unquote(value)
        elif line[:1] in " \t" and key and line.strip():
            headers[key] = " ".join(filter(None, (headers[key], line.strip())))
    return headers, "\n".join(lines[end + 1 :])


def _header_block(text: str) -> tuple[dict[str, str], str]:
    """``Key: value`` lines at the very start, as PEPs and mails have them; continued lines are indented."""
    lines = text.lstrip("\n").split("\n")
    headers: dict[str, str] = {}
    key = ""
    index = 0
    for index, line in enumerate(lines):  # noqa: B007 - the index after the loop is where the headers end
        if not line.strip():
            break
        if line[0] in " \t" and key:
            headers[key] = f"{headers[key]} {line.strip()}".strip()
            continue
        field = re.match(r"([A-Za-zÀ-ÿ][\wÀ-ÿ \-]{0,40}?)[ \t]*:[ \t]*(.*)$", line)
        if field is None:
            return {}, text
        key = header_key(field[1])
        # Given twice: the first counts.
        key = "" if key in headers else key
        if key:
            headers[key] = field[2].strip()
    else:
        index = len(lines)
    # One line with a colon is a sentence, not a header block.
    return (headers, "\n".join(lines[index:])) if len(headers) >= 2 else ({}, text)


def field_lines(text: str) -> dict[str, str]:
    """``- Status: accepted`` and ``**Date:** 2020-01-01`` lines of a text."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        field = _HEADER.match(line.strip())
        if field is not None and field[2]:
            found.setdefault(header_key(field[1]), field[2].strip().strip("*").strip())
    return found


def header_key(name: str) -> str:
    """A header's name in one spelling: ``Superseded By``, ``superseded_by`` and ``Superseded-By`` are one."""
    return fold(name).replace(" ", "-").replace("_", "-")


def _unquote(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def bullets(text: str) -> tuple[str, ...]:
    """The items of the lists in a text, at their outermost level; continued lines are joined."""
    items: list[str] = []
    indent: int | None = None
    open_item = False
    for line in text.split("\n"):
        item = _BULLET.match(line)
        depth = len(line) - len(line.lstrip())
        if item is not None and (indent is None or depth <= indent):
            indent = depth
            items.append(item[1].strip())
            open_item = True
        elif not line.strip():
            open_item = False
        elif items and (open_item or depth > (indent or 0)):
            items[-1] = f"{items[-1]} {line.strip().lstrip('-*+ ')}".strip()
        else:
            open_item = False
    return tuple(item for item in items if item)


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a text, each on one line."""
    return tuple(" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", text) if part.strip())


_MONTHS = {
    month: number
    for number, months in enumerate(
        (
            ("jan", "january", "janeiro"),
            ("feb", "february", "fev", "fevereiro"),
            ("mar", "march", "marco"),
            ("apr", "april", "abr", "abril"),
            ("may", "mai", "maio"),
            ("jun", "june", "junho"),
            ("jul", "july", "julho"),
            ("aug", "august", "ago", "agosto"),
            ("sep", "sept", "september", "set", "setembro"),
            ("oct", "october", "out", "outubro"),
            ("nov", "november", "novembro"),
            ("dec", "december", "dez", "dezembro"),
        ),
        1,
    )
    for month in months
}
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?))?")
_DAY_MONTH_YEAR = re.compile(
    r"\b(\d{1,2})(?:[ \-.]|st |nd |rd |th |º )(?:de )?([a-z]{3,9})\.?,?(?:[ \-.])(?:de )?(\d{4})\b"
)
_MONTH_DAY_YEAR = re.compile(r"\b([a-z]{3,9})\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4})\b")
_SLASHED = re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b")
_YEAR_SLASHED = re.compile(r"\b(\d{4})/(\d{1,2})/(\d{1,2})\b")


def date_in(text: str) -> datetime | None:
    """The first date that a text names, at the start of its day in UTC; None when it names none.

    ``01/02/2020`` is read as in Portuguese and most of the world, day first, unless the month would be above twelve.
    """
    iso = _ISO.search(text)
    if iso is not None:
        day = _day(int(iso[1]), int(iso[2]), int(iso[3]))
        if iso[4] and day is not None:
            try:
                moment = datetime.fromisoformat(f"{iso[1]}-{iso[2]}-{iso[3]}T{iso[4]}")
            except ValueError:
                return day
            # A time without an offset is not an instant: the day is all that is sure.
            return moment.astimezone(UTC) if moment.tzinfo is not None else day
        return day
    plain = fold(text)
    found = _YEAR_SLASHED.search(plain)
    if found is not None:
        return _day(int(found[1]), int(found[2]), int(found[3]))
    found = _DAY_MONTH_YEAR.search(plain)
    if found is not None and found[2] in _MONTHS:
        return _day(int(found[3]), _MONTHS[found[2]], int(found[1]))
    found = _MONTH_DAY_YEAR.search(plain)
    if found is not None and found[1] in _MONTHS:
        return _day(int(found[3]), _MONTHS[found[1]], int(found[2]))
    found = _SLASHED.search(plain)
    if found is not None:
        first, second = int(found[1]), int(found[2])
        return _day(int(found[3]), second, first) if second <= 12 else _day(int(found[3]), first, second)
    return None


def _day(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return None


_KEYED = re.compile(r"\b(adr|pep|rfc|kep|pr)[ \-_/#]{0,2}0*(\d{1,5})\b", re.IGNORECASE)
_LINKED = re.compile(r"\(\s*<?([^\s()<>]+?\.(?:md|markdown|adoc|rst|txt))(?:#[^)\s]*)?>?\s*\)", re.IGNORECASE)
_BARE_FILE = re.compile(
    r"(?<![\w/.\-])((?:[\w.\-]+/)*\d{1,5}[-_][\w.\-]+\.(?:md|markdown|adoc|rst|txt))\b", re.IGNORECASE
)
_LABELLED = re.compile(r"\[\s*0*(\d{1,5})[.:)]\s")
_BARE_NUMBER = re.compile(r"(?<![\w/.\-])#?0*(\d{1,5})(?![\w/.\-])")


def identity_of_number(kind: str, number: int) -> str:
    """``adr/0007``, ``pep/517``: ADRs keep the four digits that their files have."""
    return f"adr/{number:04d}" if kind == "adr" else f"{kind}/{number}"


def identity_of_path(path: str, kind: str) -> str:
    """The identity that a file's name gives: its number, or its name as a slug."""
    name = path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    stem = re.sub(r"\.(?:md|markdown|adoc|rst|txt)$", "", name, flags=re.IGNORECASE)
    numbered = re.match(r"(?:(adr|pep|rfc|kep)[-_ ]?)?0*(\d{1,5})(?:[-_. ]|$)", stem, re.IGNORECASE)
    if numbered is not None:
        return identity_of_number((numbered[1] or kind).lower(), int(numbered[2]))
    return f"{kind}/{slug(stem)}" if slug(stem) else ""


def references(text: str, kind: str, *, bare_numbers: bool = False) -> tuple[str, ...]:
    """The identity keys that a text refers to, in order, each once."""
    found: list[tuple[int, str]] = [
        (match.start(), identity_of_number(match[1].lower(), int(match[2]))) for match in _KEYED.finditer(text)
    ]
    for match in _LINKED.finditer(text):
        target = match[1]
        if "://" not in target:
            found.append((match.start(), identity_of_path(target, kind)))
    found += [(match.start(), identity_of_path(match[1], kind)) for match in _BARE_FILE.finditer(text)]
    found += [(match.start(), identity_of_number(kind, int(match[1]))) for match in _LABELLED.finditer(text)]
    if bare_numbers and not found:
        found += [(match.start(), identity_of_number(kind, int(match[1]))) for match in _BARE_NUMBER.finditer(text)]
    return tuple(dict.fromkeys(key for _, key in sorted(found) if key))


def join_sections(parts: Iterable[tuple[str, str]]) -> str:
    """Several parts of a document as one text, each under its heading."""
    return "\n\n".join(f"{title}\n{body}" if title else body for title, body in parts if body.strip())
