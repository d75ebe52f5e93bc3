"""Whatever a tool does, its call gets exactly one output, and nobody else is harmed."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.kit.engine import Perform, RecordingExecutor, make_engine, make_order
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine as PublicEngine
from mainspring.core.conversation_items import CONVERSATION
from mainspring.core.errors import DelegateToClient
from mainspring.core.events import CallJudged, Event, ToolEnded, ToolProgress, ToolStarted
from mainspring.core.items import FunctionCallOutput, InputImage, InputText, ToolDefinition
from mainspring.core.redact import REDACTED, make_presentable, redact_text, shorten
from mainspring.core.run import Run
from mainspring.core.spec import Conversation, RunSpec
from mainspring.engine import guard
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import CallContext, Document, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.storage.memory_runs import MemoryStore


def order(**options: Any) -> RunSpec:
    return make_order(**{"tools": (ToolDefinition("work", kind="builtin"),), **options})


async def played(script: Scripted, doing: Perform, **options: object) -> tuple[Run, list[Event]]:
    async with make_engine(script, executor=RecordingExecutor(doing)) as engine:
        handle = await engine.start(order(**options))
        with anyio.fail_after(PATIENCE):
            log = [record.event async for record in handle.events()]
        return await handle.wait(), log


async def output_of(doing: Perform, **options: object) -> FunctionCallOutput:
    run, _ = await played(Scripted(call("work"), say("Ok.")), doing, **options)
    assert run.text == "Ok.", "the model goes on after any tool"
    [output] = [item for item in run.output if isinstance(item, FunctionCallOutput)]
    return output


async def raises(call: ToolCall, context: CallContext) -> ToolResult:
    raise ValueError("no such file")


async def exits(call: ToolCall, context: CallContext) -> ToolResult:
    raise SystemExit(3)


async def interrupts(call: ToolCall, context: CallContext) -> ToolResult:
    raise KeyboardInterrupt


async def cancels_itself(call: ToolCall, context: CallContext) -> ToolResult:
    raise asyncio.CancelledError


async def leaves(call: ToolCall, context: CallContext) -> ToolResult:
    raise GeneratorExit


async def returns_text(call: ToolCall, context: CallContext) -> ToolResult:
    return "just text"  # type: ignore[return-value]


async def answers_another(call: ToolCall, context: CallContext) -> ToolResult:
    return ToolResult("call_other", "hello")


async def returns_bytes(call: ToolCall, context: CallContext) -> ToolResult:
    return ToolResult(call.id, b"\x00")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("doing", "told"),
    [
        (raises, "The tool `work` failed: ValueError: no such file"),
        (exits, "The tool `work` failed: SystemExit: 3"),
        (interrupts, "The tool `work` failed: KeyboardInterrupt"),
        (cancels_itself, "The tool `work` failed: CancelledError"),
        (leaves, "The tool `work` failed: GeneratorExit"),
        (returns_text, "The tool `work` returned str instead of a result"),
        (answers_another, "The tool `work` returned ToolResult instead of a result"),
        (returns_bytes, "The tool `work` returned ToolResult instead of a result"),
    ],
)
async def test_whatever_goes_wrong_in_a_tool_becomes_one_error_output(doing: Perform, told: str) -> None:
    output = await output_of(doing)
    assert (output.output, output.is_error) == (told, True)


@pytest.mark.requirement("A38", "C44")
async def test_a_tool_that_takes_too_long_is_really_stopped() -> None:
    stopped = asyncio.Event()

    async def dawdles(call: ToolCall, context: CallContext) -> ToolResult:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ToolResult(call.id, "never")

    output = await output_of(dawdles, tool_seconds=0.02)
    assert output.output == "The tool `work` was stopped: it took longer than 0.02 s."
    assert stopped.is_set()


@pytest.mark.requirement("D64")
@pytest.mark.parametrize(("own", "runs"), [(0.01, 50.0), (50.0, 0.01)])
async def test_the_smaller_of_the_tools_timeout_and_the_runs_wins(own: float, runs: float) -> None:
    async def dawdles(call: ToolCall, context: CallContext) -> ToolResult:
        await anyio.sleep_forever()
        return ToolResult(call.id, "never")

    tool = ToolDefinition("work", kind="builtin", timeout=own)
    assert "longer than 0.01 s" in str((await output_of(dawdles, tools=(tool,), tool_seconds=runs)).output)


async def test_a_tool_that_ignores_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.02)
    release = asyncio.Event()

    async def deaf(call: ToolCall, context: CallContext) -> ToolResult:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return ToolResult(call.id, "late")

    output = await output_of(deaf, tool_seconds=0.01)
    release.set()
    assert "took longer than 0.01 s. It was told to stop and has not" in str(output.output)


@pytest.mark.requirement("M3")
async def test_a_cancelled_call_of_a_function_that_cannot_be_stopped_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.02)
    begun, release = threading.Event(), threading.Event()

    def work() -> str:
        """Takes its time."""
        begun.set()
        release.wait(PATIENCE)
        return "done"

    async with PublicEngine(Scripted(call("work")), tools=[work]) as engine:
        handle = await engine.start(engine.order("Go."))
        await anyio.to_thread.run_sync(begun.wait, PATIENCE)
        run = await handle.cancel()
        release.set()
    assert run.status == "cancelled"
    [output] = [item for item in run.output if isinstance(item, FunctionCallOutput)]
    assert "may go on and have its effect yet" in str(output.output)
    [told] = [record.event for record in handle.log if isinstance(record.event, ToolEnded)]
    assert told.outcome == "interrupted"


async def test_cancelling_a_run_stops_its_tools_and_says_their_outcome_is_unknown() -> None:
    stopped, begun = asyncio.Event(), asyncio.Event()

    async def dawdles(call: ToolCall, context: CallContext) -> ToolResult:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ToolResult(call.id, "never")

    hands = RecordingExecutor(dawdles)
    async with Engine(
        Scripted(call("work")), MemoryStore(), executors=[hands], policies=order_policies(fill_standard_slots([hands]))
    ) as engine:
        handle = await engine.start(order())
        await begun.wait()
        run = await handle.cancel()
    assert stopped.is_set()
    assert run.status == "cancelled"
    [output] = [item for item in run.output if isinstance(item, FunctionCallOutput)]
    assert "outcome is unknown" in str(output.output)


async def test_the_deadline_of_a_run_stops_its_tools() -> None:
    stopped = asyncio.Event()

    async def dawdles(call: ToolCall, context: CallContext) -> ToolResult:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ToolResult(call.id, "never")

    run, _ = await played(Scripted(call("work")), dawdles, max_seconds=0.5)
    assert (run.status, run.reason) == ("incomplete", "deadline")
    assert stopped.is_set()


@pytest.mark.requirement("A12")
async def test_the_tools_of_a_turn_run_at_once_and_their_outputs_stand_in_call_order() -> None:
    second_is_running, first_may_end = asyncio.Event(), asyncio.Event()

    async def meet(call: ToolCall, context: CallContext) -> ToolResult:
        if call.parsed["n"] == 1:
            await second_is_running.wait()
            await first_may_end.wait()
        else:
            second_is_running.set()
        return ToolResult(call.id, f"result {call.parsed['n']}")

    script = Scripted(calls(call("work", n=1), call("work", n=2)), say("Ok."))
    hands = RecordingExecutor(meet)
    async with make_engine(script, executor=hands) as engine:
        handle = await engine.start(order())
        ended = []
        async for record in handle.events():
            if isinstance(record.event, ToolEnded):
                ended.append(record.event.output)
                first_may_end.set()
        run = await handle.wait()
    assert ended == ["result 2", "result 1"], "each end is recorded as it comes"
    assert [item.output for item in run.output if isinstance(item, FunctionCallOutput)] == ["result 1", "result 2"]
    assert [item.output for item in script.requests[1].items if isinstance(item, FunctionCallOutput)] == ["result 1", "result 2"]


@pytest.mark.parametrize(
    "options", [{"parallel_tool_calls": False}, {"concurrency": 1}, {"concurrency": 2}, {"concurrency": None}], ids=str
)
async def test_no_more_tools_run_at_once_than_allowed(options: dict[str, object]) -> None:
    running, most = 0, 0

    async def counts(call: ToolCall, context: CallContext) -> ToolResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return ToolResult(call.id, "ok")

    _, log = await played(Scripted(calls(*[call("work", n=n) for n in range(4)]), say("Ok.")), counts, **options)
    assert most == (4 if options.get("concurrency", 1) is None else options.get("concurrency", 1))
    assert sum(isinstance(event, ToolStarted) for event in log) == 4


async def test_progress_is_shown_while_the_tool_works_from_any_thread_and_never_after() -> None:
    kept: list[Callable[[str], None]] = []

    async def tells(call: ToolCall, context: CallContext) -> ToolResult:
        kept.append(context.progress)
        context.progress("half way")
        await asyncio.to_thread(context.progress, "nearly")
        await asyncio.sleep(0)
        return ToolResult(call.id, f"done in {threading.current_thread().name}")

    run, log = await played(Scripted(call("work"), say("Ok.")), tells)
    kept[0]("too late")
    await asyncio.sleep(0)
    assert [event.text for event in log if isinstance(event, ToolProgress)] == ["half way", "nearly"]
    assert run.status == "completed"


async def test_a_tool_is_told_whose_run_it_is_and_what_the_runs_of_a_conversation_share() -> None:
    told: list[tuple[str, str, str]] = []

    async def asks(call: ToolCall, context: CallContext) -> ToolResult:
        told.append((context.run_id, context.tenant, context.scope))
        return ToolResult(call.id, "ok")

    hands, store = RecordingExecutor(asks), MemoryStore()
    await store.put([Document(CONVERSATION, "conv_1", b"{}", tenant="acme")])
    script = Scripted(call("work"), say("One."), call("work"), say("Two."))
    async with make_engine(script, store, hands) as engine:
        await (await engine.start(order(tenant="acme", conversation=Conversation("conv_1")))).wait()
        await (await engine.start(replace(order(tenant="acme"), id="resp_2"))).wait()
    assert told == [("resp_1", "acme", "conv_1"), ("resp_2", "acme", "resp_2")]


@pytest.mark.requirement("S3")
async def test_an_executor_may_hand_its_call_to_the_client_while_running() -> None:
    async def declines(call: ToolCall, context: CallContext) -> ToolResult:
        raise DelegateToClient("only the client has the key")

    run, log = await played(Scripted(call("work")), declines)
    assert (run.status, run.reason) == ("requires_action", "client_action")
    [_, handed] = [event for event in log if isinstance(event, CallJudged)]
    assert (handed.verdict, handed.policy, handed.reason) == ("client", "executor", "only the client has the key")


async def test_long_outputs_keep_head_and_tail_and_secrets_are_redacted() -> None:
    async def tells_all(call: ToolCall, context: CallContext) -> ToolResult:
        return ToolResult(call.id, "API_KEY=sk-abcdefghijklmnopqrstuvwx " + "x" * 500 + " the end")

    text = str((await output_of(tells_all, tool_output_chars=100)).output)
    assert text.startswith(f"API_KEY={REDACTED} xxx")
    assert text.endswith(" the end")
    assert "characters left out" in text
    assert "sk-abc" not in text


def test_shortening_keeps_as_many_characters_as_allowed() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abc", None) == "abc"
    assert shorten("abcdefghij", 5) == "abc\n[... 5 characters left out ...]\nij"
    assert shorten("abcdefghij", 1) == "a\n[... 9 characters left out ...]\n"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("export OPENAI_API_KEY=sk-proj-abcdefghijklmnopqrstuv", "sk-proj-abcdefghijklmnopqrstuv"),
        ("key sk-" + "ant-api03-" + "a1" * 20, "a1a1a1a1"),
        ("token ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("AKIAIOSFODNN7EXAMPLE is the id", "AKIAIOSFODNN7EXAMPLE"),
        ("AIza" + "SyA1234567890abcdefghijklmnopqrstuv", "SyA1234567890abcdefghijklmnopqrstuv"),
        ("xoxb-123456789012-abcdefghijkl", "xoxb-123456789012-abcdefghijkl"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ('{"password": "hunter22"}', "hunter22"),
        ("postgres://admin:s3cr3t@db/prod", "s3cr3t"),
        ("db_password = 'correct horse'", "correct"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("client_secret: abcdef123456", "abcdef123456"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ],
)
def test_secrets_do_not_reach_the_model(text: str, secret: str) -> None:
    shown = redact_text(text)
    assert secret not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "text",
    [
        "The password must be 8 characters long.",
        "token budget: 4096 tokens used",
        "see https://example.com/a:b and mailto:a@b.c",
        "total_tokens: 12, max_tokens: 5",
        "sk-short",
        "secret = [1, 2]",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_text_that_is_no_unicode_is_made_so() -> None:
    assert make_presentable("a\udcff b \ud83d\ude00", None) == "a\ufffd b \U0001f600"


def test_parts_are_redacted_and_shortened_one_by_one() -> None:
    image = InputImage(image_url="data:image/png;base64,AAAA")
    shown = make_presentable((InputText("password=hunter22 " + "y" * 50), image), 40)
    assert isinstance(shown, tuple)
    assert REDACTED in str(shown[0])
    assert "left out" in str(shown[0])
    assert shown[1] == image
    assert replace(image) == image
