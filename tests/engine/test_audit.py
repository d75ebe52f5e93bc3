"""The audit: complete, in order, without secrets, and whoever tampers with it is found out."""

import asyncio
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path

import pytest
from tests.kit.processes import DEVNULL, start

from mainspring.app.engine import Engine
from mainspring.core.errors import MainspringError, StoreError, Superseded
from mainspring.core.events import Recorded, RunEnded, RunStarted, ToolEnded
from mainspring.core.items import ApprovalRequest, ApprovalResponse
from mainspring.core.run import Call, Run
from mainspring.core.spec import Caller, spec_for
from mainspring.engine.audit import AuditEntry, Auditor, digest_of, entry_of
from mainspring.ports import Allow, Ask, Deny, Note, Segment, Store, Verdict
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.storage.audit_chain import GENESIS, verify
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.functions import tool

WORKER = Path(__file__).with_name("audited.py")
SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ"


class Rules:
    """Asks before `erase`, and denies whatever has the word `never` in it."""

    name = "rules"

    async def judge(self, call: Call, run: Run) -> Verdict:
        if "never" in call.item.arguments:
            return Deny(f"Not with {call.item.arguments}.")
        return Ask("May I erase it?") if call.item.name == "erase" else Allow()


done: list[str] = []


@tool
async def erase(name: str) -> str:
    """Erases a file."""
    done.append(name)
    if name == "missing":
        raise ValueError(name)
    return f"erased {name}"


@tool
async def read(name: str) -> str:
    """Reads a file."""
    done.append(name)
    return f"This is {name}."


@asynccontextmanager
async def audited(store: Store, *turns: object, rules: bool = True) -> AsyncIterator[Engine]:
    done.clear()
    policies = [Rules()] if rules else []
    script = Scripted(*turns)  # type: ignore[arg-type]
    async with Engine(script, tools=[erase, read], policies=policies, store=store, audit=True) as engine:
        yield engine


async def entries(store: Store) -> list[AuditEntry]:
    return [entry_of(link.note) for link in await store.audit()]


def told(found: Sequence[AuditEntry]) -> list[tuple[str, str, str]]:
    return [(entry.what, entry.outcome, entry.tool) for entry in found]


@pytest.mark.requirement("C19", "C20")
async def test_every_verdict_execution_and_answer_is_recorded_with_who_what_why_and_outcome() -> None:
    store = MemoryStore()
    turns = (calls(call("read", name="a"), call("erase", name="never"), call("erase", name="b")), say("Done."))
    async with audited(store, *turns) as engine:
        paused = await engine.run("Go.", tenant="acme", caller=Caller("ada"))
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        said = ApprovalResponse(request.id, approve=True, reason="fine with me")
        await engine.run([said], previous=paused.spec.id, tenant="acme", caller=Caller("bob"))
    found = await entries(store)
    assert told(found) == [
        ("judged", "allow", "read"),
        ("judged", "deny", "erase"),
        ("judged", "ask", "erase"),
        ("started", "", "read"),
        ("ended", "ok", "read"),
        ("run_ended", "requires_action", ""),
        ("approval", "approved", "erase"),
        ("judged", "allow", "erase"),
        ("started", "", "erase"),
        ("ended", "ok", "erase"),
        ("run_ended", "completed", ""),
    ]
    assert {entry.tenant for entry in found} == {"acme"}
    assert [entry.subject for entry in found] == ["ada"] * 6 + ["bob"] * 5
    asked, answered = found[2], found[6]
    assert (asked.policy, asked.reason, asked.arguments) == ("rules", "May I erase it?", '{"name":"b"}')
    assert asked.digest == answered.digest == found[8].digest == sha256(b'{"name":"b"}').hexdigest()
    assert (answered.reason, answered.call) == ("fine with me", asked.call)
    log = await store.events(found[0].run)
    assert all(log[entry.seq].at == entry.at for entry in found[:6])


async def test_a_failed_call_is_recorded_as_an_error_and_nothing_of_any_output_is_kept() -> None:
    store = MemoryStore()
    async with audited(store, calls(call("erase", name="missing"), call("read", name="z")), say("Hm."), rules=False) as engine:
        await engine.run("Go.")
    assert [entry.outcome for entry in await entries(store) if entry.what == "ended"] in (["error", "ok"], ["ok", "error"])
    assert not any(b"This is z" in link.note.body for link in await store.audit())


async def test_secrets_are_neither_in_the_arguments_nor_in_the_reasons_of_the_audit() -> None:
    store = MemoryStore()
    async with audited(store, call("read", name=SECRET), call("read", name=f"never {SECRET}"), say("Done.")) as engine:
        await engine.run("Go.")
    found = await entries(store)
    assert [entry.arguments for entry in found if entry.what == "judged"] == [
        '{"name":"[redacted]"}',
        '{"name":"never [redacted]"}',
    ]
    assert [entry.reason for entry in found if entry.outcome == "deny"] == ['Not with {"name":"never [redacted]"}.']
    assert not any(SECRET.encode() in link.note.body for link in await store.audit())
    assert digest_of(f'{{ "name" : "{SECRET}" }}') == found[0].digest, "spaces do not matter"


async def test_long_arguments_are_kept_as_a_digest_and_an_excerpt() -> None:
    store = MemoryStore()
    async with audited(store, call("read", name="x" * 100_000), say("Done.")) as engine:
        await engine.run("Go.")
    assert sum(len(link.note.body) for link in await store.audit()) < 3_000


async def test_a_run_that_is_not_stored_is_audited_and_a_deleted_one_stays_in_the_audit() -> None:
    store = MemoryStore()
    async with audited(store, call("read", name="a"), say("Done."), call("read", name="b"), say("Done.")) as engine:
        await engine.run("Go.", store=False)
        kept = await engine.run("Go.")
        before = await store.audit()
        await engine.forget(kept.spec.id)
        assert await store.audit() == before
    both = [("judged", "allow", "read"), ("started", "", "read"), ("ended", "ok", "read"), ("run_ended", "completed", "")]
    assert told(await entries(store)) == both * 2


class Deaf(MemoryStore):
    """A store that takes no note."""

    def append_all(self, segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
        refused: asyncio.Future[list[MainspringError | None]] = asyncio.get_running_loop().create_future()
        refused.set_result([StoreError("the disk is full")] * len(segments))
        return refused


async def test_a_tool_whose_start_cannot_be_audited_does_not_run() -> None:
    async with audited(Deaf(), call("read", name="a"), say("Done.")) as engine:
        run = await engine.run("Go.", store=False)
    assert (run.status, done) == ("failed", [])


async def test_without_an_audit_there_are_no_records() -> None:
    store = MemoryStore()
    async with Engine(Scripted(call("read", name="a"), say("Done.")), tools=[read], store=store) as engine:
        await engine.run("Go.")
    assert await store.audit() == []


async def test_text_makes_no_records() -> None:
    counts = []
    for length in (1, 500):
        store = MemoryStore()
        script = Scripted(say("x" * length), chunk=1)
        async with Engine(script, store=store, audit=True) as engine:
            await engine.run("Go.")
        counts.append(len(await store.audit()))
    assert counts == [1, 1]


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store


async def test_a_driver_that_was_superseded_leaves_nothing_in_the_audit(store: Store) -> None:
    spec = spec_for("responses", id="resp_1", model="m", input=())
    await store.append("resp_1", [Recorded(0, 1.0, RunStarted(spec))], None, [Note(b"first", "call_1")])
    with pytest.raises(Superseded):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(spec))], None, [Note(b"second", "call_1")])
    await store.note([Note(b"third")])
    assert [link.note for link in await store.audit()] == [Note(b"first", "call_1"), Note(b"third")]
    assert [link.note.body for link in await store.audit(call="call_1")] == [b"first"]
    assert await store.audit(call="") == []
    assert [link.number for link in await store.audit(newest_first=True, limit=1)] == [2]
    assert [link.number for link in await store.audit(newest_first=True, after=2)] == [1]


async def test_a_chain_is_whole_as_it_grows_and_every_head_of_it_stays_in_it(store: Store) -> None:
    seen = await verify(store)
    assert (seen.length, seen.head, seen.flaw) == (0, GENESIS, None)
    heads = [seen.head]
    for number in range(3):
        await store.note([Note(f"{number}".encode(), f"call_{number}")] * 2)
        heads.append((await verify(store)).head)
    assert [(await verify(store, head)).anchor for head in heads] == [0, 2, 4, 6]
    assert len(set(heads)) == 4


async def filled(path: Path) -> bytes:
    """A file with six records; their head."""
    async with SqliteStore(path) as store:
        await store.note([Note(f'{{"n": {number}}}'.encode(), f"call_{number}") for number in range(1, 7)])
        return (await verify(store)).head


TAMPERING = {
    "an edited body": ("UPDATE audit SET body = CAST('{}' AS BLOB) WHERE number = 3", 2, "record 3 was changed"),
    "an edited call": ("UPDATE audit SET call = 'call_9' WHERE number = 3", 2, "record 3 was changed"),
    "an edited hash": ("UPDATE audit SET hash = zeroblob(32) WHERE number = 6", 5, "record 6 was changed"),
    "a deleted record": ("DELETE FROM audit WHERE number = 3", 2, "record 3 is missing: record 4 follows record 2"),
    "a deleted beginning": ("DELETE FROM audit WHERE number < 3", 0, "record 1 is missing: record 3 follows record 0"),
    "a gap that was closed": (
        "DELETE FROM audit WHERE number = 3; UPDATE audit SET number = number - 1 WHERE number > 3", 2, "record 3 was changed",
    ),
    "two that changed places": (
        "UPDATE audit SET number = -1 WHERE number = 3; UPDATE audit SET number = 3 WHERE number = 4;"
        "UPDATE audit SET number = 4 WHERE number = -1", 2, "record 3 was changed",
    ),
    "a record put in front": (
        "INSERT INTO audit (number, call, body, hash) VALUES (0, '', x'7b7d', zeroblob(32))", 0, "record 1 is missing",
    ),
    "a record put behind": (
        "INSERT INTO audit (number, call, body, hash) VALUES (7, '', x'7b7d', zeroblob(32))", 6, "record 7 was changed",
    ),
    "moved bytes": (
        "UPDATE audit SET call = 'call_', body = CAST('3' || CAST(body AS TEXT) AS BLOB) WHERE number = 3",
        2, "record 3 was changed",
    ),
}  # fmt: skip


def tampered(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP TRIGGER audit_stays; DROP TRIGGER audit_grows; {statements};")


@pytest.mark.parametrize("how", TAMPERING)
async def test_tampering_is_found_at_the_first_record_that_it_touched(tmp_path: Path, how: str) -> None:
    statements, whole, flaw = TAMPERING[how]
    await filled(tmp_path / "runs.db")
    tampered(tmp_path / "runs.db", statements)
    async with SqliteStore(tmp_path / "runs.db") as store:
        seen = await verify(store)
    assert seen.length == whole
    assert flaw in (seen.flaw or "")


async def test_an_end_that_was_cut_off_is_found_by_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    head = await filled(tmp_path / "runs.db")
    tampered(tmp_path / "runs.db", "DELETE FROM audit WHERE number > 4")
    async with SqliteStore(tmp_path / "runs.db") as store:
        assert (await verify(store)).flaw is None
        assert "cut off" in ((await verify(store, head)).flaw or "")
        await store.note([Note(b'{"n": 5}', "call_5"), Note(b'{"n": 7}', "call_6")])
        assert "cut off" in ((await verify(store, head)).flaw or ""), "also when others have been put there instead"


@pytest.mark.parametrize("statement", ["UPDATE audit SET body = x''", "DELETE FROM audit"])
async def test_the_table_is_only_added_to(tmp_path: Path, statement: str) -> None:
    await filled(tmp_path / "runs.db")
    with (
        closing(sqlite3.connect(tmp_path / "runs.db")) as connection,
        pytest.raises(sqlite3.IntegrityError, match="the audit is only added to"),
    ):
        connection.execute(statement)


def two_killed(database: Path, delay: float) -> None:
    """Two processes work on the file side by side, and are killed so many seconds after both have begun."""
    command = [sys.executable, str(WORKER), str(database)]
    workers = [start(command, stderr=DEVNULL) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
    time.sleep(delay)
    for worker in workers:
        worker.kill()
        worker.communicate()


@pytest.mark.slow
async def test_processes_that_share_a_file_and_are_killed_leave_a_whole_and_complete_audit(tmp_path: Path) -> None:
    """What is in a log is in the audit, once and in order, whenever its process died."""
    database, dice = tmp_path / "runs.db", random.Random(7)
    for _ in range(4):
        two_killed(database, dice.uniform(0, 0.1))
    async with SqliteStore(database) as store:
        assert (await verify(store)).flaw is None
        found = await entries(store)
        logs = {run.id: await store.events(run.id) for run in (await store.list(limit=100)).runs}
    assert logs
    for run_id, log in logs.items():
        assert isinstance(log[0].event, RunStarted)
        assert [entry for entry in found if entry.run == run_id] == Auditor(log[0].event.spec).entries(log)
    assert {entry.run for entry in found} <= set(logs)
    ends = [sum(isinstance(record.event, ToolEnded | RunEnded) for record in log) for log in logs.values()]
    assert sum(ends) > 0, "the kills came after something had happened"
