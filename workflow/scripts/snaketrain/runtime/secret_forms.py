"""Recognises secrets in text by their form: addresses, queries, assignments, headers and well-known kinds of tokens."""

import re

HIDDEN = "***"
SHORTEST_CHARACTERS = 6  # shorter ones occur in any text

# every form contains one of these: most lines of a large file are ruled out quickly
WORDS = ("pass", "pwd", "pat", "token", "secret", "credential", "key", "auth", "sig", "bearer", "cookie", "-u")
LONG_NAMES = (
    r"password|passwd|passphrase|passcode|secrets?(?:[_-]?key)?|credentials?|api[_-]?key"
    r"|(?:access|private|auth|account|signing|shared)[_-]?key(?:[_-]?id)?"
)
ALONE = r"(?:pass|pwd|pat|auth[_-]?token)"  # too short to be recognised within another word
MAYBE = r"token|key|auth"  # also machine-learning terms: hidden only if the value looks random
NAME = rf"(?:(?P<sure>{LONG_NAMES}|(?<![A-Za-z]){ALONE})|(?<![A-Za-z])(?P<maybe>{MAYBE}))\d*"
VALUE = r"(?P<quote>\\?[\"'])(?P<quoted>(?:(?!(?P=quote)).)+)(?P=quote)|(?P<plain>[^\s\"'`,;&<>\\]+)"
SCHEMES = r"(?:basic|bearer|digest|negotiate|token)\b"

# scheme://user:password@host, also with an @ or a / in the password
ADDRESS = re.compile(r"(?<!\w)(\w{1,30})://([^\s/?#\"'<>|]*|[^\s/?#\"'<>|]+?:(?!\d{1,5}[/?#]|/)[^\s\"'<>]*)(?=@)")
# DB_PASS=..., password: "...", "api_key": ...
ASSIGNED = re.compile(rf"(?P<before>{NAME}(?:\\?[\"'])?\]?\s{{0,8}}(?:=>|:=|[:=])\s{{0,8}})(?:{VALUE})", re.I)
# the second group of each is the secret: in an address's query, a command line, .netrc, HTTP headers
OTHERS = (
    re.compile(
        r"([?&;][\w.-]{0,40}?(?:token|pass(?:word|wd|phrase)?|pwd|secret|signature|sig|key|auth|credential)[\w.-]{0,40}=)([^\s&;#\"'<>\\]+)",
        re.I,
    ),
    re.compile(rf"((?<![\w-])--?[\w-]{{0,40}}?(?:{LONG_NAMES}|(?<=-){ALONE}|(?<=-)token)\s+)(?![-\"'])(\S+)", re.I),
    re.compile(r"((?:(?<!\S)-u|--user)[ =][\"']?[^\s:\"']+:)(?!//)([^\s\"']+)"),
    re.compile(r"(\blogin\s+\S+\s+password\s+)(\S+)"),
    re.compile(rf"(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:{SCHEMES}\s+)?)(?!{SCHEMES})([\w.~+/=:-]{{6,}})", re.I),
    re.compile(r"(\b(?:set-)?cookie:\s*)(\S.*)", re.I),
    re.compile(r"(\bbearer\s+)((?=[^\s\"']{0,80}\d)[\w.~+/-]{8,}=*)", re.I),
)
KINDS = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\bgh[pousr]_[A-Za-z0-9]{8,}|\bgithub_pat_\w{8,}|\bglpat-[\w-]{8,}|\bsk-(?=[\w-]{0,80}\d)[\w-]{16,}"
    r"|\bxox[abprs]-[\w-]{8,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bdapi[0-9a-f]{32}|\bpypi-[\w-]{16,}|\bnpm_[A-Za-z0-9]{16,}"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
# an expression, a path or a type rather than a literal
NO_LITERAL = re.compile(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+|.*[()\[\]{}$].*|str|bytes|string|optional|object|secretstr|none|null|true|false|\*+|[/~].*", re.I
)
SECRET_NAME = re.compile(rf".*{NAME}$", re.I | re.S)


def without_secrets(text: str, found: set[str] | None = None) -> str:
    """The text with `***` for every secret recognised by its form; these are added to `found`."""
    found = set() if found is None else found
    text = KINDS.sub(lambda match: _taken(match[0], found), text)
    return "".join(_without_secrets(line, found) for line in text.splitlines(keepends=True))


def is_secret_name(name: str, value: str) -> bool:
    """Whether a value of this name is a secret."""
    match = SECRET_NAME.match(name)
    return match is not None and (looks_random(value) if match["maybe"] else bool(value))


def looks_random(value: str) -> bool:
    """Whether a value looks unlike a word, a path or a vocabulary's token."""
    plain = re.fullmatch(r"[\w.+/=~:@!%-]{8,}", value) and not value.startswith(("/", "~", "."))
    return bool(plain and re.search(r"\d", value) and re.search(r"[A-Za-z]", value))


def _without_secrets(line: str, found: set[str]) -> str:
    if "://" in line:
        line = ADDRESS.sub(lambda match: _address(match, found), line)
    lower = line.lower()
    if any(word in lower for word in WORDS):
        for form in OTHERS:
            line = form.sub(lambda match: match[1] + _taken(match[2], found), line)
        line = ASSIGNED.sub(lambda match: _assigned(match, found), line)
    return line


def _taken(secret: str, found: set[str]) -> str:
    found.add(secret)
    return HIDDEN


def _address(match: re.Match[str], found: set[str]) -> str:
    """A user name alone is not a secret, unless it is a token, as in addresses of the web."""
    user, colon, password = match[2].partition(":")
    secret = password if colon else user if match[1].lower().startswith("http") or looks_random(user) else ""
    return f"{match[1]}://{_taken(secret, found)}" if secret else str(match[0])


def _assigned(match: re.Match[str], found: set[str]) -> str:
    value, quote = match["quoted"] or match["plain"], match["quote"] or ""
    no_secret = not looks_random(value) if match["maybe"] else len(value) < 4
    if not quote:
        no_secret = no_secret or len(value) < SHORTEST_CHARACTERS or bool(NO_LITERAL.fullmatch(value)) or is_secret_name(value, "x" * 8)
    return str(match[0]) if no_secret else f"{match['before']}{quote}{_taken(value, found)}{quote}"
