"""Secrets that show by their own shape: provider tokens, JWTs, PEM blocks, credentials in URLs and headers.

A token may be broken over lines (a wrapped mail, a string continued in source code, a diff), so a token is not one
pattern: a prefix starts it, then runs of its alphabet are gathered over line breaks until its length is reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text that is a secret, and of which kind."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Shape:
    """How the tokens of one provider look."""

    kind: str
    hint: str
    """Plain text that every token of this shape holds; a text without it is not searched."""
    prefix: re.Pattern[str]
    alphabet: re.Pattern[str]
    shortest: int
    """Fewest characters after the prefix."""
    longest: int = 4096
    """Most characters after the prefix; the rest of a longer run is not part of the token."""
    random: bool = False
    """The prefix is also an ordinary word or too short to be sure: what follows must look random."""


_WORD = re.compile(r"[A-Za-z0-9]+")
_WORD_DASH = re.compile(r"[A-Za-z0-9_\-]+")
_UPPER = re.compile(r"[A-Z0-9]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\-]+")
_JWT = re.compile(r"[A-Za-z0-9_\-.=]+")
_DOTTED = re.compile(r"[A-Za-z0-9_\-.~]+")
_HEX = re.compile(r"[0-9a-f]+")
_QUERY = re.compile(r"[A-Za-z0-9+/=%_\-]+")
_WEBHOOK = re.compile(r"[A-Za-z0-9/_\-@]+")
_SLASHED = re.compile(r"[A-Za-z0-9/_\-]+")
# Not inside a longer word; but the letter of a JSON escape (\n) or the digits of a URL escape (%3D) are no word.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f]{2}))"


def _shape(
    kind: str,
    hint: str,
    alphabet: re.Pattern[str],
    shortest: int,
    longest: int = 4096,
    *,
    prefix: str = "",
    random: bool = False,
) -> Shape:
    return Shape(kind, hint, re.compile(_START + (prefix or re.escape(hint))), alphabet, shortest, longest, random)


SHAPES: tuple[Shape, ...] = (
    *(_shape("AWS_KEY", hint, _UPPER, 16, 16) for hint in ("AKIA", "ASIA", "ABIA", "ACCA")),
    *(_shape("GITHUB_TOKEN", hint, _WORD, 30, 255) for hint in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    _shape("GITHUB_TOKEN", "github_pat_", re.compile(r"[A-Za-z0-9_]+"), 22, 255),
    *(
        _shape("GITLAB_TOKEN", hint, _DOTTED, 16, 300)
        for hint in ("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "glimt-", "glagent-", "gloas-")
    ),
    _shape("SLACK_TOKEN", "xox", _WORD_DASH, 10, 300, prefix=r"xox[abeoprs](?:\.xox[bp])?-"),
    _shape("SLACK_TOKEN", "xapp-", _WORD_DASH, 10, 300),
    _shape(
        "SLACK_WEBHOOK",
        "hooks.slack.com/",
        _SLASHED,
        20,
        200,
        prefix=r"hooks\.slack\.com/(?:services|workflows|triggers)/",
    ),
    _shape("DISCORD_WEBHOOK", "/api/webhooks/", _SLASHED, 30, 200, prefix=r"discord(?:app)?\.com/api/webhooks/"),
    _shape(
        "TEAMS_WEBHOOK",
        ".webhook.office.com/",
        re.compile(r"[A-Za-z0-9/_\-@]+"),
        30,
        400,
        prefix=r"[a-z0-9\-]{1,60}\.webhook\.office\.com/",
    ),
    _shape("GOOGLE_KEY", "AIza", _WORD_DASH, 35, 35),
    _shape("GOOGLE_OAUTH", "GOCSPX-", _WORD_DASH, 20, 60),
    _shape("GOOGLE_OAUTH", "ya29.", _WORD_DASH, 20, 2048),
    _shape("GOOGLE_OAUTH", "1//0", _WORD_DASH, 30, 200),
    _shape("STRIPE_KEY", "k_live_", _WORD, 20, 250, prefix=r"[spr]k_live_"),
    _shape("STRIPE_KEY", "k_test_", _WORD, 20, 250, prefix=r"[spr]k_test_"),
    _shape("STRIPE_KEY", "whsec_", re.compile(r"[A-Za-z0-9+/=]+"), 24, 128),
    _shape("ANTHROPIC_KEY", "sk-ant-", _WORD_DASH, 20, 300),
    _shape("OPENAI_KEY", "sk-proj-", _WORD_DASH, 20, 300),
    _shape("OPENAI_KEY", "sk-svcacct-", _WORD_DASH, 20, 300),
    _shape("OPENAI_KEY", "sk-admin-", _WORD_DASH, 20, 300),
    _shape("API_KEY", "sk-or-v1-", _HEX, 40, 80),
    _shape("OPENAI_KEY", "sk-", _WORD_DASH, 20, 300, random=True),
    _shape("HUGGINGFACE_TOKEN", "hf_", _WORD, 30, 60),
    _shape("GROQ_KEY", "gsk_", _WORD, 40, 80),
    _shape("XAI_KEY", "xai-", _WORD, 60, 120),
    _shape("PERPLEXITY_KEY", "pplx-", _WORD, 40, 80),
    _shape("REPLICATE_TOKEN", "r8_", _WORD, 30, 60),
    _shape("NPM_TOKEN", "npm_", _WORD, 30, 60),
    _shape("NPM_TOKEN", ":_authToken=", _BASE64, 8, 200),
    _shape("PYPI_TOKEN", "pypi-", _WORD_DASH, 50, 600, prefix=r"pypi-(?=AgE)"),
    _shape("RUBYGEMS_KEY", "rubygems_", _HEX, 48, 48),
    _shape("CRATES_TOKEN", "cio", _WORD, 32, 32, random=True),
    _shape("DOCKER_TOKEN", "dckr_pat_", _WORD_DASH, 20, 80),
    _shape("DOCKER_TOKEN", "dckr_oat_", _WORD_DASH, 20, 80),
    _shape("AZURE_KEY", "AccountKey=", _BASE64, 40, 120),
    _shape("AZURE_KEY", "SharedAccessKey=", _BASE64, 30, 120),
    _shape("AZURE_SIGNATURE", "sig=", _QUERY, 40, 200),
    _shape("AZURE_SECRET", "Q~", re.compile(r"[A-Za-z0-9_.~\-]+"), 31, 34, prefix=r"[A-Za-z0-9_.~\-]{3}\dQ~"),
    _shape("AWS_SIGNATURE", "X-Amz-Signature=", _HEX, 64, 64),
    _shape(
        "AWS_SESSION",
        "X-Amz-Security-Token=",
        re.compile(r"[A-Za-z0-9+/=%_\-]+"),
        20,
        4096,
        prefix=r"X-Amz-Security-Token=",
    ),
    _shape("SENDGRID_KEY", "SG.", _DOTTED, 50, 80, random=True),
    _shape("MAILGUN_KEY", "key-", _HEX, 32, 32),
    _shape("MAILCHIMP_KEY", "-us", re.compile(r"\d+"), 1, 2, prefix=r"[0-9a-f]{32}-us"),
    _shape("TWILIO_KEY", "SK", _HEX, 32, 32),
    _shape("TWILIO_SID", "AC", _HEX, 32, 32),
    _shape("TELEGRAM_TOKEN", ":AA", _WORD_DASH, 30, 36, prefix=r"\d{8,10}:AA"),
    _shape("DIGITALOCEAN_TOKEN", "_v1_", _HEX, 64, 64, prefix=r"do[oprt]_v1_"),
    _shape("SHOPIFY_TOKEN", "shp", re.compile(r"[0-9a-fA-F]+"), 32, 32, prefix=r"shp(?:at|ca|pa|ss)_"),
    _shape("SQUARE_TOKEN", "sq0", _WORD_DASH, 22, 60, prefix=r"sq0(?:atp|csp|idp)-"),
    _shape("LINEAR_KEY", "lin_api_", _WORD, 32, 64),
    _shape("NOTION_TOKEN", "ntn_", _WORD, 40, 60),
    _shape("FIGMA_TOKEN", "figd_", _WORD_DASH, 30, 60),
    _shape("POSTMAN_KEY", "PMAK-", _WORD_DASH, 50, 70),
    _shape("ATLASSIAN_TOKEN", "ATATT3", re.compile(r"[A-Za-z0-9_\-=]+"), 60, 250),
    _shape("DATABRICKS_TOKEN", "dapi", _HEX, 32, 32),
    _shape("GRAFANA_TOKEN", "glsa_", re.compile(r"[A-Za-z0-9_]+"), 32, 60),
    _shape("GRAFANA_TOKEN", "glc_", _BASE64, 32, 400),
    _shape("VAULT_TOKEN", "hvs.", _WORD_DASH, 20, 300),
    _shape("VAULT_TOKEN", "hvb.", _WORD_DASH, 20, 300),
    _shape("TERRAFORM_TOKEN", ".atlasv1.", _WORD_DASH, 40, 100, prefix=r"[A-Za-z0-9]{14}\.atlasv1\."),
    _shape("PULUMI_TOKEN", "pul-", _HEX, 40, 40),
    _shape("DOPPLER_TOKEN", "dp.", _DOTTED, 35, 80, prefix=r"dp\.(?:pt|st|ct|sa|scim|audit)\."),
    _shape("FLY_TOKEN", "FlyV1 ", re.compile(r"[A-Za-z0-9+/=_,\-]+"), 40, 2000),
    _shape("AGE_KEY", "AGE-SECRET-KEY-1", _UPPER, 58, 58),
    _shape("NEWRELIC_KEY", "NRAK-", _UPPER, 27, 27),
    _shape("SENTRY_TOKEN", "sntrys_", _BASE64, 40, 400),
    _shape("JWT", "eyJ", _JWT, 30, 8192, prefix=r"eyJ(?=[A-Za-z0-9_\-\s\\\"'+]{10,4000}\.)"),
    _shape("ENCODED_PEM", "LS0tLS1CRUdJTi", _BASE64, 40, 65536),
)

# What may stand between two halves of a broken token: a continuation mark, closing and opening quotes, a line break
# as such or as \n of JSON, then indentation or the marks of a diff, a quote of mail, a comment, a table.
_BREAK = re.compile(
    r"(?:[ \t]*\\?[\"'`]?[ \t]*[+.\\]?[ \t]*(?:\r?\n|\\r\\n|\\n)[ \t+>|#*/\-]{0,40}\\?[\"'`]?"
    r"|\\?[\"'][ \t]*\+?[ \t]*\\?[\"'])"
    r"(?=[A-Za-z0-9+/=_\-.])"
)
_MOST_BREAKS = 200


def entropy(text: str) -> float:
    """Shannon entropy of the characters, in bits a character."""
    return -sum((n := text.count(char)) / len(text) * log2(n / len(text)) for char in set(text)) if text else 0.0


def looks_random(text: str) -> bool:
    """Whether a run of characters looks drawn by a machine rather than written: digits among letters, few repeats."""
    digits = sum(char.isdigit() for char in text)
    letters = sum(char.isalpha() for char in text)
    return digits >= 2 and letters >= 4 and entropy(text) >= 3.0 and not _wordy(text)


def _wordy(text: str) -> bool:
    """Whether the run is made of words and short numbers, like ``sk-learn-contrib-2024``."""
    pieces = [piece for piece in re.split(r"[_\-.]", text) if piece]
    if len(pieces) < 2:
        return False
    plain = sum(len(piece) for piece in pieces if piece.isdigit() or piece.isalpha())
    return plain >= len(text) * 0.8


def _token_end(text: str, start: int, shape: Shape) -> int | None:
    """Where a token that starts at ``start`` (after its prefix) ends, or None when this is no token of the shape."""
    gathered = 0
    pieces: list[str] = []
    position = start
    for _ in range(_MOST_BREAKS):
        run = shape.alphabet.match(text, position, min(len(text), position + shape.longest - gathered))
        if run is not None:
            pieces.append(run[0])
            gathered += len(run[0])
            position = run.end()
        elif not pieces and position != start:
            return None
        if gathered >= shape.longest:
            break
        joint = _BREAK.match(text, position, position + 128)
        if joint is None:
            break
        following = shape.alphabet.match(text, joint.end(), min(len(text), joint.end() + shape.longest - gathered))
        if following is None:
            break
        # Short of its length the token must go on; beyond, only what looks like more of the same is taken.
        if gathered >= shape.shortest and not (len(following[0]) >= 12 and _continues(following[0])):
            break
        if gathered < shape.shortest and following[0].isalpha() and following[0].islower() and len(following[0]) < 12:
            break
        position = joint.end()
    if gathered < shape.shortest:
        return None
    body = "".join(pieces)
    if shape.random and not looks_random(body):
        return None
    if shape.kind == "JWT" and body.count(".") < 1:
        return None
    return position


def _continues(run: str) -> bool:
    has_digit = any(char.isdigit() for char in run)
    mixed = any(char.islower() for char in run) and any(char.isupper() for char in run)
    return (has_digit or mixed) and entropy(run) >= 3.0 and not _wordy(run)


def token_spans(text: str) -> Iterator[Span]:
    """Every provider token in the text."""
    for shape in SHAPES:
        if shape.hint not in text:
            continue
        position = 0
        while (found := shape.prefix.search(text, position)) is not None:
            end = _token_end(text, found.end(), shape)
            if end is None:
                # The run that was read is done with, or a text of prefixes only would be read once for each.
                run = shape.alphabet.match(text, found.end(), found.end() + shape.longest) if shape.random else None
                position = run.end() if run is not None else found.end()
                continue
            # ``AccountKey=`` and its like name the secret: the name stays.
            start = found.end() if found[0].endswith("=") else found.start()
            yield Span(start, end, shape.kind)
            position = end


# The words of a mark may be apart by a blank in any spelling, or by a string that is continued.
_PEM_WORDS = r"(?:(?:[ +]|%20|\\n|\r?\n|[\"'][ ]?\+?[ \t\r\n]{0,40}[\"'])[A-Z0-9]{1,20}){1,6}"
_PEM_BEGIN = re.compile(rf"-{{4,5}}[ ]?BEGIN(?P<label>{_PEM_WORDS})[ ]?-{{4,5}}")
_PEM_END = re.compile(rf"-{{4,5}}[ ]?END{_PEM_WORDS}[ ]?-{{4,5}}")
_PEM_LINE = re.compile(
    r"(?:[ \t]*\\?[\"'`]?[ \t]*[+,.\\]?[ \t]*)(?:\r?\n|\\r\\n|\\n|%0[AD](?:%0A)?)(?:[ \t+>|#*\-]{0,40}\\?[\"'`]?)"
    r"(?:[A-Za-z0-9+/=%]{16,}|[A-Za-z0-9+/]{1,16}={1,2}"
    r"|(?:Proc-Type|DEK-Info|Comment|Version|Hash|Subject)[:][^\r\n\\]{0,200}|(?=\r?\n|\\n))"
)
_LONGEST_PEM = 262_144
_PUTTY = re.compile(r"PuTTY-User-Key-File-\d:")
_PUTTY_END = re.compile(r"Private-MAC:[^\r\n\\]{0,200}")


def pem_spans(text: str) -> Iterator[Span]:
    """Every PEM block: to its END mark, or, when that is missing, as far as its lines go on."""
    if "PuTTY-User-Key-File-" in text:
        yield from _between(text, list(_PUTTY.finditer(text)), list(_PUTTY_END.finditer(text)))
    if "BEGIN" not in text:
        return
    begins = [begin for begin in _PEM_BEGIN.finditer(text) if "SIGNED" not in begin["label"]]
    if begins:
        yield from _between(text, begins, list(_PEM_END.finditer(text)))


def _between(text: str, begins: list[re.Match[str]], ends: list[re.Match[str]]) -> Iterator[Span]:
    next_end = 0
    covered = 0
    for index, begin in enumerate(begins):
        if begin.start() < covered:
            continue
        while next_end < len(ends) and ends[next_end].start() < begin.end():
            next_end += 1
        following = begins[index + 1].start() if index + 1 < len(begins) else len(text)
        label = begin.groupdict().get("label") or "PRIVATE"
        kind = "PRIVATE_KEY" if "PRIVATE" in label else "PEM_BLOCK"
        if next_end < len(ends) and ends[next_end].start() <= min(following, begin.end() + _LONGEST_PEM):
            covered = ends[next_end].end()
        else:
            covered = begin.end()
            while (line := _PEM_LINE.match(text, covered)) is not None and line.end() > covered:
                covered = line.end()
        yield Span(begin.start(), covered, kind)


_URL_USER = re.compile(
    r"(?<=://)(?P<user>[^\s/@:\"'<>?#\[\]]{0,256}):(?:[^\s/\"'<>?#]{1,512}"
    r"|(?!\d{1,5}(?:[/?#]|$))[^\s\"'<>@]{1,256})@"
)
_URL_ONLY_USER = re.compile(r"(?<=://)(?P<secret>[A-Za-z0-9_\-.]{16,256})@")


def url_spans(text: str) -> Iterator[Span]:
    """User and password in front of a URL's host; a token that stands there alone."""
    if "://" not in text:
        return
    for found in _URL_USER.finditer(text):
        yield Span(found.start(), found.end() - 1, "URL_CREDENTIALS")
    for found in _URL_ONLY_USER.finditer(text):
        if any(char.isdigit() for char in found["secret"]):
            yield Span(found.start(), found.end() - 1, "URL_CREDENTIALS")


_HEADER_NAMES = (
    "authorization|proxy-authorization|x-api-key|api-key|x-auth-token|x-access-token|private-token|job-token|cookie|"
    "set-cookie|x-vault-token|x-amz-security-token|ocp-apim-subscription-key"
)
_HEADER = re.compile(
    rf"(?:{_HEADER_NAMES})\\?[\"']?[ \t]{{0,4}}(?:[:=]|=>)[ \t]{{0,4}}\\?[\"']?"
    r"(?P<scheme>(?:bearer|basic|digest|token|apikey|negotiate|aws4-hmac-sha256)(?:[ \t]|%20|\+)+)?"
    r"(?P<secret>[^\s\"'\\<>{}\[\]][^\r\n\"'\\<>{}]{5,4095})",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b(?:bearer|basic)(?:[ \t]|%20|\+){1,4}(?P<secret>[A-Za-z0-9\-._~+/%]{12,4096}={0,2})", re.IGNORECASE
)
_CURL_USER = re.compile(
    r"(?:\s-u|--(?:proxy-)?user)(?:[ =]|\s{1,4})[\"']?(?P<secret>[^\s:\"']{1,128}:[^\s\"'/]{1,256})(?=[\s\"']|$)"
)


def header_spans(text: str) -> Iterator[Span]:
    """Credentials in HTTP headers and in the arguments of HTTP clients."""
    lowered = text.lower()
    if any(word in lowered for word in ("authorization", "api-key", "-token", "cookie", "subscription-key")):
        for found in _HEADER.finditer(text):
            secret = found["secret"]
            if found["scheme"] or looks_secret(secret.strip()):
                yield Span(found.start("secret"), found.end(), "AUTHORIZATION")
    if "bearer" in lowered or "basic" in lowered:
        for found in _BEARER.finditer(text):
            if looks_secret(found["secret"]):
                yield Span(found.start("secret"), found.end(), "AUTHORIZATION")
    if "-u" in lowered:
        for found in _CURL_USER.finditer(text):
            yield Span(found.start("secret"), found.end(), "PASSWORD")


def looks_secret(value: str) -> bool:
    """Whether a value looks like a credential rather than a word: digits or symbols among letters, or mixed case."""
    if len(value) < 6 or value.isdigit():
        return False
    has_digit = any(char.isdigit() for char in value)
    has_letter = any(char.isalpha() for char in value)
    mixed = any(char.islower() for char in value) and any(char.isupper() for char in value[1:])
    symbol = any(char in "!@#$%^&*?~" for char in value)
    return (
        (has_digit and has_letter)
        or symbol
        or (mixed and len(value) >= 12)
        or (len(value) >= 24 and entropy(value) >= 3.8 and " " not in value)
    )
