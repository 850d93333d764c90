"""Passwords and secrets that are given a name: JSON, YAML, env and ini files, shell, source code, prose; two languages.

A keyword is searched, then what stands to its right is read by hand: the rest of the key, the sign of assignment, the
value. Each step has a bounded length, so the cost is linear. The name stays and the value goes, unless the value
plainly is none: an expression, a type, a reference to a variable, a placeholder, a word of prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from service_kit.sanitising.secret_shapes import Span, looks_secret

# The strong words name a password whatever it looks like; the weak ones also have other uses.
_STRONG_WORDS = (
    r"passw(?:or)?ds?",
    r"passwd",
    r"passphrase",
    r"pass[_-]?code",
    r"pwd",
    r"senhas?",
    r"contrase[nñ]a",
    r"palavra[_-]?(?:passe|chave)",
    r"frase[_-]?(?:secreta|senha)",
)
_SECRET_WORDS = (
    r"client[_-]?secret",
    r"secret[_-]?key",
    r"secrets?",
    r"segredos?",
    r"api[_-]?(?:key|secret)s?",
    r"access[_-]?key(?:[_-]?id)?",
    r"private[_-]?key",
    r"(?:encryption|signing|signature|master|account|shared[_-]?access|storage|session|cookie|license)[_-]?key",
    r"(?:hmac|deploy|webhook|service)[_-]?key",
    r"credentials?",
    r"credencia(?:l|is)",
    r"chaves?[_-]?(?:d[aeo][_-]?)?(?:api|acesso|privada|secreta|mestra|criptografia|assinatura)",
    r"conn(?:ection)?[_-]?str(?:ing)?",
)
_WEAK = r"(?:auth|access|refresh|id|bearer|session|api|bot|deploy|personal[_-]?access)?[_-]?tokens?|otp|pin[_-]?code"
_SHORT = r"(?<=[_\-])pass|(?<![A-Za-z])PASS(?=[ \t]{0,2}=)|(?<=[a-z])Pass(?=\s?[\"']?\s?[=:])"
_KEYWORD = re.compile(
    rf"(?P<strong>{'|'.join(_STRONG_WORDS)}|(?-i:{_SHORT}))|(?P<secret>{'|'.join(_SECRET_WORDS)})|(?P<weak>{_WEAK})",
    re.IGNORECASE,
)

# Every keyword holds one of these; they are searched first, in the lower-cased text, because that is ten times faster.
_STEM = re.compile(r"pass|pwd|senha|contrase|palavra|frase|secret|segred|key|creden|chave|conn|token|otp|pin")
_LONGEST_LEAD = 24
_LONGEST_KEYWORD = 48

# A key whose tail says that its value is about a secret, not one.
_ABOUT = (
    "type|count|url|uri|limit|len|length|size|policy|policies|field|name|names|path|file|files|dir|ttl|lifetime|budget|"
    "endpoint|format|class|prefix|pattern|regex|required|enabled|rotation|expir\\w*|age|min|max|ref|refs|keyref|id|index|"
    "usage|strength|reset|hint|changed|manager|provider|store|version|arn|algorithm|issuer|audience|scope|scopes|"
    "validator\\w*|hasher\\w*|forgot\\w*"
)
_OTHER_WORDS = "iz\\w*|is(?:e|er|ation|ado|ar)\\w*|ary|aries|ariat\\w*|ly|less|ed|ing|ization"
_HARMLESS_TAIL = re.compile(rf"(?:[_\-.]?(?:{_ABOUT})|{_OTHER_WORDS})(?![a-z])", re.IGNORECASE)
_TAIL = re.compile(r"[\w.\-]{0,40}")
_QUOTE = re.compile(r"\\{0,7}[\"'`]")
_SIGN = re.compile(r"[ \t]{0,32}(?::=|=>|==?|:|->)[ \t]{0,32}")
_NEXT_LINE = re.compile(r"(?:\r?\n|\\r\\n|\\n)[ \t+>|]{0,60}")
_BLOCK = re.compile(r"[|>][+\-]?\d?[ \t]*(?:\r?\n|\\n)")
_VALUE_KEY = re.compile(
    r"[,;]?(?:\s|\\n){0,20}(?:[\"'`]|\\\")?(?:value|valor)(?:[\"'`]|\\\")?[ \t]{0,8}[:=][ \t]{0,8}", re.IGNORECASE
)
# ``- name: DB_PASSWORD`` and ``<tag``, looked for to the left of a keyword.
_NAME_KEY = re.compile(r"(?:name|nome|key|chave)\\?[\"']?\s?[:=]\s?\\?[\"']?[\w.\-]*$", re.IGNORECASE)
_TAG_START = re.compile(r"<[\w.:\-]*$")
_XML = re.compile(r">[ \t\r\n]{0,40}(?P<value>[^<>\s][^<>]{0,1023})(?=</)")
_TYPED = re.compile(r"[ \t]{0,4}:[ \t]{0,4}[A-Za-z_][\w.\[\]| ,]{0,60}?[ \t]{0,4}(?==[ \t]{0,4}[brfuBRFU]{0,2}[\"'])")
_PROSE = re.compile(
    r"(?:[ \t]{1,3}[^\W\d_]{1,14}){0,4}?[ \t]{0,3}"
    r"(?:(?::|=)[ \t]{0,3}|[ \t](?:is|was|are|será|e|é|eh|era|foi|para)[ \t]{1,3}:?[ \t]{0,3})"
    r"\\?[\"'`“]?(?P<value>[^\s\"'`<>“”\\]{4,256})",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?:[ \t]{1,8}|=)(?P<quote>[\"']?)(?P<value>[^\s\"'\-$<{\[][^\s\"']{0,255})")
_QUOTED: dict[str, re.Pattern[str]] = {
    quote: re.compile(rf"(?:\\.|(?!{quote})[^\\\n]){{0,8192}}", re.DOTALL) for quote in ('"', "'", "`")
}
_TRIPLE = re.compile(r"(?:\"\"\"|''')")
_ADJACENT = re.compile(r"[ \t]{0,20}[+.\\&]?[ \t]{0,20}(?:\r?\n|\\\n)?[ \t+|>]{0,60}[+.&]?[ \t]{0,20}(?=[\"'])")
_BARE = re.compile(r"[^\s\"'`,;<>{}()\[\]|&\\]{1,512}")
_BARE_ENV = re.compile(r"[^\s\"'`]{1,512}")
_PREFIX = re.compile(r"[brfuBRFU@$]{0,2}(?=[\"'`])|[(\[][ \t]{0,8}(?:\r?\n[ \t]{0,40})?[brfuBRFU]{0,2}(?=[\"'`])")
_FIRST_WORD = re.compile(r"\S{0,200}")
_NOT_ONE_SCALAR = re.compile(r"[\"'{}\[\]()<>,;=:\\#|]")
_CONTINUED = re.compile(r"\\\r?\n[ \t]{0,40}([^\s\"'`,;]{1,512})")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_VALUE = _words(
    "str string bytes int integer bool boolean float none null nil true false optional any object undefined "
    "required yes no on off self cls var let const type text char varchar enabled disabled default example todo "
    "tbd changeme_here obrigatório obrigatorio opcional sim não nao nulo verdadeiro falso texto hidden masked "
    "redacted omitted removed empty vazio secretstr sensitive anystr unicode binary list dict tuple set array "
    "sequence mapping iterable callable literal final field uuid guid hash hashed encrypted the a an is are was "
    "be must may can should will would of to for in with and or that this these those it its if when which who "
    "from by as at not your our their his her my o os as um uma uns umas é foi ser deve pode de do da dos das em "
    "no na nos nas com e ou que se ao à aos às por para sem seu sua meu minha nosso nossa"
)
_CODE_ROOT = re.compile(
    r"(?:self|cls|os|sys|settings|config|cfg|conf|args|env|environ|options|opts|request|req|this|process|secrets|getpass|vault|"
    r"params|data|body|payload|user|ctx|context|var|vars|local|module|node|token|response|resp|ast|tok|tokenize|string|system|app)[.\[(\-]",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"\$\{|\$\(|\{\{|\$(?:[A-Z][A-Z_]*[A-Z0-9]|[a-z][a-z_]*)\W*$|%[A-Za-z_]+%|%\(\w+\)s|<[^<>]{0,80}>?$|#\{|@\{|<%|file:|env:|vault:|op://|arn:aws:"
)
_PLACEHOLDER = re.compile(r"\[REDACTED:[A-Z_]+\]|[*xX•.·\-_?]{3,}$|…$")
_CALL = re.compile(r"[A-Za-z_][\w.]{0,80}[(\[]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.]{0,80}$")
_NUMBER = re.compile(r"[+\-]?\d[\d_.,]{0,20}[kKmM]?$")


def is_secret_key(key: str) -> bool:
    """Whether a name, as of an attribute, says that its value is a secret."""
    for found in _KEYWORD.finditer(key):
        if _HARMLESS_TAIL.match(key, found.end()) is None and not _counts(key, found):
            return True
    return False


def is_secret_value(value: str) -> bool:
    """Whether a value that stands under a secret's name is one, and not a reference, a placeholder or nothing."""
    value = value.strip()
    return bool(value) and not _is_no_value(value)


def assignment_spans(text: str) -> Iterator[Span]:
    """Every value that is assigned to the name of a secret."""
    lowered = text.lower()
    if len(lowered) != len(text):
        # A few letters grow when lowered; positions must stay those of the text.
        lowered = "".join(low if len(low := char.lower()) == 1 else char for char in text)
    position = 0
    while (stem := _STEM.search(lowered, position)) is not None:
        start = max(position, stem.start() - _LONGEST_LEAD)
        found = _KEYWORD.search(text, start, min(len(text), stem.end() + _LONGEST_KEYWORD))
        if found is None:
            position = stem.end()
            continue
        position = found.end()
        span = _read(text, found)
        if span is not None and span.end > span.start:
            yield span
            position = max(position, span.end)


def _counts(text: str, found: re.Match[str]) -> bool:
    """``max_tokens``, ``n_tokens``, ``num_tokens``: a number of tokens, not one."""
    if not found["weak"] or not found[0].lower().endswith("s"):
        return False
    before = text[max(0, found.start() - 8) : found.start() + 1].lower()
    return bool(re.search(r"(?:max|min|num|n|count|total|input|output|prompt)[_\-]?[_\-]?$", before.rstrip("_-") + "_"))


def _read(text: str, found: re.Match[str]) -> Span | None:
    kind = "PASSWORD" if found["strong"] else "TOKEN" if found["weak"] else "SECRET"
    start = found.start()
    before = text[max(0, start - 48) : start]
    if before and before[-1].isalpha() and not _joins(before[-1], text[start]):
        return None
    if _HARMLESS_TAIL.match(text, found.end()) or _counts(text, found):
        return None
    tail = _TAIL.match(text, found.end())
    end = tail.end() if tail is not None else found.end()
    while end > found.end() and text[end - 1] in ".-":
        end -= 1
    if (
        end > found.end()
        and text[found.end()].isalpha()
        and text[found.end()].islower()
        and text[found.end() - 1].islower()
    ):
        return None
    key = text[start:end]
    head = re.search(r"[\w.\-]*$", before)
    whole_key = (head[0] if head else "") + key
    if whole_key.startswith("--"):
        option = _OPTION.match(text, end)
        if option is not None and not _is_no_value(option["value"]):
            return Span(option.start("value"), option.end("value"), kind)
    position = end
    closing = _QUOTE.match(text, position)
    if closing is not None:
        position = closing.end()
    while position < len(text) and text[position] in ")]}":
        position += 1
    listed = _VALUE_KEY.match(text, position)
    if listed is not None and (closing is not None or _NAME_KEY.search(before + key)):
        return _value(text, listed.end(), kind, whole_key, spaced=True)
    tag = _XML.match(text, position)
    if tag is not None and _TAG_START.search(before):
        return None if _is_no_value(tag["value"].strip()) else Span(tag.start("value"), tag.end("value"), kind)
    typed = _TYPED.match(text, position)
    if typed is not None:
        position = typed.end()
    sign = _SIGN.match(text, position)
    if sign is None:
        return _prose(text, position, kind) if kind != "TOKEN" else None
    spaced = sign[0] != sign[0].strip()
    return _value(text, sign.end(), kind, whole_key, spaced=spaced, sign=sign[0].strip())


def _joins(previous: str, first: str) -> bool:
    """Whether a keyword may begin inside a word: ``dbPassword``, ``DBPASSWORD``, ``mysenha``."""
    return first.isupper() or previous.islower()


def _value(text: str, position: int, kind: str, key: str, *, spaced: bool, sign: str = ":") -> Span | None:
    block = _BLOCK.match(text, position)
    if block is not None:
        return _block(text, position, block.end(), kind)
    line = _NEXT_LINE.match(text, position)
    on_next_line = line is not None
    if line is not None:
        position = line.end()
    prefix = _PREFIX.match(text, position)
    if prefix is not None:
        position = prefix.end()
    quote = _QUOTE.match(text, position)
    if quote is not None:
        return _quoted(text, quote, kind)
    if _is_no_value(_FIRST_WORD.match(text, position)[0]):  # type: ignore[index]  # it matches anything
        return None
    if key.lower().endswith("pwd") and text[position : position + 1] in {"/", "~", "."}:
        return None  # The working directory of a shell.
    env = key.isupper() and sign == "=" and not spaced
    run = (_BARE_ENV if env else _BARE).match(text, position)
    if run is None:
        return None
    value, end = run[0], run.end()
    if env and value.endswith("\\") and "\\\n" not in value:
        value, end = value[:-1], end - 1
    while (more := _CONTINUED.match(text, end)) is not None:
        end = more.end()
        value += more[1]
    stripped = value.rstrip(".,;:?") if not env else value
    end -= len(value) - len(stripped)
    value = stripped
    if not value or _is_no_value(value) or (on_next_line and not _ends_line(text, end)):
        return None
    if (
        on_next_line
        and (kind != "PASSWORD" or not looks_secret(value))
        and not (looks_secret(value) and len(value) >= 12)
    ):
        return None
    if env:
        return None if _NUMBER.fullmatch(value) and kind == "TOKEN" else Span(position, end, kind)
    if _expression(text, value, end, key):
        return None
    if _NUMBER.fullmatch(value):
        return Span(position, end, kind) if kind == "PASSWORD" and len(value) >= 4 else None
    if kind == "PASSWORD":
        return Span(position, _whole_line(text, position, end, sign), kind)
    if looks_secret(value):
        return Span(position, end, kind)
    # A plain word under a weak name counts as a value only where the line is nothing but the assignment.
    alone = _ends_line(text, end) and len(value) >= 6 and kind == "SECRET"
    return Span(position, end, kind) if alone else None


def _quoted(text: str, quote: re.Match[str], kind: str) -> Span | None:
    mark = quote[0]
    start = quote.end()
    char = mark[-1]
    if text.startswith(char * 2, start) and len(mark) == 1 and char != "`":
        # A string of three quotes: up to the closing three.
        start += 2
        close = text.find(char * 3, start, start + 8192)
        end = close if close >= 0 else min(len(text), start + 8192)
    elif len(mark) > 1:
        # Inside another string the quotes are escaped: the same escaped quote ends it.
        close = text.find(mark, start, start + 8192)
        line = text.find("\n", start, start + 8192)
        end = (
            close if close >= 0 and (line < 0 or close < line) else line if line >= 0 else min(len(text), start + 8192)
        )
    else:
        body = _QUOTED[char].match(text, start)
        end = body.end() if body is not None else start
    value = text[start:end]
    if not value.strip() or _is_no_value(value.strip()):
        return None
    if kind == "TOKEN" and (" " in value.strip() or len(value) < 4) and not looks_secret(value.replace(" ", "")):
        return None
    if kind == "SECRET" and value.count(" ") >= 3 and not any(char.isdigit() for char in value):
        return None
    # "abc" + "def", or two literals side by side, are one value.
    for _ in range(64):
        adjacent = _ADJACENT.match(text, end + 1) if text.startswith(char, end) and len(mark) == 1 else None
        if adjacent is None or adjacent.end() == end + 1:
            break
        opening = text[adjacent.end()]
        # A new line with a key of its own is another assignment, not a continuation.
        body = _QUOTED[opening].match(text, adjacent.end() + 1)
        if (
            body is None
            or not text.startswith(opening, body.end())
            or re.match(r"[ \t]*[:=]", text[body.end() + 1 : body.end() + 9])
        ):
            break
        end, char = body.end(), opening
    return Span(start, end, kind)


def _block(text: str, position: int, start: int, kind: str) -> Span | None:
    """A block scalar of YAML: the following lines that are indented deeper than the key."""
    key_line = text.rfind("\n", max(0, position - 400), position) + 1
    indent = len(text[key_line:position]) - len(text[key_line:position].lstrip(" +-"))
    end = start
    while end < len(text) and end - start < 16384:
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end
        line = text[end:line_end]
        if line.strip() and len(line) - len(line.lstrip(" +")) <= indent:
            break
        end = min(len(text), line_end + 1)
    value = text[start:end]
    lead = len(value) - len(value.lstrip())
    value = value.strip()
    if not value or _is_no_value(value):
        return None
    return Span(start + lead, start + lead + len(value), kind)


def _prose(text: str, position: int, kind: str) -> Span | None:
    """``the password is Xy12!``, ``senha do banco: Xy12!``: only what looks like a secret."""
    found = _PROSE.match(text, position)
    if found is None:
        return None
    value = found["value"].rstrip(".,;:?)")
    if not looks_secret(value) or _is_no_value(value) or _CALL.match(value) or "://" in value:
        return None
    return Span(found.start("value"), found.start("value") + len(value), kind)


def _whole_line(text: str, start: int, end: int, sign: str) -> int:
    """In a line ``password: a b c`` of YAML the whole rest is the value, when it does not read as prose."""
    if sign != ":":
        return end
    stop = text.find("\n", end, end + 256)
    stop = min(len(text), end + 256) if stop < 0 else stop
    rest = text[end:stop]
    words = rest.split()
    if (
        not words
        or len(words) > 7
        or any(char in rest for char in "\"'{}[]()<>,;=:\\#|")
        or words[0].lower() in _NO_VALUE
    ):
        return end
    line = text.rfind("\n", max(0, start - 80), start) + 1
    if not re.fullmatch(r"[\s+\->*]*[\w.\-]+[ \t]*:[ \t]*", text[line:start]):
        return end
    return end + len(rest.rstrip())


def _ends_line(text: str, end: int) -> bool:
    return re.match(r"[\"']?[ \t]*[,;]?[ \t]*(?:#[^\n]*)?(?:\r?\n|\\n|\\r|$)", text[end : end + 200]) is not None


def _expression(text: str, value: str, end: int, key: str) -> bool:
    """Whether an unquoted value is source code: a call, an attribute, another variable."""
    following = text[end : end + 1]
    if following in {"(", "["} and re.fullmatch(r"[A-Za-z_][\w.]*", value):
        return True
    if _CODE_ROOT.match(value):
        return True
    if _NAME.match(value):
        lowered = value.lower()
        words = key.lower().replace("-", "_").strip("_").split("_")
        if lowered == key.lower() or "." in value:
            return True
        return "_" in value and (lowered in key.lower() or any(len(word) > 3 and word in lowered for word in words))
    return False


def _is_no_value(value: str) -> bool:
    lowered = value.lower().rstrip(".,;:!?")
    return (
        lowered in _NO_VALUE
        or _PLACEHOLDER.match(value) is not None
        or _REFERENCE.match(value) is not None
        or value.startswith(("http://", "https://", "/run/secrets/", "/etc/", "/var/"))
        or re.fullmatch(r"<?(?:your|insert|sua|seu)[_\- ][A-Za-z_\- ]{1,40}>?", value, re.IGNORECASE) is not None
    )
