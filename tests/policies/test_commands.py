"""Commands: what is allowed, denied and asked about, and what a grant covers. The tricks are in the corpus."""

import pytest
from tests.policies.world import tried

from mainspring.features.governance.scope_policies import CommandPolicy
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.tools.shell_reader import read_line


async def verdict(command: str, allowed: tuple[str, ...] = (), denied: tuple[str, ...] = ()) -> Verdict:
    return CommandPolicy(allowed, denied).judge_line(command, await read_line(command))


async def test_nothing_is_allowed_unless_it_is_named_but_builtins_that_do_nothing() -> None:
    assert isinstance(await verdict("ls"), Ask)
    assert await verdict("cd src && echo here; true") == Allow()


async def test_star_allows_every_program_that_starts_no_other() -> None:
    assert await verdict("anything -x; /opt/tool y", ("*",)) == Allow()
    for command in ("env anything", "sh x", "$x", "python3 -c x"):
        assert isinstance(await verdict(command, ("*",)), Ask)


async def test_denied_comes_before_allowed_and_before_all_doubts() -> None:
    assert isinstance(await verdict("$x; rm y", ("*", "rm"), ("rm",)), Deny)
    assert isinstance(await verdict("git --no-pager push", ("git",), ("git push",)), Deny)
    assert await verdict("git log", ("git",), ("git push",)) == Allow()


async def test_denied_words_that_may_come_from_a_variable_are_asked_about() -> None:
    assert isinstance(await verdict("ip $x", ("ip",), ("ip link",)), Ask)


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("python3 -m pytest -q", True),
        ("python3 -m http.server", False),
        ("python3 -m", False),
        ("env FOO=1 ls", False),
        ("git -c a=b status", True),
        ("git -c a=b log", False),
        ("git -c a=b status -c x=y", False),
    ],
)
async def test_grant_of_several_words_covers_these_words_and_no_others(command: str, allowed: bool) -> None:
    said = await verdict(command, ("python3 -m pytest", "git -c a=b status"))
    assert isinstance(said, Allow) == allowed


@pytest.mark.parametrize(
    "command",
    [
        "fd -x evil", "rg --pre evil x", "rg --pr=evil x", "sort --compress-prog evil", "rsync -ave evil a b", "make --eval=x",
        "awk -f script", "awk '{print > \"x\"}'", "sed -n 'w /x' f", "sed -f script f", "sed --expression=e f", "sed $x f",
        "perl -e x", "node -", "ruby", "php /dev/stdin", "python3.11 -", "python3 $x", "tar -F evil", "git grep -O evil",
        "mapfile -Cevil a", "mapfile -C evil -c 1 a", "wait -n -p PATH", "sed p -e 'e id'", "sed -e p -e 'e id'", "sed -ep f",
        "git config core.pager evil", "git rebase -x evil", "git log --output=/x", "cat < /dev/tcp/10.0.0.1/80",
        "npm_config_script_shell=evil npm test", "http_proxy=evil npm test", "sed 'p\ne id' f", "sed 's/a/b/w /x' f",
        "find . -delete", "set -o allexport", "bun x", "vim f", "curl -K f", "awk $x",
    ],
)  # fmt: skip
async def test_program_that_may_start_others_is_asked_about(command: str) -> None:
    assert isinstance(await verdict(command, ("*",)), Ask)


@pytest.mark.parametrize(
    "command",
    [
        "fd x", "rg --pretty x", "sort -u f", "rsync -a x y", "make test", "awk -F: '{print $1}' f", "sed -n '1,3p;5p' f",
        "sed -i 's|a|b|' f", "sed -n -e 5p f", "mapfile -t a < f", "wait", "git rebase main", "cat < /dev/null",
        "perl script.pl -e", "node --version", "python3.11 x.py -c", "tar czf a.tgz src", "git grep -n x",
        "find . -newer x", "set -e", "curl -s http://x.example", "git commit -m 'a -c b'",
    ],
)  # fmt: skip
async def test_program_that_does_not_is_allowed(command: str) -> None:
    assert await verdict(command, ("*",)) == Allow()


async def test_strictest_verdict_of_several_commands_stands() -> None:
    policy = CommandPolicy(("ls",), ("rm",))
    outcome = await tried([policy], ("spawn", '{"argv": ["rm", "x"]}'))
    assert (outcome.only.verdict, outcome.only.policy) == ("deny", "commands")


@pytest.mark.requirement("D66")
async def test_tool_without_a_command_is_not_taken_for_a_shell() -> None:
    policy = CommandPolicy()
    outcome = await tried([policy], ("notes", '{"command": "rm -rf /"}'), ("file_ops", '{"operation": "read"}'))
    assert [judged.verdict for judged in outcome.judged] == ["allow", "allow"]
