"""Policies and providers are other people's code. Whatever they do, one call or one turn fails, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import InvalidRequest
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, Reason, TextDelta, TurnEnded
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    OutputText,
    ToolDefinition,
    ToolKind,
    Unknown,
    user,
)  # fmt: skip
from mainspring.core.model_request import ModelRequest
from mainspring.core.redact import make_presentable, redact_text
from mainspring.core.run import Call, Run
from mainspring.core.spec import RunSpec, spec_for
from mainspring.engine import drive, guard
from mainspring.engine.engine import Engine
from mainspring.ports import Ask, CallContext, Deny, ModelInfo, ToolCall, ToolResult, Verdict
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore

WORK = ToolDefinition("work", kind="builtin")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Hands:
    kind: ToolKind = "builtin"

    def __init__(self, doing: Callable[[ToolCall], object] = lambda call: "done") -> None:
        self._doing = doing

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        result = self._doing(call)
        return result if isinstance(result, ToolResult) else ToolResult(call.id, result)  # type: ignore[arg-type]


class Policy:
    name = "foreign"

    def __init__(self, judging: Callable[[], Awaitable[object]]) -> None:
        self._judging = judging

    async def judge(self, call: Call, run: Run) -> Verdict:
        return await self._judging()  # type: ignore[return-value]


def order(id: str = "resp_1", **options: Any) -> RunSpec:
    return spec_for("responses", id=id, model="m", input=(user("Go."),), tools=(WORK,), **options)


async def cancelled_future() -> object:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def exits() -> object:
    raise SystemExit(1)


async def interrupts() -> object:
    raise KeyboardInterrupt


async def times_out() -> object:
    raise TimeoutError


async def unprintable() -> object:
    raise Unprintable


async def deaf() -> object:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if STOP.is_set():
                raise


STOP = asyncio.Event()


def answers(verdict: object) -> Callable[[], Awaitable[object]]:
    async def answer() -> object:
        return verdict

    return answer


@pytest.mark.parametrize(
    "judging",
    [
        cancelled_future, exits, interrupts, times_out, unprintable, answers(Deny(None)), answers(Ask(None)),  # type: ignore[arg-type]
        answers(Deny("x", stop="nonsense")), answers(None),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_a_policy_that_misbehaves_denies_and_harms_nobody_else(judging: Callable[[], Awaitable[object]]) -> None:
    store = MemoryStore()
    with Scripted(call("work"), say("Pity.", expect="The policy ")) as script:
        async with Engine(script, store, executors=[Hands()], policies=[Policy(judging)]) as engine:
            run = await (await engine.start(order())).wait()
            assert run.text == "Pity."
            assert not engine._live


class Provider:
    """A provider that does one foreign thing in its first turn and answers in the next."""

    name = "foreign"

    def __init__(self, doing: Callable[[], Awaitable[object]], before: Sequence[object] = ()) -> None:
        self._doing, self._before = doing, before
        self._turns = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self._turns += 1
        if self._turns > 1:
            message = Message("assistant", (OutputText("Here."),), id="msg_2")
            yield ItemStarted(message)
            yield ItemDone(message)
            yield TurnEnded()
            return
        for event in self._before:
            yield event  # type: ignore[misc]
        await self._doing()

    async def models(self) -> Sequence[ModelInfo]:
        return ()

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("doing", [cancelled_future, exits, interrupts, times_out, unprintable])
async def test_a_provider_that_misbehaves_fails_its_turn_and_harms_nobody_else(doing: Callable[[], Awaitable[object]]) -> None:
    async with Engine(Provider(doing), MemoryStore()) as engine:
        run = await (await engine.start(order())).wait()
        assert (run.status, run.reason) == ("failed", Reason.PROVIDER_ERROR)
        assert (await (await engine.start(order("resp_2"))).wait()).text == "Here."


class OwnProvider(Provider):
    """One that has promised to need no guard."""

    runs_in_place = True


@pytest.mark.parametrize("doing", [cancelled_future, times_out, unprintable])
async def test_a_provider_of_ours_that_fails_harms_nobody_else(doing: Callable[[], Awaitable[object]]) -> None:
    async with Engine(OwnProvider(doing), MemoryStore()) as engine:
        run = await (await engine.start(order())).wait()
        assert (run.status, run.reason) == ("failed", Reason.PROVIDER_ERROR)
        assert (await (await engine.start(order("resp_2"))).wait()).text == "Here."


@pytest.mark.parametrize("kind", [Provider, OwnProvider])
async def test_only_foreign_code_gets_a_task_of_its_own(kind: type[Provider]) -> None:
    tasks: list[object] = []

    async def look() -> None:
        tasks.append(asyncio.current_task())
        await handle.cancel()

    async with Engine(kind(look), MemoryStore()) as engine:
        handle = await engine.start(order())
        drivers = list(engine._drivers or ())
        await handle.wait()
    assert (tasks == drivers) is (kind is OwnProvider)


async def test_a_provider_of_ours_that_swallows_a_cancel_still_ends_with_its_turn() -> None:
    waits = asyncio.Event()

    async def swallow() -> None:
        waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    message = Message("assistant", (OutputText("Hi."),), id="msg_1")
    provider = OwnProvider(swallow, [ItemStarted(message), ItemDone(message)])
    async with Engine(provider, MemoryStore()) as engine:
        handle = await engine.start(order(retry_model_errors=True))
        await waits.wait()
        with anyio.fail_after(PATIENCE):
            assert (await handle.cancel()).status == "cancelled"


async def test_a_provider_of_ours_has_as_long_for_a_turn_as_the_order_says() -> None:
    async with Engine(OwnProvider(anyio.sleep_forever), MemoryStore()) as engine:
        with anyio.fail_after(PATIENCE):
            run = await (await engine.start(order(turn_seconds=0.01))).wait()
    assert run.error is not None
    assert run.error.code == "provider_unavailable"


@pytest.mark.parametrize(
    "events",
    [
        [TurnEnded("weird")],  # type: ignore[arg-type]
        [ItemStarted(FunctionCall("c", "f", 5, id="fc_1"))],  # type: ignore[arg-type]
        [ItemStarted(Unknown({"type": "x", "id": "x_1", "o": object()}))],
        [ItemStarted(Message("assistant", id=5))],  # type: ignore[arg-type]
        [ItemStarted(Message("assistant", id="m", status="weird"))],  # type: ignore[arg-type]
        [ItemStarted(Message("assistant", [OutputText("x")], id="m"))],  # type: ignore[arg-type]
        [ItemStarted(Message("assistant", (OutputText(7),), id="m"))],  # type: ignore[arg-type]
        [ItemStarted(Message("assistant", (OutputText("x", None),), id="m"))],  # type: ignore[arg-type]
        [ItemStarted(Message("assistant", (OutputText("\ud800"),), id="m"))],
        [ItemStarted(Message("assistant", id="msg_1")), TextDelta("msg_1", 5), ItemDone(Message("assistant", id="msg_1"))],  # type: ignore[arg-type]
    ],
)
async def test_what_could_not_be_read_back_never_enters_the_log(events: list[object], tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        async with Engine(Provider(answers(None), events), store) as engine:
            run = await (await engine.start(order())).wait()
        assert run.status == "failed"
        assert (await store.list()).runs[0].response is not None
        assert len(await store.events("resp_1")) == run.seq


@pytest.mark.parametrize("where", ["provider", "policy"])
async def test_foreign_code_that_ignores_its_cancellation_is_left_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.02)
    monkeypatch.setattr(drive, "GRACE", 0.02)
    STOP.clear()
    script = Scripted(call("work"))
    provider = Provider(deaf) if where == "provider" else script
    policies = [Policy(deaf)] if where == "policy" else []
    async with Engine(provider, MemoryStore(), executors=[Hands()], policies=policies) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if type(record.event).__name__ == ("TurnStarted" if where == "provider" else "TurnEnded"):
                break
        with anyio.fail_after(PATIENCE):
            assert (await handle.cancel()).status == "cancelled"
    STOP.set()
    for task in list(engine._guard._left_behind):
        task.cancel()
        await asyncio.wait([task])


async def test_a_provider_that_stalls_after_its_turn_does_not_hold_the_run_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "GRACE", 0.01)
    message = Message("assistant", (OutputText("Hi."),), id="msg_1")
    async with Engine(
        Provider(anyio.sleep_forever, [ItemStarted(message), ItemDone(message), TurnEnded()]), MemoryStore()
    ) as engine:
        with anyio.fail_after(PATIENCE):
            assert (await (await engine.start(order())).wait()).text == "Hi."


def parts(*made: object) -> Callable[[ToolCall], object]:
    return lambda call: ToolResult(call.id, tuple(made))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "doing",
    [
        parts(Unknown({"no": "type"})), parts(Unknown({"type": "input_text", "text": 5})), parts(InputText(5)),  # type: ignore[arg-type]
        parts(Unknown({"type": "x", "o": object()})), parts(InputImage("\ud800")), parts("text"),
        lambda call: ToolResult(call.id, "fine", is_error="yes"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_a_result_that_could_not_be_read_back_is_one_error_output(
    doing: Callable[[ToolCall], object], tmp_path: Path
) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        async with Engine(Scripted(call("work"), say("Ok.")), store, executors=[Hands(doing)]) as engine:
            run = await (await engine.start(order())).wait()
        assert run.text == "Ok."
        [output] = [item for item in run.output if isinstance(item, FunctionCallOutput)]
        assert output.is_error is True
        assert (await store.load("resp_1")).response is not None


async def test_an_unprintable_error_of_a_tool_is_one_error_output() -> None:
    def fails(call: ToolCall) -> object:
        raise Unprintable

    async with Engine(Scripted(call("work"), say("Ok.")), MemoryStore(), executors=[Hands(fails)]) as engine:
        run = await (await engine.start(order())).wait()
    assert run.text == "Ok."
    assert "Unprintable" in str(run.output[1])


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"a": 1}}, {"temperature": "hot"}, {"temperature": float("nan")}, {"max_seconds": float("nan")},
        {"max_turns": 2.5}, {"instructions": 7}, {"store": "yes"},
    ],
    ids=str,
)  # fmt: skip
async def test_an_option_of_the_wrong_type_is_refused_before_anything_happens(options: dict[str, Any]) -> None:
    store = MemoryStore()
    async with Engine(Scripted(), store) as engine:
        with pytest.raises(InvalidRequest, match=r"wrong value|above 0"):
            await engine.start(order(**options))
    assert (await store.list()).runs == ()


@pytest.mark.parametrize("piece", ["a.", "a-", "eyJ-", "sk-", "://", "password ", "KEY"])
def test_redacting_awkward_text_is_linear(piece: str) -> None:
    """With a quadratic pattern each of these would take hours."""
    assert isinstance(make_presentable(piece * 100_000, None), str)


@pytest.mark.parametrize(
    "text",
    [
        "see http://localhost:8080/docs and https://example.com:8443/a/b",
        "def f(token: Optional[str], password: SecretStr) -> None: ...",
        "unexpected token: identifier",
        "max_token = 123456789",
        "pk_columns_of_the_table_are_listed_below",
        "sk-learn-is-a-good-library-for-this",
        "the key=value pairs",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("DJANGO_SECRET_KEY=abcdefgh1", "abcdefgh1"),
        ("PGPASSWORD=opensesame", "opensesame"),
        ("MYSQL_PWD=opensesame", "opensesame"),
        ("mysql --password hunter22", "hunter22"),
        ('{"accessToken": "abc"}', "abc"),
        ('{"password": "correct horse battery"}', "horse"),
        ("https://abcdefghijklmnopqrstuv@github.com/x", "abcdefghijklmnopqrstuv"),
        ("Cookie: session=abc; theme=dark", "abc"),
        ("https://hooks.slack.com/services/T000/B000/XXXX", "XXXX"),
    ],
)
def test_what_is_a_secret_goes(text: str, secret: str) -> None:
    assert secret not in redact_text(text)
