"""Containers over HTTP, as the official client knows them: made, listed, removed, and files in and out of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import InvalidRequest
from mainspring.core.sandbox import MEGABYTE, SandboxLimits, SandboxSpec
from mainspring.features.containers.routes import read_upload
from mainspring.http.auth import Keys
from mainspring.http.faults import Fault
from mainspring.http.forms import parse_form
from mainspring.ports import NamedFile
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.sandbox.lease import LocalLease

pytestmark = pytest.mark.slow

# All that a form could be broken by.
STRANGE = bytes(range(256)) + b"\r\n\r\n--\r\n\n\r--boundary--\r\n" * 3


@asynccontextmanager
async def serving(*turns: Any, builtins: tuple[str, ...] = ("code_interpreter", "shell")) -> AsyncIterator[tuple[str, Engine]]:
    engine = Engine(Scripted(*turns), builtins=BuiltinTools(builtins))
    async with hosted(server(engine)) as url:
        yield url, engine


@asynccontextmanager
async def client(url: str, key: str = "unused") -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as made:
        yield made


async def test_a_container_is_made_listed_shown_and_removed() -> None:
    async with serving() as (url, _), client(url) as openai_client:
        containers = openai_client.containers
        first = await containers.create(name="sums", expires_after={"anchor": "last_active_at", "minutes": 5})
        second = await containers.create(name="plots")
        assert first.id.startswith("cntr_")
        assert (first.object, first.name, first.status) == ("container", "sums", "running")
        assert first.expires_after is not None
        assert (first.expires_after.anchor, first.expires_after.minutes) == ("last_active_at", 5)
        assert second.expires_after is not None
        assert second.expires_after.minutes == 20
        assert [found.id async for found in await containers.list()] == [second.id, first.id]
        assert [found.id async for found in await containers.list(limit=1, order="asc")] == [first.id, second.id]
        assert [found.id async for found in await containers.list(name="sums")] == [first.id]
        assert (await containers.retrieve(first.id)).name == "sums"
        await containers.delete(first.id)
        with pytest.raises(openai.NotFoundError, match=f"no container `{first.id}`"):
            await containers.retrieve(first.id)
        assert [found.id async for found in await containers.list()] == [second.id]


@pytest.mark.parametrize(
    ("name", "path"),
    [("./dot.txt", "dot.txt"), ("a//b.txt", "a/b.txt"), ("a/./c.txt", "a/c.txt"), ("d/" * 64 + "f", "d/" * 64 + "f")],
)
async def test_a_file_is_told_under_the_name_that_it_has(name: str, path: str) -> None:
    async with serving() as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="names")
        sent = await openai_client.containers.files.create(container.id, file=(name, b"x"))
        found = [file async for file in await openai_client.containers.files.list(container.id)]
        assert [(file.id, file.path, file.source, file.bytes) for file in found] == [(sent.id, path, "user", 1)]
        assert sent.path == path


@pytest.mark.parametrize("name", ["dir/", "d/" * 66 + "f", "f" * 300])
async def test_what_names_no_file_is_refused_and_nothing_is_written(name: str) -> None:
    async with serving() as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="names")
        with pytest.raises(openai.BadRequestError):
            await openai_client.containers.files.create(container.id, file=(name, b"x"))
        assert [file.path async for file in await openai_client.containers.files.list(container.id)] == []


async def test_uploads_in_parallel_do_not_fill_more_than_the_disk() -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        assert engine.builtins.containers is not None
        engine.builtins.containers.spec = SandboxSpec(limits=SandboxLimits(disk=4 * MEGABYTE))
        container = await openai_client.containers.create(name="full")
        files = openai_client.containers.files
        sent = await asyncio.gather(
            *[files.create(container.id, file=(f"d/e/{number}", bytes(MEGABYTE))) for number in range(12)], return_exceptions=True
        )
        assert len([one for one in sent if isinstance(one, openai.BadRequestError)]) == 12 - 3
        assert len([file async for file in await files.list(container.id)]) == 3


async def test_the_model_is_told_of_the_files_that_were_put_in() -> None:
    cell = call("code_interpreter", code="1")
    turns = [cell, say("Seen.", expect="[files put in by the user: data.csv (3 bytes)]\n1"), cell, say("Seen.", expect="1")]
    more = [cell, say("Seen.", expect="[files put in by the user: more.csv (4 bytes)]\n1")]
    async with serving(*turns, *more) as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="telling")
        files = openai_client.containers.files
        await files.create(container.id, file=("data.csv", b"1,2"))
        gone = await files.create(container.id, file=("gone.csv", b"1,2"))
        await files.delete(gone.id, container_id=container.id)
        for number in range(3):
            if number == 2:
                await files.create(container.id, file=("more.csv", b"1,2,"))
            answer = await openai_client.responses.create(
                model="m", input="Look.", tools=[{"type": "code_interpreter", "container": container.id}]
            )
            assert answer.output_text == "Seen."


async def test_a_container_that_is_not_there_is_refused() -> None:
    async with serving(say("Never.")) as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="mine")
        await openai_client.containers.delete(container.id)
        for name in (container.id, "cntr_madeup"):
            with pytest.raises(openai.NotFoundError, match=f"there is no container `{name}`") as raised:
                await openai_client.responses.create(
                    model="m", input="Go.", tools=[{"type": "code_interpreter", "container": name}]
                )
            assert raised.value.param == "tools"


async def test_a_key_that_may_run_nothing_puts_nothing_into_containers(tmp_path: Path) -> None:
    engine = Engine(Scripted(), database=tmp_path / "runs.db", builtins=BuiltinTools(("shell",)))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        weak = await keys.create(scopes=("responses",))
        strong = await keys.create(scopes=("responses", "tools:execute:shell"))
        async with client(url, strong) as able, client(url, weak) as unable:
            container = await able.containers.create(name="mine")
            for attempt in (
                unable.containers.create(name="theirs"),
                unable.containers.files.create(container.id, file=("f", b"x")),
                unable.containers.delete(container.id),
            ):
                with pytest.raises(openai.PermissionDeniedError, match="may use no tool that works in a container"):
                    await attempt
            await able.containers.files.create(container.id, file=("f", b"x"))


async def test_files_go_in_are_worked_on_and_come_out() -> None:
    code = "data = open('in.bin', 'rb').read()\nopen('out.bin', 'wb').write(data[::-1])\nlen(data)"
    async with serving(call("code_interpreter", code=code), say("Turned.")) as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="turning")
        files = openai_client.containers.files
        sent = await files.create(container.id, file=("in.bin", STRANGE))
        assert (sent.path, sent.bytes, sent.source, sent.container_id) == ("in.bin", len(STRANGE), "user", container.id)
        answer = await openai_client.responses.create(
            model="m", input="Turn it.", tools=[{"type": "code_interpreter", "container": container.id}]
        )
        assert answer.output_text == "Turned."
        made = answer.output[0]
        assert made.type == "code_interpreter_call"
        assert made.container_id == container.id
        found = {file.path: file async for file in await files.list(container.id)}
        assert {path: file.source for path, file in found.items()} == {"in.bin": "user", "out.bin": "assistant"}
        assert found["in.bin"].id == sent.id
        content = await files.content.retrieve(found["out.bin"].id, container_id=container.id)
        assert content.read() == STRANGE[::-1]
        assert (await files.retrieve(sent.id, container_id=container.id)).path == "in.bin"
        await files.delete(sent.id, container_id=container.id)
        with pytest.raises(openai.NotFoundError, match=sent.id):
            await files.retrieve(sent.id, container_id=container.id)
        assert [file.path async for file in await files.list(container.id)] == ["out.bin"]


async def test_the_container_of_an_answer_can_be_looked_into() -> None:
    writing = call("code_interpreter", code="open('a', 'w').write('x')")
    async with serving(writing, say("Done.")) as (url, _), client(url) as openai_client:
        answer = await openai_client.responses.create(
            model="m", input="Go.", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]
        )
        made = answer.output[0]
        assert made.type == "code_interpreter_call"
        [file] = [file async for file in await openai_client.containers.files.list(made.container_id)]
        assert (file.path, file.bytes) == ("a", 1)


async def test_a_container_of_another_tenant_does_not_exist() -> None:
    engine = Engine(Scripted(), builtins=BuiltinTools(["shell"]))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        ours = await keys.create(tenant="acme")
        theirs = await keys.create(tenant="other")
        async with client(url, ours) as acme, client(url, theirs) as other:
            container = await acme.containers.create(name="mine")
            file = await acme.containers.files.create(container.id, file=("note", b"hush"))
            assert [found.id async for found in await other.containers.list()] == []
            files = other.containers.files
            for asked in (
                other.containers.retrieve(container.id),
                other.containers.delete(container.id),
                files.create(container.id, file=("note", b"gone")),
                files.retrieve(file.id, container_id=container.id),
                files.content.retrieve(file.id, container_id=container.id),
                files.delete(file.id, container_id=container.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            with pytest.raises(openai.NotFoundError):
                await files.list(container.id)
            kept = await acme.containers.files.content.retrieve(file.id, container_id=container.id)
            assert kept.read() == b"hush"


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out", ".."])
async def test_a_name_that_leads_out_is_refused(name: str) -> None:
    async with serving() as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="c")
        with pytest.raises(openai.BadRequestError, match="no path within the workspace"):
            await openai_client.containers.files.create(container.id, file=(name, b"x"))


async def test_links_that_code_left_lead_nowhere() -> None:
    line = "ln -s /etc/passwd link; ln -s /etc folder; mkfifo pipe"
    async with serving(call("shell", command=line), say("Done.")) as (url, engine), client(url) as openai_client:
        tools: Any = [{"type": "shell", "environment": {"type": "container_auto"}}]
        await openai_client.responses.create(model="m", input="Go.", tools=tools)
        assert engine.builtins.containers is not None
        [about] = await engine.builtins.containers.list_all("")
        files = openai_client.containers.files
        assert [file.path async for file in await files.list(about.id)] == []
        for name in ("link", "folder/new", "pipe"):
            with pytest.raises(openai.BadRequestError):
                await files.create(about.id, file=(name, b"x"))


async def test_the_environment_of_a_shell_is_the_container_it_names() -> None:
    script = (call("shell", command="cat here"), say("Done.", expect="found"))
    async with serving(*script) as (url, _), client(url) as openai_client:
        container = await openai_client.containers.create(name="c")
        await openai_client.containers.files.create(container.id, file=("here", b"found"))
        named: Any = [{"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}]
        assert (await openai_client.responses.create(model="m", input="Go.", tools=named)).output_text == "Done."


@pytest.mark.parametrize(
    "environment",
    [
        {"type": "container_auto", "network_policy": {"type": "disabled"}},
        {"type": "container_auto", "memory_limit": "1g"},
        {"type": "container_reference", "container_id": "../out"},
        {"type": "elsewhere"},
    ],
)
async def test_what_a_shell_s_container_cannot_be_is_refused(environment: dict[str, Any]) -> None:
    async with serving() as (url, _), client(url) as openai_client:
        tools: Any = [{"type": "shell", "environment": environment}]
        with pytest.raises(openai.BadRequestError, match="cannot be set") as refused:
            await openai_client.responses.create(model="m", input="Go.", tools=tools)
        assert refused.value.param == "tools"


async def test_what_does_not_fit_is_refused() -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        containers = engine.builtins.containers
        assert containers is not None
        containers.spec = SandboxSpec(limits=SandboxLimits(file=MEGABYTE, disk=2 * MEGABYTE, entries=3))
        container = await openai_client.containers.create(name="small")
        files = openai_client.containers.files
        with pytest.raises(openai.BadRequestError, match="more than the 1048576 a file may have"):
            await files.create(container.id, file=("large", bytes(MEGABYTE + 1)))
        for name in ("one", "two"):
            await files.create(container.id, file=(name, bytes(MEGABYTE - 8192)))
        with pytest.raises(openai.BadRequestError, match="`three` does not fit"):
            await files.create(container.id, file=("three", bytes(MEGABYTE)))
        await files.create(container.id, file=("three", b""))
        with pytest.raises(openai.BadRequestError, match="`four` does not fit"):
            await files.create(container.id, file=("four", b""))
        with pytest.raises(openai.APIStatusError) as raised:
            await files.create(container.id, file=("huge", bytes(33 * MEGABYTE)))
        assert raised.value.status_code == 413


async def test_no_more_are_made_than_there_is_room_for_and_none_is_taken_from_whoever_uses_it() -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        containers = engine.builtins.containers
        assert containers is not None
        containers._most = 1
        first = await openai_client.containers.create(name="first")
        async with containers.use("", first.id):
            with pytest.raises(openai.RateLimitError, match="all 1 containers are in use") as raised:
                await openai_client.containers.create(name="second")
            assert raised.value.code == "container_limit"
        second = await openai_client.containers.create(name="second")
        assert [found.id async for found in await openai_client.containers.list()] == [second.id]


async def test_a_server_without_containers_says_how_to_have_them() -> None:
    async with serving(builtins=()) as (url, _), client(url) as openai_client:
        with pytest.raises(openai.NotFoundError, match="mainspring serve --builtin code_interpreter"):
            await openai_client.containers.create(name="c")
        with pytest.raises(openai.NotFoundError, match="no containers"):
            await openai_client.containers.list()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "c", "file_ids": ["file-1"] * 51}, "file_ids"),
        ({"name": "c", "memory_limit": "64g"}, "memory_limit"),
        ({"name": "c", "network_policy": {"type": "disabled"}}, "network_policy"),
        ({"name": "c", "expires_after": {"anchor": "last_active_at", "minutes": 0}}, "expires_after.minutes"),
        ({"name": "c", "expire_after": {"anchor": "last_active_at", "minutes": 1}}, "expire_after"),
        ({}, "name"),
    ],
)
async def test_what_cannot_be_set_is_refused_by_name(body: dict[str, object], param: str) -> None:
    async with serving() as (url, engine), httpx2.AsyncClient() as http:
        told = await http.post(f"{url}/containers", json=body)
        assert told.status_code == 400
        assert told.json()["error"]["param"] == param
        assert engine.builtins.containers is not None
        assert await engine.builtins.containers.list_all("") == ()


async def test_an_uploaded_file_is_put_into_containers_by_its_id() -> None:
    script = [call("code_interpreter", code="print(open('sums.csv').read())"), say("Six.")]
    async with serving(*script) as (url, _), client(url) as openai_client:
        sent = await openai_client.files.create(file=("sums.csv", b"1,2,3"), purpose="user_data")
        made = await openai_client.containers.create(name="c", file_ids=[sent.id])
        other = await openai_client.containers.create(name="d")
        await openai_client.containers.files.create(other.id, file_id=sent.id)
        for container in (made, other):
            [found] = [file async for file in await openai_client.containers.files.list(container.id)]
            assert (found.path, found.bytes, found.source) == ("sums.csv", 5, "user")
        tool: Any = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [sent.id]}}
        answer = await openai_client.responses.create(model="scripted", input="Sum up.", tools=[tool])
        assert answer.output_text == "Six."
        [performed] = [item for item in answer.output if item.type == "code_interpreter_call"]
        assert "1,2,3" in str(performed.outputs)


async def test_another_file_of_a_name_that_a_container_has_is_refused_and_the_same_one_stays_as_code_left_it() -> None:
    change = "open('sums.csv', 'a').write(',4'); open('made.txt', 'w').write('x')"
    script = [
        call("code_interpreter", code=change),
        say("Done."),
        call("code_interpreter", code="print(open('sums.csv').read())"),
    ]
    async with serving(*script, say("Ten.")) as (url, _), client(url) as openai_client:

        async def ask(file_id: str, after: str | None = None) -> Any:
            tool: Any = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [file_id]}}
            options: Any = {"previous_response_id": after, "include": ["code_interpreter_call.outputs"]}
            return await openai_client.responses.create(model="scripted", input="Go.", tools=[tool], **options)

        async def send(name: str, data: bytes) -> str:
            return (await openai_client.files.create(file=(name, data), purpose="user_data")).id

        sent = await send("sums.csv", b"1,2,3")
        first = await ask(sent)
        for other in (await send("sums.csv", b"7"), await send("./sums.csv", b"7"), await send("made.txt", b"7")):
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(other, first.id)
            assert refused.value.param == "file_ids"
        again = await ask(await send("sums.csv", b"1,2,3"), first.id)
        assert "1,2,3,4" in str(again.output)


async def test_a_file_that_is_not_there_is_put_nowhere() -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        container = await openai_client.containers.create(name="c")
        tool: Any = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}
        for attempt in (
            openai_client.containers.files.create(container.id, file_id="file-1"),
            openai_client.containers.create(name="d", file_ids=["file-1"]),
            openai_client.responses.create(model="scripted", input="Go.", tools=[tool]),
        ):
            with pytest.raises(openai.NotFoundError, match="No such File object: file-1"):
                await attempt
        assert engine.builtins.containers is not None
        assert len(await engine.builtins.containers.list_all("")) == 1


@pytest.mark.parametrize("names", [("a.csv", "a.csv"), ("a.csv", "../a.csv")], ids=["twice", "outside"])
async def test_files_that_a_container_cannot_have_are_refused_and_none_is_left(names: tuple[str, str]) -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        sent = [(await openai_client.files.create(file=(name, name.encode()), purpose="user_data")).id for name in names]
        tool: Any = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": sent}}
        with pytest.raises(openai.BadRequestError):
            await openai_client.containers.create(name="d", file_ids=sent)
        with pytest.raises(openai.BadRequestError):
            await openai_client.responses.create(model="scripted", input="Go.", tools=[tool])
        assert engine.builtins.containers is not None
        assert await engine.builtins.containers.list_all("") == ()


async def test_no_more_is_loaded_for_a_container_than_it_holds() -> None:
    async with serving() as (url, engine), client(url) as openai_client:
        assert engine.builtins.containers is not None
        engine.builtins.containers.spec = SandboxSpec(limits=SandboxLimits(file=600, disk=1000))
        files = [(name, b"x" * 600) for name in ("a", "b")]
        sent = [(await openai_client.files.create(file=file, purpose="user_data")).id for file in files]
        with pytest.raises(openai.BadRequestError) as refused:
            await openai_client.containers.create(name="d", file_ids=sent)
        assert refused.value.code == "file_too_large"


def named(charset: str, name: str) -> bytes:
    return f"Content-Disposition: form-data; name=\"file\"; filename*={charset}''{name}\r\n\r\nx".encode()


def form(*parts: bytes, boundary: str = "B", end: bytes = b"--") -> bytes:
    return b"".join([f"--{boundary}\r\n".encode() + part + b"\r\n" for part in parts]) + f"--{boundary}".encode() + end


async def parse_upload(kind: str, body: bytes, size: int = 1 << 20) -> NamedFile:
    """The file of a form that arrives in pieces of this size."""

    async def arrive() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return await read_upload(parse_form(kind, arrive()))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
async def test_a_form_is_read_in_whatever_pieces_it_arrives(size: int) -> None:
    content = b"\r\n--\r\n--B\x00\r\n\r\n--A" * 3
    part = b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + content
    body = b"some words before\r\n" + form(part, b"nonsense", boundary="BB")
    assert await parse_upload("multipart/form-data; boundary=BB", body, size) == NamedFile("f", content)


async def test_the_part_called_file_is_found_among_others() -> None:
    other = b'Content-Disposition: form-data; name="purpose"\r\n\r\nx'
    part = b'content-type: text/plain\r\ncontent-disposition: form-data; filename="a b.txt"; name="file"\r\n\r\n\r\n\r\n'
    sent = await parse_upload('multipart/form-data; boundary="B"', form(other, part))
    assert (sent.name, sent.data) == ("a b.txt", b"\r\n\r\n")


async def test_a_name_in_any_script_is_understood() -> None:
    part = b"Content-Disposition: form-data; name=\"file\"; filename*=utf-8''%E6%99%82.txt\r\n\r\nx"
    assert (await parse_upload("multipart/form-data; boundary=B", form(part))).name == "時.txt"
    part = 'Content-Disposition: form-data; name="file"; filename="時.txt"\r\n\r\nx'.encode()
    assert (await parse_upload("multipart/form-data; boundary=B", form(part))).name == "時.txt"


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("multipart/form-data", b"", "boundary is missing"),
        ("multipart/form-data; boundary=\xff", b"", "boundary is missing"),
        ("multipart/form-data; boundary=B", b"", "does not end"),
        (
            "multipart/form-data; boundary=B",
            form(b'Content-Disposition: form-data; name="file"\r\n\r\nx', end=b""),
            "does not end",
        ),
        ("multipart/form-data; boundary=B", form(b'Content-Disposition: form-data; name="f"\r\n\r\nx'), "no part called"),
        ("multipart/form-data; boundary=B", form(b"nonsense"), "no part called"),
        ("multipart/form-data; boundary=B", form(*[b"nonsense"] * 600_000), "more than 100 parts"),
        ("multipart/form-data; boundary=B", form(named("unicode_escape", "a")), "a character set other than utf-8"),
        ("multipart/form-data; boundary=B", form(named("idna", "a")), "a character set other than utf-8"),
        ("multipart/form-data; boundary=B", form(named("utf-8", "%FF")), "is not in the character set"),
    ],
)
async def test_a_form_that_cannot_be_read_says_why(kind: str, body: bytes, why: str) -> None:
    with pytest.raises(Fault, match=why) as raised:
        await parse_upload(kind, body)
    assert raised.value.status == 400


async def test_a_link_is_removed_and_not_what_it_leads_to() -> None:
    async with BuiltinTools(["shell"]) as builtins:
        assert builtins.containers is not None
        async with builtins.containers.use("", "cntr_1") as container:
            lease = container.lease
            assert isinstance(lease, LocalLease)
            await lease.execute("import os\nopen('kept', 'w').close()\nos.symlink('kept', 'link')\nos.symlink('/etc', 'out')")
            await lease.remove("link")
            assert [entry.path for entry in (await lease.list()).entries] == ["kept"]
            for path in ("out/passwd", "../x", "/etc/passwd"):
                with pytest.raises(InvalidRequest):
                    await lease.remove(path)
