"""Every row of the compatibility table is tried out at a real server, and no name of OpenAI's SDK lacks a row."""

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import aiohttp
import pytest
from msgspec import Struct
from openai.types.responses import response_create_params as create
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_input_content_param import ResponseInputContentParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.response_output_message_param import Content
from openai.types.responses.response_stream_event import ResponseStreamEvent
from openai.types.responses.tool_param import ToolParam
from pydantic import BaseModel
from scripts.compatibility import PAGE, write_page
from tests.clients.process import served
from tests.compatibility.backends import Backends, answering
from tests.compatibility.cases import CASES, CLIENTS, Case, Json, Kind

ROOT = Path(__file__).parents[2]
IGNORED = "Mainspring-Ignored"
TOOLS = '''
from mainspring import tool


@tool
def clock() -> str:
    """Tells the time."""
    return "hello"


@tool
def broken() -> str:
    """Fails."""
    raise RuntimeError("hello")
'''
SETTINGS = '[providers.chat]\nkind = "chat"\nbase_url = "{url}"\n\n[providers.upstream]\nkind = "responses"\nbase_url = "{url}"\n'


class World(Struct, frozen=True):
    """A server with two backends, a response, an item of it, and a conversation. `events` are the names of all that it sent."""

    url: str
    backends: Backends
    names: dict[str, str]
    events: set[str]

    async def ask(self, case: Case, model: str) -> tuple[int, str | None, str]:
        """The status, what was ignored, and the text of the answer. A streamed one is the JSON of its events."""
        body = json.dumps({"model": f"{model}/m", "input": "hello", **case.body})
        for name, value in self.names.items():
            body = body.replace(f'"{name}"', f'"{value}"')
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/responses", data=body, headers=headers) as answer,
        ):
            text = await answer.text()
            self.events.update(re.findall(r"^event: (.*)$", text, re.MULTILINE))
            return answer.status, answer.headers.get(IGNORED), text


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    (folder / "tools.py").write_text(TOOLS)
    async with answering() as backends, aiohttp.ClientSession() as session:
        (folder / "mainspring.toml").write_text(SETTINGS.format(url=backends.url))
        with served(folder, backends.url, ["--tool", "tools"]) as server:
            async with session.post(f"{server.url}/responses", json={"model": "chat/m", "input": "hello"}) as answer:
                made = await answer.json()
            async with session.post(f"{server.url}/conversations", json={}) as answer:
                conversation = (await answer.json())["id"]
            names = {"RESPONSE": made["id"], "ITEM": made["output"][0]["id"], "CONVERSATION": conversation}
            yield World(server.url, backends, names, set())


async def test_every_row_is_what_happens(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with open_world(tmp_path) as world:
        for case in CASES:
            if not case.shown_by:
                wrong += [f"{case.kind} {case.name}: {flaw}" for flaw in await list_flaws(world, case)]
        assert not world.events & {case.name for case in CASES if case.verdict == "not sent"}
    assert not wrong, "\n".join(wrong)


async def list_flaws(world: World, case: Case) -> list[str]:
    match case.verdict:
        case "works":
            return await list_flaws_of_working(world, case)
        case "passed on":
            return [*await list_flaws_of_passed_on(world, case), *await list_flaws_elsewhere(world, case)]
        case "refused":
            return check_refusal(case, await world.ask(case, "chat"))
        case "ignored":
            return check_ignored(case, await world.ask(case, "chat"))
        case "not sent":
            return []  # looked for among the events of all other rows


async def list_flaws_of_working(world: World, case: Case) -> list[str]:
    before = len(world.backends.asked)
    status, ignored, text = await world.ask(case, "chat")
    if case.kind == "event":
        return [] if f"event: {case.name}\n" in text else [f"{status} {text[:500]}"]
    if (status, ignored) != (200, None):
        return [f"{status}, ignored {ignored}: {text[:300]}"]
    if case.body.get("generate") is False:
        return [] if len(world.backends.asked) == before else ["the model was asked all the same"]
    asked = world.backends.asked[-1]
    told = {} if case.body.get("stream") else json.loads(text)
    wanted = {name: world.names.get(value, value) if isinstance(value, str) else value for name, value in case.told.items()}
    wanted = json.loads(json.dumps(wanted).replace("CONVERSATION", world.names["CONVERSATION"]))
    flaws = [*_list_missing("the backend was asked", case.sent, asked), *_list_missing("the Response says", wanted, told)]
    # What an item, a part or a tool says must reach the model in some form.
    said = _list_said(case)
    if said and not any(words in json.dumps(asked) for words in said):
        flaws.append(f"nothing of {said} reached the backend: {json.dumps(asked)[:300]}")
    return flaws


async def list_flaws_of_passed_on(world: World, case: Case) -> list[str]:
    """What becomes of it with a backend that speaks the Responses API."""
    status, ignored, text = await world.ask(case, "upstream")
    if (status, ignored) != (200, None):
        return [f"with a Responses backend: {status}, ignored {ignored}: {text[:300]}"]
    asked = world.backends.asked[-1]
    wanted = {**case.sent, **{name: value for name, value in case.body.items() if name == "tools"}}
    flaws = [*_list_missing("the backend was asked", wanted, asked)]
    if case.kind in ("item", "content part"):
        whole = json.dumps(asked["input"])
        flaws += [] if f'"type": "{case.name}"' in whole else [f"the backend was asked {whole[:300]}"]
    return flaws


async def list_flaws_elsewhere(world: World, case: Case) -> list[str]:
    answer = await world.ask(case, "chat")
    return check_ignored(case, answer) if case.is_ignored_elsewhere else check_refusal(case, answer)


def check_refusal(case: Case, answer: tuple[int, str | None, str]) -> list[str]:
    status, _, text = answer
    if status not in (400, 404):
        return [f"{status}: {text[:300]}"]
    error = json.loads(text)["error"]
    return [] if error["param"] == case.param else [f"it names {error['param']}: {error['message']}"]


def check_ignored(case: Case, answer: tuple[int, str | None, str]) -> list[str]:
    status, ignored, text = answer
    return [] if (status, ignored) == (200, case.param) else [f"{status}, ignored {ignored}: {text[:300]}"]


def _list_missing(who: str, wanted: Json, given: Json) -> Iterator[str]:
    for name, value in wanted.items():
        found = given.get(name)
        is_part = isinstance(found, list) and isinstance(value, list) and value and all(one in found for one in value)
        if found != value and not is_part:
            yield f"{who} {name} = {found!r:.200}, not {value!r:.200}"


def _list_said(case: Case) -> list[str]:
    """The texts of a row's first item, part or tool, but for what names its kind, and what is only for us."""
    if case.kind not in ("item", "content part", "tool"):
        return []
    ahead: list[object] = [case.body["tools"] if case.kind == "tool" else case.body["input"][:-1]]
    said: list[str] = []
    while ahead:
        match ahead.pop():
            case dict() as node:
                ahead += [value for key, value in node.items() if key not in _LABELS]
            case list() as nodes:
                ahead += nodes
            case str(words) if words:
                said.append(json.dumps(words)[1:-1])
    return said


_LABELS = frozenset({"type", "role", "id", "call_id", "status", "execution", "server_label", "server_url"})


def list_types(union: object) -> set[str]:
    """The values of `type` of every member of a union of the SDK."""
    found: set[str] = set()
    members = get_args(union) or (union,)
    for member in members:
        if isinstance(member, type) and issubclass(member, BaseModel):
            kind: object = member.model_fields["type"].annotation
        elif isinstance(member, type):
            kind = get_type_hints(member, include_extras=False)["type"]
        else:
            found |= list_types(member) if get_args(member) else set()
            continue
        found |= set(_list_literals(kind))
    return found


def _list_literals(kind: object) -> Iterable[str]:
    for inner in get_args(kind):
        if isinstance(inner, str):
            yield inner
        elif get_origin(inner) is not None:
            yield from _list_literals(inner)


KNOWN: dict[Kind, set[str]] = {
    "field": {*create.ResponseCreateParamsBase.__annotations__, *create.ResponseCreateParamsStreaming.__annotations__},
    "tool": list_types(ToolParam),
    "item": list_types(ResponseInputItemParam),
    "content part": list_types(ResponseInputContentParam) | list_types(Content),
    "include value": {*get_args(ResponseIncludable)},
    "event": list_types(ResponseStreamEvent),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_whatever_the_sdk_of_openai_knows_has_a_row(kind: Kind) -> None:
    assert len(KNOWN[kind]) > 3
    assert KNOWN[kind] - {case.name for case in CASES if case.kind == kind} == set()


def test_every_row_is_there_once() -> None:
    rows = [(case.kind, case.name) for case in CASES]
    assert len(rows) == len(set(rows))


def test_what_other_tests_show_is_shown_by_tests_that_exist() -> None:
    for place in [*[case.shown_by for case in CASES if case.shown_by], *[file for _, file in CLIENTS]]:
        file, _, name = place.partition("::")
        text = (ROOT / file).read_text()
        assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), place


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == write_page(), "run `python -m scripts.compatibility`"
