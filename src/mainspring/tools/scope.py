"""Allow and deny lists for programs, paths and hosts: the one evaluator behind the policies `commands`, `paths` and `domains`,
budgets, the charters of agents, and the contexts of tools.

Pure: compares what is written, and looks up nothing on the disk or the network. What is denied fits in any case of letters,
what is allowed only exactly. An `Objection` says what speaks against a call; what follows from it is for its callers to say.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.normal_form import normalize
from mainspring.tools.programs import BUILTINS, basename, explain_reentry
from mainspring.tools.shell_reader import ShellLine

Words = tuple[str | None, ...]
"""A command, the program first. A word that is known only when it runs is None."""
Severity = Literal["denied", "unlisted", "unclear"]

SYSTEM: Final = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")

_HOST: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_NO_PATH: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|[a-zA-Z]:[/\\]|\\\\")


class Objection(Struct, frozen=True):
    """What speaks against a call: a list denies it, no list allows it, or nobody can tell. `point` is the enforcement point,
    `entry` the entry of the list that decides, or the program that is in no list."""

    point: str
    severity: Severity
    why: str
    entry: str = ""


class AllowedCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that may run; `*` is every one. `args_pattern` must fit all of its arguments, joined by blanks."""

    command: Annotated[str, Meta(min_length=1)]
    args_pattern: str | None = None
    max_calls: Annotated[int, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.args_pattern or "")
        except re.error as error:
            raise ValueError(f"`{self.args_pattern}` is no regular expression: {error}") from None

    @property
    def key(self) -> str:
        """What its calls are counted under."""
        return self.command if self.args_pattern is None else f"{self.command} {self.args_pattern}"

    def count_granted(self, words: Words) -> int:
        """How many words at the beginning of a command it allows as they are; 0 if it does not allow the command."""
        if self.command != "*" and self.command not in _program_names(words[0]):
            return 0
        told = "" if self.args_pattern is None else " ".join([word or "" for word in words[1:]])
        return int(self.args_pattern is None or re.fullmatch(self.args_pattern, told, re.DOTALL) is not None)


class AllowedBeginning(Struct, frozen=True):
    """The words that a command may begin with: a program, or a program and its first words; `*` is every program."""

    words: tuple[str, ...]

    def count_granted(self, words: Words) -> int:
        """As that of `AllowedCommand`."""
        if self.words == ("*",):
            return 1
        is_named = self.words[0] in _program_names(words[0])
        return len(self.words) if is_named and words[1 : len(self.words)] == self.words[1:] else 0


class CommandScope(Struct, frozen=True):
    """Which commands may run. An entry of `denied` and `asks` holds wherever its words stand in a command. `has_builtins` allows
    the builtins of a shell that start nothing and touch no file."""

    allowed: tuple[AllowedCommand | AllowedBeginning, ...] = ()
    denied: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    has_builtins: bool = False

    @property
    def is_open(self) -> bool:
        """Whether every command may run, as often as it likes."""
        return not self.denied and not self.asks and self.allowed[:1] == (AllowedCommand("*"),)


def judge_command(words: Words, scope: CommandScope) -> Objection | None:
    """EF-03: what speaks against one command."""
    if not (name := words[0]):
        return Objection("EF-03", "unclear", "the name of a program is known only when it runs")
    if (entry := _find_entry(words, scope.denied)) is not None:
        return Objection("EF-03", "denied", f"the command `{entry}` is denied", entry)
    if (entry := _find_entry(words, scope.asks)) is not None:
        return Objection("EF-03", "unclear", f"the command `{entry}` needs approval")
    granted = max([rule.count_granted(words) for rule in scope.allowed], default=0)
    if (why := explain_reentry(words, granted)) is not None:
        return Objection("EF-03", "unclear", why)
    if scope.has_builtins and name in BUILTINS:
        return None
    if None in words and (vague := _judge_vagueness(words, scope)) is not None:
        return vague
    if not granted:
        return Objection("EF-03", "unlisted", f"`{name[:200]}`, with these arguments, is not among the allowed commands", name)
    return None


def find_rule(words: Words, rules: Sequence[AllowedCommand]) -> AllowedCommand | None:
    """The first rule that allows this command."""
    return next((rule for rule in rules if rule.count_granted(words)), None)


def _program_names(name: str | None) -> tuple[str | None, ...]:
    """A path counts as its last part only in the system's own folders."""
    folder, _, last = (name or "").rpartition("/")
    return (name, last) if folder in SYSTEM else (name,)


@lru_cache(maxsize=1024)
def _find_entry(words: Words, entries: tuple[str, ...]) -> str | None:
    """The entry whose words this command has, in their order but with anything between, in any case and from any folder."""
    name, said = basename(words[0] or "").casefold(), [(word or "").casefold() for word in words[1:]]
    for entry in entries:
        first, *more = entry.casefold().split()
        rest = iter(said)
        if first == name and all(word in rest for word in more):
            return entry
    return None


def _judge_vagueness(words: Words, scope: CommandScope) -> Objection | None:
    """What a list says about a command of which not all words are known, if an entry for this program looks at them."""
    name = basename(words[0] or "").casefold()
    entries = [entry for entry in (*scope.denied, *scope.asks) if entry.casefold().split()[0] == name]
    rule = next((rule for rule in scope.allowed if rule.count_granted(words)), None)
    if not entries and (rule is None or isinstance(rule, AllowedBeginning) or rule.args_pattern is None):
        return None
    return Objection("EF-03", "unclear", f"not all arguments of `{name}` are known before it runs", *entries[:1])


Misspelling = Literal["empty", "long", "invisible", "upwards", "home", "elsewhere"]
# As long as one can be that is given to the system.
LONGEST_PATH: Final = 4096


def find_misspelling(path: str) -> Misspelling | None:
    """Why a path may mean another file than it seems to: it is empty or longer than any can be, has characters that cannot be
    seen, goes up by `..` (also to a program that decodes or normalizes it), begins with `~`, or is a URL or a drive."""
    if not path:
        return "empty"
    if len(path) > LONGEST_PATH:
        return "long"
    if any(unicodedata.category(sign) in ("Cc", "Cf", "Cs") for sign in path):
        return "invisible"
    if any(".." in re.split(r"[/\\]", form) for form in _decoded_forms(path)):
        return "upwards"
    if path.startswith("~"):
        return "home"
    return "elsewhere" if _NO_PATH.match(path) else None


def find_denied(patterns: Iterable[str], *places: str) -> str | None:
    """The first pattern that fits one of the places. One without `/` fits a name in any folder; what is beneath a path that fits,
    fits too."""
    folded = [_fold(place.lstrip("/")) for place in places]
    return next((each for each in patterns if any(map(_pattern_expression(each, is_exact=False).fullmatch, folded))), None)


def is_allowed(patterns: Iterable[str], place: str) -> bool:
    """Whether a pattern fits the place. `*` and `?` stay within a name, `**` is any number of folders, none included."""
    return any(_pattern_expression(each, is_exact=True).fullmatch(place) for each in patterns)


def _decoded_forms(text: str) -> Iterator[str]:
    yield text
    for _ in range(3):
        text = normalize("NFKC", unquote(text))
        yield text


@lru_cache(maxsize=1024)
def _pattern_expression(pattern: str, *, is_exact: bool) -> re.Pattern[str]:
    if not is_exact:
        pattern = _fold(pattern.lstrip("/") if "/" in pattern else f"**/{pattern}")
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = [signs.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern)]
    # An absolute path fits absolute patterns alone, even where `**` would reach it.
    head = "" if pattern.startswith("/") or not is_exact else "(?!/)"
    return re.compile(head + "".join(parts) + ("" if is_exact else "(?:/.*)?"), re.DOTALL)


def _fold(text: str) -> str:
    return normalize("NFKC", text).casefold()


def judge_host(host: str, allowed: Sequence[str], denied: Sequence[str] = ()) -> Objection | None:
    """EF-04: what speaks against a host. A domain stands for itself and all below it, `*` for every one."""
    if (domain := find_domain(host, denied)) is not None:
        return Objection("EF-04", "denied", f"the domain `{domain}` is denied", domain)
    if find_domain(host, allowed) is None:
        return Objection("EF-04", "unlisted", f"`{host}` is not among the allowed domains: {', '.join(allowed) or 'none'}")
    return None


def find_domain(host: str, domains: Iterable[str]) -> str | None:
    """The first of the domains that the host is, or is below."""
    plain = host.lower().strip("[].")
    for domain in domains:
        wanted = domain.lower().strip("[].")
        if wanted in ("*", plain) or plain.endswith(f".{wanted}"):
            return domain
    return None


def list_urls(line: ShellLine) -> list[str]:
    """The HTTP URLs that are written out in a line."""
    return [word for word in line.mentions if "://" in word and word.lower().startswith(("http://", "https://"))]


@lru_cache(maxsize=512)
def parse_host(url: str) -> str:
    """The host of an HTTP URL, in small letters. Raises `ValueError` that says what is wrong with the URL's spelling."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(
            "has signs that programs read in different ways; write it in plain ASCII, without blanks and backslashes"
        )
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        raise ValueError("is no URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("is no HTTP URL; write http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ValueError("holds a user name, which hides the host; leave it out")
    if parts.netloc.startswith("["):
        return host
    if _HOST.fullmatch(host) is None or len(host) > 253 or any(len(label) > 63 for label in host.split(".")):
        raise ValueError("has a host that is no name; write it out in letters, digits, dots and hyphens")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not is_address(host):
        raise ValueError("spells an address in an unusual way; write four decimal numbers")
    return host


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def normalize_domain(domain: str) -> str:
    """A domain as hosts are compared with it. Raises `InvalidRequest` for one that no host could fit."""
    plain = domain.lower().strip().strip(".")
    try:
        host = parse_host(f"http://{f'[{plain}]' if ':' in plain else plain}/")
    except ValueError:
        host = ""
    if not host or host != plain:
        raise InvalidRequest(f"`{domain}` is no domain; write it like `example.com`, without scheme, path or wildcard")
    return host
