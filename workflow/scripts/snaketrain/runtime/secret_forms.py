"""Recognises secrets in text by their form: addresses, queries, assignments, headers, command lines and well-known kinds of tokens."""

import functools
import re

HIDDEN = "***"
SHORTEST_CHARACTERS = 6  # shorter ones occur in any text

# every form contains one of these: most lines of a large file are ruled out quickly
WORDS = ("pass", "pwd", "pat", "token", "secret", "credential", "key", "auth", "sig", "bearer", "cookie", "-u", "mysql", "mariadb", "redis",
         "docker", "ldap")  # fmt: skip
LONG_NAMES = (
    r"password|passwd|passphrase|passcode|secrets?(?:[_-]?key)?|credentials?|api[_-]?key"
    r"|(?:access|private|auth|account|signing|shared)[_-]?key(?:[_-]?id)?"
)
ALONE = r"(?:pass|pwd|pat|auth[_-]?token)"  # too short to be recognised within another word
MAYBE = r"token|key|auth"  # also machine-learning terms: hidden only if the value looks random
NAME = rf"(?:(?P<sure>{LONG_NAMES}|(?<![A-Za-z]){ALONE})|(?<![A-Za-z])(?P<maybe>{MAYBE}))\d*"
QUOTE = r"(?:\\*[\"']|&(?:quot|apos|#34|#39|#x27);)"  # also within JSON that is itself a text, and in HTML
VALUE = rf"(?P<quote>{QUOTE})(?P<quoted>(?:(?!(?P=quote)).)+)(?P=quote)|(?P<plain>[^\s\"'`,;&<>\\]+)"
SCHEMES = r"(?:basic|bearer|digest|negotiate|token)\b"

# scheme://user:password@host, also with an @ or a / in the password
ADDRESS = re.compile(r"(?<!\w)(\w{1,30})://([^\s/?#\"'<>|]*|[^\s/?#\"'<>|]+?:(?!\d{1,5}[/?#]|/)[^\s\"'<>]*)(?=@)")
# DB_PASS=..., password: "...", "api_key": ..., and `=` as it is written in a query
ASSIGNED = re.compile(rf"(?P<before>{NAME}(?:{QUOTE})?\]?\s{{0,8}}(?:=>|:=|[:=]|%3[AD])\s{{0,8}})(?:{VALUE})", re.I)
# of each: words of which a line has one, and a pattern whose second group is the secret
OTHERS = tuple(
    (words, re.compile(pattern, re.I))
    for words, pattern in (
        # in the query of an address
        (
            ("=",),
            r"([?&;][\w.-]{0,40}?(?:token|pass(?:word|wd|phrase)?|pwd|secret|signature|sig|key|auth|credential)[\w.-]{0,40}=)([^\s&;#\"'<>\\]+)",
        ),
        # options of a command, and as a list of words
        (("-",), rf"((?<![\w-])--?[\w-]{{0,40}}?(?:{LONG_NAMES}|(?<=-){ALONE}|(?<=-)token)\s+)(?![-\"'])(\S+)"),
        (("-",), rf"([\"']--?[\w-]{{0,40}}?(?:{LONG_NAMES}|(?<=-){ALONE}|(?<=-)token)[\"'],\s{{0,8}}[\"'])([^\"']+)"),
        (("-u",), r"((?:(?<!\S)-u|--user)[ =][\"']?[^\s:\"']+:)(?!//)([^\s\"']+)"),
        (("mysql", "mariadb"), r"(\b(?:mysql\w*|mariadb[\w-]*)\b[^|;&\n]{0,200}?[\s\"'](?-i:-p))([^\s\"',]+)"),
        (("sshpass",), r"(\bsshpass\b[\"',\s]+(?:-[evf]\S*\s+)?-p[\"',\s]*)([^\s\"',]+)"),
        (("redis-cli",), r"(\bredis-cli\b[^|;&\n]{0,200}?\s-a\s+)(\S+)"),
        (("docker",), r"(\bdocker\s+login\b[^|;&\n]{0,200}?\s-p[\s=]*)(\S+)"),
        (("ldap",), r"(\bldap\w+\s[^|;&\n]{0,200}?\s-w\s+)(\S+)"),
        (("pass:",), r"(-pass(?:in|out)?\s+pass:)(\S+)"),
        # headers
        (("authorization",), rf"(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:{SCHEMES}\s+)?)(?!{SCHEMES})([\w.~+/=:-]{{6,}})"),
        (("cookie",), r"(\b(?:set-)?cookie:\s*)(\S.*)"),
        (("bearer",), r"(\bbearer\s+)((?=[^\s\"']{0,80}\d)[\w.~+/-]{8,}=*)"),
        # XML
        (("</",), rf"(<\s{{0,4}}(?:{LONG_NAMES}|{ALONE}|token)\s{{0,4}}>\s{{0,8}})([^<>\s][^<>]*)(?=</)"),
    )
)
# an address as it is written in the query of another
QUOTED_ADDRESS = re.compile(r"(%3A%2F%2F[^%\s]{0,80}%3A)((?:(?!%40)[^\s\"'<>&]){1,200})(?=%40)", re.I)
# .netrc, whose entries may have several lines
NETRC = re.compile(r"(\b(?:login|machine)\s+\S+\s+(?:account\s+\S+\s+)?password\s+)(\S+)")
# tokens by their prefix; each contains one of PREFIXES, which is looked for first
KINDS = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\bgh[pousr]_[A-Za-z0-9]{8,}|\bgithub_pat_\w{8,}|\bgl(?:pat|dt|rt|ptt|soat|cbt)-[\w.-]{8,}"
    r"|\bsk-(?=[\w-]{0,80}\d)[\w-]{16,}|\b(?:sk|rk|pk)_(?:live|test)_\w{8,}|\bwhsec_[\w+/=-]{8,}|\bgsk_\w{16,}|\bnvapi-[\w-]{16,}|\br8_\w{20,}"
    r"|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}|\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w.-]{8,}|\bGOCSPX-[\w-]{8,}"
    r"|\b1//0[\w-]{20,}|\bSG\.(?=[\w.-]{0,60}\d)[\w-]{8,}(?:\.[\w-]+)*|\bSK[0-9a-f]{32}\b|\bdapi[0-9a-f]{32}|\bpypi-[\w-]{8,}|\bnpm_[A-Za-z0-9]{8,}"
    r"|\bdckr_(?:pat|oat)_[\w-]{8,}|\bhv[sbr]\.[\w-]{8,}|\bdo[opr]_v1_[0-9a-f]{8,}|\bshp(?:at|ss|ca|pa)_[0-9a-fA-F]{16,}|\bsq0(?:atp|csp)-[\w-]{16,}"
    r"|\bkey-[0-9a-f]{32}\b|\bglsa_\w{16,}|\bNRAK-[A-Z0-9]{16,}|\brubygems_[0-9a-f]{16,}|\bpul-[0-9a-f]{32,}|\bATATT[\w=-]{16,}|\bAGE-SECRET-KEY-1\w{16,}"
    r"|\b(?:xai|pplx)-[A-Za-z0-9]{16,}|\btskey-[\w-]{16,}|\bsb_secret_[\w-]{16,}|\blin_api_\w{16,}|\bntn_\w{16,}|\bfigd_[\w-]{16,}|\b\d{8,10}:AA[\w-]{30,}|\b[MNO][A-Za-z0-9_-]{22,27}\.[\w-]{6}\.[\w-]{27,}"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
PREFIXES = ("hf_", "gh", "gl", "sk-", "sk_", "rk_", "pk_", "whsec_", "nvapi-", "r8_", "xox", "xapp-", "AKIA", "ASIA", "ABIA", "ACCA", "AIza", "ya29.",
            "GOCSPX-", "1//0", "SG.", "SK", "dapi", "pypi-", "npm_", "dckr_", "hvs.", "hvb.", "hvr.", "_v1_", "shp", "sq0", "key-", "NRAK-", "rubygems_",
            "pul-", "ATATT", "AGE-", "lin_api_", "ntn_", "figd_", "xai-", "pplx-", "tskey-", "sb_secret_", ":AA", "eyJ", "PRIVATE KEY")  # fmt: skip
DISCORD = re.compile(r"\b[MNO][A-Za-z0-9_-]{22}")  # the one kind without a prefix
# addresses whose path is the secret; the second group is
HOOKS = re.compile(
    r"(\b(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/|hooks\.zapier\.com/hooks/catch/"
    r"|[\w.-]*outlook\.office(?:365)?\.com/webhook/|[\w.-]*webhook\.office\.com/webhookb2/|maker\.ifttt\.com/trigger/[\w-]{1,80}/with/key/"
    r"|api\.telegram\.org/bot|mattermost[\w.-]*/hooks/))([^\s\"'<>&]+)"
)
HOOK_WORDS = ("hook", "maker.ifttt.com", "api.telegram.org")
# an expression, a path or a type rather than a literal
NO_LITERAL = re.compile(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+|.*[()\[\]{}$].*|str|bytes|string|optional|object|secretstr|none|null|true|false|\*+|[/~].*", re.I
)
SECRET_NAME = re.compile(rf".*?{NAME}$", re.I | re.S)
TOKEN_NAME = re.compile(r"(?:.*[_-])?(?:access|auth|api|bearer|refresh|session|client|hf|hub|github|gitlab|slack|bot)?[_-]?token", re.I)


def without_secrets(text: str, found: set[str] | None = None) -> str:
    """The text with `***` for every secret recognised by its form; these are added to `found`."""
    found = set() if found is None else found
    if any(prefix in text for prefix in PREFIXES) or ("." in text and DISCORD.search(text)):
        text = KINDS.sub(lambda match: _taken(match[0], found), text)
    lower = text.lower()
    if any(word in lower for word in HOOK_WORDS):
        text = HOOKS.sub(lambda match: match[1] + _taken(match[2], found), text)
    if "password" in lower:
        text = NETRC.sub(lambda match: match[1] + _taken(match[2], found), text)
    if "://" not in text and "%3a" not in lower and not _has_word(lower):
        return text
    return "".join(_without_secrets(line, found) for line in text.splitlines(keepends=True))


def _has_word(lower: str) -> bool:
    lower = lower.replace("tokeniz", "")  # in most commands here
    return any(word in lower for word in WORDS)


def is_secret_name(name: str, value: str) -> bool:
    """Whether a value of this name is a secret."""
    match = _as_secret_name(name)
    return match is not None and (looks_random(value) if match["maybe"] else bool(value))


@functools.lru_cache(maxsize=4096)
def _as_secret_name(name: str) -> re.Match[str] | None:
    """The lines of a journal have the same names again and again."""
    return SECRET_NAME.match(name)


def looks_random(value: str) -> bool:
    """Whether a value looks unlike a word, a path or a vocabulary's token."""
    plain = re.fullmatch(r"[\w.+/=~:@!%-]{8,}", value) and not value.startswith(("/", "~", "."))
    return bool(plain and re.search(r"\d", value) and re.search(r"[A-Za-z]", value))


def _without_secrets(line: str, found: set[str]) -> str:
    if "://" in line:
        line = ADDRESS.sub(lambda match: _address(match, found), line)
    lower = line.lower()
    if "%3a" in lower:
        line = QUOTED_ADDRESS.sub(lambda match: match[1] + _taken(match[2], found), line)
    if _has_word(lower):
        for words, form in OTHERS:
            if any(word in lower for word in words):
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
