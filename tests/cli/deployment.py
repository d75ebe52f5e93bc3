"""A deployment with something of every kind in it, and all that can be seen of one."""

from datetime import UTC, datetime
from uuid import UUID

from tests.decisions.test_log import START, decision, invocation
from tests.memory.world import Embeddings, a_memory, seen
from tests.store.logs import begin, say

from mainspring import Engine, tool
from mainspring.ports import Document, Note, Segment
from mainspring.providers.scripted import Scripted, call, calls
from mainspring.providers.scripted import say as answer
from mainspring.storage.audit_chain import verify
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.segment import collect_item_ids
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.server.task import make_task
from mainspring_tasks.server.task_store import choose_task_store

OWNER = "ada \N{SNOWMAN}"
STREAMS = ("one", "two", "three", "four", "five", "six")
ODD = "nul \0 and \x1a and \x1a0, \N{SNOWMAN}"


def beside(database: Location, name: str) -> Location:
    return database if database.file is None else parse_location(database.file.absolute().parent / name)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def fill(database: Location, backend: Embeddings) -> None:
    """Puts something of every kind there, as the parts of Mainspring themselves do."""
    script = Scripted(calls(call("add", a=1, b=2)), answer("Three. " + "A vehicle. " * 30), answer("Again."))
    async with Engine(script, tools=[add], database=database, memory=a_memory(database, **backend.options())) as engine:
        first = await engine.run("Add, please.")
        await engine.run("And again.", previous=first.spec.id)
    async with a_memory(database, **backend.options()) as memory:
        await memory.record(seen("An automobile in the rain.", id="ob1", tenant=ODD, session_id=ODD, tags=("wet", "car")))
        await memory.record(seen("A baguette.", id="ob2"))
        await memory.forget(tenant="gone", session=ODD)
        await memory.settle()
    async with open_store(database) as store:
        await store.append(ODD, begin(ODD))
        await store.append(ODD, say(1, "not", " ended"))
        # Deltas of several runs in one batch are kept apart from their logs for a while.
        for name in STREAMS:
            await store.append(name, [*begin(name), *say(1, "a")])
        await store.append_all([Segment(name, tuple(say(2, "b"))) for name in STREAMS])
        await store.put(
            [Document("top", "a", b"1", ODD), Document("item", ODD, b"\0\1", ODD, "a"), Document("item", "z", b"{}", ODD, "a")]
        )
        await store.put([Document("top", "last", b"1")])
        await store.remove("top", "last")
        await store.note([Note(b"{}", ODD), Note(b"{}")])
    logs = DecisionLogs(beside(database, "decisions.db"), clock=START.timestamp)
    await logs.write_decision_log(decision(1, None, message=ODD))
    await logs.finish(decision(1), [invocation(1), invocation(1, 2, result=None)])
    await logs.write_decision_log(decision(2, None))
    await logs.close()
    tasks = choose_task_store(beside(database, "tasks.db").given)
    await tasks.open()
    for number in (1, 2):
        moment = datetime(2026, 1, number, tzinfo=UTC)
        await tasks.add(OWNER, make_task(UUID(int=number), f"task {number}", moment, moment if number == 2 else None))
    await tasks.close()


async def look(database: Location, backend: Embeddings) -> dict[str, object]:
    """All that can be seen of a deployment."""
    async with open_store(database) as store:
        runs = (await store.list(limit=100, newest_first=False)).runs
        ended = [run.id for run in runs if run.status != "in_progress"]
        histories = {id: await store.history(id) for id in ended}
        ids = sorted(collect_item_ids([entry for history in histories.values() for entry in history]))
        assert ids
        seen: dict[str, object] = {
            "runs": runs,
            "unfinished": await store.list_unfinished(),
            "logs": {run.id: await store.events(run.id) for run in runs},
            "histories": histories,
            "items": await store.items(ids),
            "documents": [
                await store.documents(kind, tenant=tenant, parent=parent)
                for tenant in ("", ODD)
                for kind, parent in (("top", ""), ("item", "a"))
            ],
            "audit": await store.audit(),
            "by call": await store.audit(call=ODD),
        }
        assert (await verify(store)).flaw is None
    return seen | await _look_beside(database, backend)


async def _look_beside(database: Location, backend: Embeddings) -> dict[str, object]:
    async with a_memory(database, **backend.options()) as memory:
        await memory.settle()
        before = len(backend.asked)
        recalled = [
            # In which order those that mean nothing come, is not said.
            sorted([(found.citation, found.text) for found in await memory.search(query, tenant=tenant, level="full")])
            for query in ("vehicle", "loaf", "rain")
            for tenant in ("", ODD)
        ]
        nearest = [(await memory.search(query, tenant=""))[0].citation for query in ("vehicle", "loaf")]
        asked = backend.asked[before:]
    assert all(len(texts) == 1 for texts in asked), "what was embedded already was embedded again"
    logs = DecisionLogs(beside(database, "decisions.db"), clock=START.timestamp)
    decisions = [text async for text in logs.export_logs()]
    await logs.close()
    tasks = choose_task_store(beside(database, "tasks.db").given)
    await tasks.open()
    listed = await tasks.list(OWNER)
    await tasks.close()
    return {"recalled": recalled, "nearest": nearest, "decisions": decisions, "tasks": listed}
