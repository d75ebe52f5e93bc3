"""No attack of the corpus is performed, each is stopped by the rule that is meant for it, and their benign twins pass."""

import json
import tomllib
from pathlib import Path

import pytest
from msgspec import Struct
from tests.policies.world import Outcome, every_policy, folder, tried

CORPUS = tomllib.loads((Path(__file__).parent / "corpus.toml").read_text())
RULES = {"shell": "commands", "path": "paths", "url": "domains"}


class Made(Struct, frozen=True):
    tool: str
    arguments: str


class Pair(Struct, frozen=True):
    trick: str
    rule: str
    attack: Made
    twin: Made


def made(kind: str, said: object) -> Made:
    match kind:
        case "shell":
            return Made("shell", json.dumps({"command": said}))
        case "path":
            return Made("file_ops", json.dumps({"operation": "read", "path": said}))
        case "url":
            return Made("web_fetch", json.dumps({"url": said}))
        case _:
            assert isinstance(said, dict)
            return Made(said["tool"], said["arguments"])


PAIRS = [
    Pair(each["trick"], each.get("rule", RULES.get(kind)), made(kind, each["attack"]), made(kind, each["twin"]))
    for kind, pairs in CORPUS.items()
    for each in pairs
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("corpus"))


async def outcome(call: Made, root: Path, *, governed: bool = True) -> Outcome:
    return await tried(every_policy(root) if governed else (), (call.tool, call.arguments.replace("{root}", str(root))))


def test_corpus_has_more_than_sixty_pairs_and_no_attack_twice() -> None:
    assert len(PAIRS) >= 60
    assert len({(pair.attack.tool, pair.attack.arguments) for pair in PAIRS}) == len(PAIRS)


@pytest.mark.requirement("C18", "C-T8", "D67", "D71", "D79")
@pytest.mark.parametrize("pair", [pytest.param(pair, id=f"{pair.rule}: {pair.trick}") for pair in PAIRS])
async def test_attack_is_not_performed_and_the_refusal_names_its_rule(pair: Pair, root: Path) -> None:
    tried = await outcome(pair.attack, root)
    assert tried.done == []
    assert tried.only.policy == pair.rule
    assert tried.only.verdict in ("deny", "ask")
    named = f"rule `{pair.rule}`" if pair.rule in RULES.values() else f"`{pair.attack.tool}`"
    assert named in tried.only.reason
    ending = ("requires_action", "") if tried.only.verdict == "ask" else ("completed", "Well.")
    assert (tried.run.status, tried.run.text) == ending


async def test_without_governance_the_attacks_would_be_performed(root: Path) -> None:
    for pair in PAIRS:
        tried = await outcome(pair.attack, root, governed=False)
        assert len(tried.done) == (pair.rule not in ("known_tool", "valid_arguments", "caller_scopes")), pair.trick


async def test_benign_twins_are_performed(root: Path) -> None:
    refused = {}
    for pair in PAIRS:
        tried = await outcome(pair.twin, root)
        assert len(tried.done) == (tried.only.verdict == "allow")
        if not tried.done:
            refused[pair.trick] = tried.only.reason
    assert len(refused) <= 0.05 * len(PAIRS), refused
