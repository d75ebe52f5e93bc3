"""EF-01 to EF-04: is what a call reads, writes, runs and speaks to within the scope of the budget?

Paths are compared as they are written, without a look at the disk, so that the same call gets the same answer on another day.
That no link leads out of the root is for the policy `paths`. What is denied fits in any case of letters, what is allowed only
exactly.
"""

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from mainspring.core.items import Effect
from mainspring.features.budgets.budget import AllowedCommand, AutonomyBudget, Files
from mainspring.features.budgets.enforcement import EnforcementContext, Words
from mainspring.features.governance.command_policy import SYSTEM
from mainspring.tools.programs import basename, explain_reentry

Severity = Literal["denied", "unlisted", "unclear"]


class Objection(Struct, frozen=True):
    """What speaks against a call: something denies it, nothing allows it, or nobody can tell."""

    point: str
    severity: Severity
    why: str


def objections(budget: AutonomyBudget, context: EnforcementContext) -> Iterator[Objection]:
    if context.flaw is not None:
        yield Objection("scope", "denied", context.flaw)
    for path in context.reads:
        yield from _path("EF-01", path, budget.files, budget.files.read, "read")
    for target in context.writes:
        yield from _write(target, budget.files)
    if context.mentions and budget.files.deny:
        yield from _mentioned(context.mentions, budget.files.deny, budget.files.root)
    yield from _commands(budget, context)
    for host in context.hosts:
        yield from _host(host, budget)
    for effect in sorted(context.unseen):
        yield from _unseen(effect, budget, context)


def _write(target: str | None, files: Files) -> Iterator[Objection]:
    if target is not None:
        yield from _path("EF-02", target, files, files.write, "written")
    elif not _writes_anything(files):
        yield Objection("EF-02", "unclear", "it writes to a file whose name is known only when it runs")


def _path(point: str, path: str, files: Files, allowed: tuple[str, ...], verb: str) -> Iterator[Objection]:
    shown = path[:200]
    try:
        place = located(path, files.root)
    except ValueError as error:
        yield Objection(point, "denied", f"`{shown}` {error}")
        return
    if (pattern := next((each for each in files.deny if _denies(each, place)), None)) is not None:
        yield Objection(point, "denied", f"`{shown}` fits the denied pattern `{pattern}`")
    elif not any(_expression(each, exact=True).fullmatch(place) for each in allowed):
        yield Objection(point, "unlisted", f"`{shown}` is not among the files that may be {verb}: {', '.join(allowed) or 'none'}")


@lru_cache(maxsize=512)
def _mentioned(words: tuple[str, ...], deny: tuple[str, ...], root: str) -> tuple[Objection, ...]:
    """What a list denies is not for commands either. Of a word that is in no list nothing is claimed: it may be anything."""
    found = [(word, pattern) for word in words if (pattern := _denier(word, deny, root)) is not None]
    return tuple([Objection("EF-01", "denied", f"`{word[:200]}` fits the denied pattern `{pattern}`") for word, pattern in found])


def _denier(word: str, deny: tuple[str, ...], root: str) -> str | None:
    try:
        place = located(word, root)
    except ValueError:
        place = posixpath.normpath(word)
    return next((each for each in deny if _denies(each, place)), None)


def located(path: str, root: str) -> str:
    """The path below the root, or absolute if it is elsewhere. Raises `ValueError` for one that may mean another file."""
    if not path or any(unicodedata.category(sign) in ("Cc", "Cf", "Cs") for sign in path):
        raise ValueError("is empty or has signs that cannot be seen; write a plain path")
    if ".." in re.split(r"[/\\]", unicodedata.normalize("NFKC", path)) or path.startswith("~"):
        raise ValueError("goes up by `..` or begins with `~`; write the path without")
    place = posixpath.normpath(re.sub("^/+", "/", path))
    if root and (place == root.rstrip("/") or place.startswith(root.rstrip("/") + "/")):
        return posixpath.relpath(place, root)
    return place


def _denies(pattern: str, place: str) -> bool:
    return _expression(pattern, exact=False).fullmatch(_plain(place.lstrip("/"))) is not None


@lru_cache(maxsize=1024)
def _expression(pattern: str, *, exact: bool) -> re.Pattern[str]:
    """A pattern as an expression. One that is not exact is for names in any folder and for all beneath what it fits."""
    if not exact:
        pattern = _plain(pattern.lstrip("/") if "/" in pattern else f"**/{pattern}")
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = [signs.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern)]
    # An absolute path fits absolute patterns alone, even where `**` would reach it.
    head = "" if pattern.startswith("/") or not exact else "(?!/)"
    return re.compile(head + "".join(parts) + ("" if exact else "(?:/.*)?"), re.DOTALL)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _writes_anything(files: Files) -> bool:
    return not files.deny and {"**", "/**"} <= set(files.write)


def _commands(budget: AutonomyBudget, context: EnforcementContext) -> Iterator[Objection]:
    if _runs_anything(budget):
        return
    for doubt in context.doubts:
        yield Objection("EF-03", "unclear", doubt)
    for words in context.commands:
        yield from _command(words, budget)


def _command(words: Words, budget: AutonomyBudget) -> Iterator[Objection]:
    if not (name := words[0]):
        yield Objection("EF-03", "unclear", "the name of a program is known only when it runs")
        return
    if (entry := _listed(words, budget.denied_commands)) is not None:
        yield Objection("EF-03", "denied", f"the command `{entry}` is denied")
    elif (entry := _listed(words, budget.require_approval_commands)) is not None:
        yield Objection("EF-03", "unclear", f"the command `{entry}` needs approval")
    elif (why := explain_reentry(words) or _vagueness(words, budget)) is not None:
        yield Objection("EF-03", "unclear", why)
    elif rule_for(words, budget) is None:
        yield Objection("EF-03", "unlisted", f"`{name[:200]}`, with these arguments, is not among the allowed commands")


@lru_cache(maxsize=1024)
def _listed(words: Words, entries: tuple[str, ...]) -> str | None:
    """The entry whose words this command has, in their order but with anything between, in any case and from any folder."""
    name, said = basename(words[0] or "").casefold(), [(word or "").casefold() for word in words[1:]]
    for entry in entries:
        first, *more = entry.casefold().split()
        rest = iter(said)
        if first == name and all(word in rest for word in more):
            return entry
    return None


def _vagueness(words: Words, budget: AutonomyBudget) -> str | None:
    """Why it cannot be told what these words are, if a rule for this program looks at them."""
    if None not in words:
        return None
    name = basename(words[0] or "").casefold()
    listed = [entry.casefold().split() for entry in (*budget.denied_commands, *budget.require_approval_commands)]
    rule = rule_for(words, budget)
    is_looked_at = any(entry[0] == name for entry in listed) or (rule is not None and rule.args_pattern is not None)
    return f"not all arguments of `{name}` are known before it runs" if is_looked_at else None


def rule_for(words: Words, budget: AutonomyBudget) -> AllowedCommand | None:
    """The first rule that allows this command. A path counts as its last part only in the system's own folders."""
    folder, _, last = (words[0] or "").rpartition("/")
    names = {"*", words[0], last} if folder in SYSTEM else {"*", words[0]}
    told = " ".join([word or "" for word in words[1:]])
    for rule in budget.allowed_commands:
        if rule.command in names and (rule.args_pattern is None or re.fullmatch(rule.args_pattern, told, re.DOTALL)):
            return rule
    return None


def _runs_anything(budget: AutonomyBudget) -> bool:
    if budget.denied_commands or budget.require_approval_commands:
        return False
    first = next(iter(budget.allowed_commands), None)
    return first is not None and (first.command, first.args_pattern, first.max_calls) == ("*", None, None)


def _host(host: str, budget: AutonomyBudget) -> Iterator[Objection]:
    network = budget.network
    if not network.enabled:
        yield Objection("EF-04", "unlisted", f"the network is switched off, and `{host}` is on it")
    elif (domain := _domain(host, network.denied_domains)) is not None:
        yield Objection("EF-04", "denied", f"the domain `{domain}` is denied")
    elif _domain(host, network.allowed_domains) is None:
        listed = ", ".join(network.allowed_domains) or "none"
        yield Objection("EF-04", "unlisted", f"`{host}` is not among the allowed domains: {listed}")


def _domain(host: str, domains: tuple[str, ...]) -> str | None:
    plain = host.lower().strip("[].")
    for domain in domains:
        wanted = domain.lower().strip("[].")
        if wanted in ("*", plain) or plain.endswith(f".{wanted}"):
            return domain
    return None


def _unseen(effect: Effect, budget: AutonomyBudget, context: EnforcementContext) -> Iterator[Objection]:
    """A tool that may do something which none of its parameters shows is blocked if nothing of the kind may be, and else asked
    about, unless all of the kind may be."""
    network = budget.network
    match effect:
        case "write" | "destructive":
            point, everything, nothing = "EF-02", _writes_anything(budget.files), not budget.files.write
        case "execute":
            point, everything, nothing = "EF-03", _runs_anything(budget), not budget.allowed_commands
        case "network":
            open_to_all = network.enabled and "*" in network.allowed_domains and not network.denied_domains
            point, everything, nothing = "EF-04", open_to_all, not network.enabled
        case _:
            return  # what is read without a path is no file
    if not everything:
        is_sure = nothing and context.is_declared
        yield Objection(point, "unlisted" if is_sure else "unclear", f"`{context.tool}` may {_VERBS[effect]} out of sight")


_VERBS: dict[Effect, str] = {
    "write": "write", "destructive": "destroy", "execute": "run programs", "network": "use the network",
}  # fmt: skip
