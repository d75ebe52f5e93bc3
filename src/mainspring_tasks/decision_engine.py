"""`LLMAgentEngine`: a context in, a decision out, by way of a run of the one loop.

Theory of operation. A message is answered by a run with the `decision` preset, the five task tools and the policies of
`decision_rules`; `projection.project_decision` derives the decision from that run. A deletion pauses its run at an approval. The
thread of the conversation finds it when the next message comes: a yes continues the run, which deletes; a no or anything else
refuses the approval. A plain English yes or no needs no model; in other words and languages, its structured answer says which.

Every decision is in the log before anything is done about it, with the id of the run that will do it, and again when it is made.
If the log cannot be written, nothing is done. What one person says in one conversation is decided in order.

A process may end before its decisions do. The next agent on the same store and log ends their runs, without doing anything more,
and writes down what they did. No other engine takes them up: they belong to a tenant that is no key's, made of the caller's and
the person, and so does all that they leave in the store.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from logging import getLogger
from types import TracebackType
from typing import Final, Self

import msgspec
from anyio import CancelScope, Lock
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, MainspringError, ModelUnable, NotAdmitted, NotFound, ProviderError
from mainspring.core.events import ModelEvent, Recorded
from mainspring.core.ids import NewId, derive_id, random_id
from mainspring.core.items import ApprovalResponse, assistant, to_json, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run
from mainspring.core.spec import Caller, RunSpec, ToolChoice, spec_for
from mainspring.engine.approvals import EXPIRED, SPENT, continuing_id
from mainspring.parts import Application, Host
from mainspring.ports import OWNED
from mainspring.providers.wrapper import ProviderWrapper
from mainspring_tasks import words
from mainspring_tasks.answer_format import FORMAT
from mainspring_tasks.confirmation import (
    DecisionThread,
    PendingDeletion,
    Reply,
    Threads,
    is_clear,
    is_expired,
    is_same,
    parse_confirmation,
)
from mainspring_tasks.decision_log import DecisionLogs, Query
from mainspring_tasks.decision_rules import ASKED, RULES, SEEN, UNDOES
from mainspring_tasks.decision_settings import load_constitution
from mainspring_tasks.decision_types import (
    ALLOWED_TOOLS,
    MAX_HISTORY_MESSAGES,
    MAX_MESSAGE_LENGTH,
    MAX_TOOL_ITERATIONS,
    PENDING_LIFETIME,
    AgentDecision,
    DecisionContext,
    DecisionType,
    IntentType,
    Outcome,
    UserIntent,
)
from mainspring_tasks.log_entries import DecisionLog, complete_entry, make_invocations
from mainspring_tasks.ports import TaskServer
from mainspring_tasks.projection import project_decision, salvage_run
from mainspring_tasks.reports import DecisionReport, make_broken, make_cancelled, make_refused, make_unable, report_undo
from mainspring_tasks.speech import ReplyListener, Speech
from mainspring_tasks.task_references import Seen
from mainspring_tasks.task_tools import TOOLS, Change, TaskTools, UserTurn
from mainspring_tasks.undo import is_undo, make_undo_call, may_undo

logger = getLogger(__name__)

DECISION: Final = "decision_id"
SECONDS: Final = 30.0
# A decision without a run may be about to begin one elsewhere. After that long, it is not.
SETTLE_SECONDS: Final = 60.0
# A list of tasks that is cut in the middle could not be read; `tasks` sees to it that it is not too long.
OUTPUT_CHARS: Final = 200_000


class RecordedDecision(Struct, frozen=True):
    """A decision in the log: its id, its report, and the run behind it, if there was one."""

    id: str
    report: DecisionReport
    run_id: str = ""

    @property
    def decision(self) -> AgentDecision:
        return self.report.decision


class _DecisionOrder(Struct, frozen=True):
    """A context, who sent it and the ids to use. `run_id` is for a new run; a confirmed deletion continues its own."""

    id: str
    run_id: str
    context: DecisionContext
    tenant: str
    listener: ReplyListener | None = None
    caller: Caller | None = None

    @property
    def owner(self) -> str:
        return derive_owner(self.tenant, self.context.user_id)


class _DecisionResult(Struct, frozen=True):
    report: DecisionReport
    run_id: str = ""


class LLMAgentEngine:
    """Decides about messages. Use as `async with`, inside of the engine's; tasks and logs are closed by whoever opened them.

    `constitution` is the text of the instructions, by default our own. `history` is the number of earlier messages that the
    model sees, `model_seconds` the time limit of a turn, `confirm_seconds` how long a deletion waits for its confirmation.
    """

    def __init__(
        self,
        host: Host,
        tasks: TaskServer,
        logs: DecisionLogs,
        *,
        model: str = "",
        constitution: str | None = None,
        max_iterations: int = MAX_TOOL_ITERATIONS,
        history: int = MAX_HISTORY_MESSAGES,
        model_seconds: float = SECONDS,
        confirm_seconds: float = PENDING_LIFETIME.total_seconds(),
        clock: Callable[[], float] = time.time,
        new_id: NewId = random_id,
    ) -> None:
        self._tools = TaskTools(tasks)
        application = Application(executors=(self._tools,), policies=RULES, wrap=FailFastProvider, clock=clock)
        self._engine = host.open_application(application)
        self._threads, self._store = Threads(host.engine.store), host.engine.store
        self._logs = logs
        self._model = model or host.engine.model
        self._constitution = constitution if constitution is not None else load_constitution()
        self._iterations, self._history, self._confirm_seconds = max_iterations, history, confirm_seconds
        self._model_seconds = model_seconds
        self._clock, self._new_id = clock, new_id
        self._turns = _TurnLocks()

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        try:
            await self._settle()
        except MainspringError:
            logger.exception("what an earlier process left could not be settled")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._engine.__aexit__(kind, error, trace)

    async def check_model(self) -> None:
        """Raises `ModelUnable` if the model is known to be unable to decide."""
        await self._engine.preview(
            spec_for("decision", id=self._new_id("resp"), model=self._model, input=(user("Hello."),), tools=TOOLS)
        )

    async def process_message(self, context: DecisionContext, *, tenant: str = "") -> AgentDecision:
        """Decides about a message. Never raises: an error is logged, and the decision is to say so."""
        try:
            return (await self.decide(context, tenant=tenant)).decision
        except Exception:
            logger.exception("the message of %s in %s was not decided", context.user_id, context.conversation_id)
            return make_broken().decision

    async def decide(
        self,
        context: DecisionContext,
        *,
        tenant: str = "",
        caller: Caller | None = None,
        listener: ReplyListener | None = None,
        key: str = "",
    ) -> RecordedDecision:
        """Like `process_message`, with the report behind the decision. Finishes even if the caller is cancelled."""
        async with self.turn(context.user_id, context.conversation_id, tenant=tenant, caller=caller) as turn:
            return await turn.decide(context, listener=listener, key=key)

    async def recall(self, key: str) -> RecordedDecision | None:
        """The decision that was made with this key, also by a process that died; None if that cannot be told, or another process
        is still at it. Raises `NotFound` if none was begun."""
        row = (await self._logs.get_decision_trace(derive_id("dec", key))).decision
        done = await self._read_ended(row.run_id)
        return None if done is None else RecordedDecision(row.decision_id, done.report, done.run_id)

    @asynccontextmanager
    async def turn(
        self, user_id: str, conversation_id: str, *, tenant: str = "", caller: Caller | None = None
    ) -> AsyncIterator["ConversationTurn"]:
        """Locks a user's conversation: nothing else is decided in it meanwhile. `caller` is who calls for the user."""
        async with self._turns.of((tenant, user_id, conversation_id)):
            yield ConversationTurn(self._make, self._new_id, tenant, caller)

    async def waiting(self, user_id: str, conversation_id: str, *, tenant: str = "") -> PendingDeletion | None:
        """The deletion that waits for confirmation in a conversation, None if there is none; it may have expired."""
        return (await self._threads.load(derive_owner(tenant, user_id), user_id, conversation_id)).waiting

    async def _settle(self) -> None:
        """Ends the runs of processes that have died, and records the outcomes of their decisions."""
        for run_id in await self._store.list_unfinished():
            if not await self._engine.is_driven(run_id):
                await self._engine.cancel(run_id)
        for row in await self._logs.open_decisions():
            is_young = self._clock() - row.created_at.timestamp() < SETTLE_SECONDS
            if (done := await self._read_ended(row.run_id)) is not None or not is_young:
                done = done or _DecisionResult(make_broken())
                if not await self._is_overtaken(row):
                    await self._keep_thread(row, done, is_told=False)
                await self._logs.finish(
                    complete_entry(row, done.report, done.run_id, None), make_invocations(row.decision_id, done.report.calls)
                )

    async def _is_overtaken(self, row: DecisionLog) -> bool:
        """Whether a later decision of the conversation is made, so that its thread is past this one."""
        later = Query(row.conversation_id, row.user_id, row.tenant, since=row.created_at)
        return any(other.id > row.id and other.outcome_category for other in await self._logs.query_decisions(later))

    async def _keep_thread(self, row: DecisionLog, done: _DecisionResult, *, is_told: bool) -> None:
        """Updates the thread by what a run did before its decision failed. A question that nobody was told waits for no yes."""
        if not done.run_id:
            return
        owner = derive_owner(row.tenant, row.user_id)
        thread = await self._threads.load(owner, row.user_id, row.conversation_id)
        after = _update_thread(thread, done)
        if thread.waiting is not None and thread.waiting != after.waiting:
            await self._threads.refuse(thread.waiting, owner, row.user_id, self._clock())
        if not is_told and thread.waiting != after.waiting:
            after = replace(after, waiting=None)
        if after != thread:
            await self._threads.save(owner, row.user_id, row.conversation_id, after)

    async def _read_ended(
        self, run_id: str, read: Callable[[Run, Sequence[Recorded]], DecisionReport] = project_decision
    ) -> _DecisionResult | None:
        """The result of a run that is not driven any more; None if it never started, or another process drives it."""
        try:
            await self._store.events(run_id)
        except NotFound:
            return None
        if not (run := (await self._engine.attach(run_id)).run).has_ended:
            if await self._engine.is_driven(run_id):
                return None
            run = await self._engine.cancel(run_id)
        return _DecisionResult(read(run, await self._store.events(run_id)), run_id)

    async def _make(self, order: _DecisionOrder) -> RecordedDecision:
        """Decides, and records the decision. An error of the store or the engine becomes a decision to say so.

        Raises `ModelUnable`."""
        began = self._clock()
        row = _row(order, began)
        try:
            await self._logs.write_decision_log(row)
            done: _DecisionResult | None = await self._decide(order)
        except ModelUnable as error:
            # Whoever asked chooses the model, or knows who does.
            await self._finish(row, _DecisionResult(make_unable(error.message)), began)
            raise
        except MainspringError:
            logger.exception("decision %s failed", order.id)
            # What was done before it failed is in the log of the run. Where that cannot be read now, a later process will.
            done = await self._recover(order, row)
        except Exception:
            # A defect of ours is for whoever asked to hear of; what the run did is on record all the same.
            await self._finish(row, await self._salvage(order, salvage_run), began)
            raise
        await self._finish(row, done, began)
        return RecordedDecision(order.id, make_broken()) if done is None else RecordedDecision(order.id, done.report, done.run_id)

    async def _finish(self, row: DecisionLog, done: _DecisionResult | None, began: float) -> None:
        if done is None:
            return
        entry = complete_entry(row, done.report, done.run_id, (self._clock() - began) * 1000)
        try:
            await self._logs.finish(entry, make_invocations(row.decision_id, done.report.calls))
        except MainspringError:
            logger.exception("decision %s could not be recorded", row.decision_id)

    async def _recover(self, order: _DecisionOrder, row: DecisionLog) -> _DecisionResult | None:
        """What the run of a failed decision has done, on its thread too; None if that cannot be read or written now."""
        if (done := await self._salvage(order, project_decision)) is None:
            return None
        try:
            await self._keep_thread(row, done, is_told=True)
        except MainspringError:
            logger.exception("the thread of decision %s could not be written", order.id)
            return None
        return done

    async def _salvage(
        self, order: _DecisionOrder, read: Callable[[Run, Sequence[Recorded]], DecisionReport]
    ) -> _DecisionResult | None:
        """What the run of a failed decision has done; None if that cannot be read now."""
        try:
            row = (await self._logs.get_decision_trace(order.id)).decision
            return await self._read_ended(row.run_id, read) or _DecisionResult(make_broken())
        except MainspringError:
            logger.exception("what decision %s did could not be read", order.id)
            return None

    async def _decide(self, order: _DecisionOrder) -> _DecisionResult:
        context = order.context
        place = (order.owner, context.user_id, context.conversation_id)
        thread = await self._threads.load(*place)
        done = await self._answer_pending(order, thread)
        if done is None:
            done = await (self._undo if is_undo(context.message) else self._ask_model)(order, thread)
        if (after := _update_thread(thread, done)) != thread:
            await self._threads.save(*place, after)
        return done

    async def _answer_pending(self, order: _DecisionOrder, thread: DecisionThread) -> _DecisionResult | None:
        """Handles a plain English yes or no to the pending deletion; None for any other message, which the model reads."""
        message, waiting = order.context.message, thread.waiting
        said = parse_confirmation(message, "" if waiting is None else waiting.action.task_description)
        if said is None and is_undo(message) and _find_meant(order, thread) is not None:
            said = "no"
        if waiting is not None and _find_meant(order, thread) is None:
            await self._refuse(order, waiting)
        if order.context.pending_confirmation is None or said is None:
            return None
        return await self._confirm(order, thread, said)

    async def _confirm(self, order: _DecisionOrder, thread: DecisionThread, said: Reply) -> _DecisionResult:
        """Carries out a yes or a no to the pending deletion, if it is the one that is meant, and in time."""
        waiting, intent = _find_meant(order, thread), UserIntent(IntentType(f"CONFIRM_{said.upper()}"))
        if waiting is None:
            return _DecisionResult(make_cancelled(words.NOTHING_PENDING, Outcome.MISSING_CONTEXT, intent))
        if said == "yes" and not is_expired(waiting.action, self._clock()):
            return await self._delete_confirmed(order, waiting, intent)
        await self._refuse(order, waiting)
        if is_expired(waiting.action, self._clock()):
            return _DecisionResult(make_cancelled(_format_task(words.EXPIRED, waiting), Outcome.MISSING_CONTEXT, intent))
        return _DecisionResult(make_cancelled(_format_task(words.KEPT, waiting), Outcome.RESPONSE_GIVEN, intent))

    async def _refuse(self, order: _DecisionOrder, waiting: PendingDeletion) -> None:
        await self._threads.refuse(waiting, order.owner, order.context.user_id, self._clock())

    async def _ask_model(self, order: _DecisionOrder, thread: DecisionThread) -> _DecisionResult:
        """Has the model read the message. If it is a yes, a no or an undo, in whatever language, that is carried out; anything
        else withdraws a pending question."""
        done = await self._run(self._spec(order, thread), order)
        said, waiting = done.report.said, _find_meant(order, thread)
        if waiting is not None and said in ("yes", "no"):
            if said == "no" or is_clear(order.context.message):
                return await self._confirm(order, thread, said)
            await self._refuse(order, waiting)
            return _DecisionResult(make_cancelled(_format_task(words.UNSURE, waiting), Outcome.MISSING_CONTEXT, None))
        if waiting is not None:
            await self._refuse(order, waiting)
        is_undone = said == "undo" and waiting is None and may_undo(order.context.message)
        return await self._undo(order, thread) if is_undone else done

    async def _undo(self, order: _DecisionOrder, thread: DecisionThread) -> _DecisionResult:
        """Takes the last changes of this conversation back, the latest first. Each is taken back once, whoever asks again."""
        reports: list[tuple[Change, DecisionReport]] = []
        run_id = ""
        for number, change in reversed([*enumerate(thread.changes)]):
            run_id = derive_id("resp", f"{thread.changed_by}_undo{number}")
            await self._logs.assign(order.id, run_id)
            done = await self._read_ended(run_id)
            if done is None:
                done = await self._run(
                    self._undo_spec(order, run_id, change), order, UserTurn(order.context.message, undoes=change)
                )
            reports.append((change, done.report))
        return _DecisionResult(report_undo(reports), run_id)

    def _undo_spec(self, order: _DecisionOrder, run_id: str, change: Change) -> RunSpec:
        return spec_for(
            "decision",
            id=run_id,
            model=self._model,
            input=(user(order.context.message, id=self._new_id("msg")),),
            tools=TOOLS,
            dictated=make_undo_call(change),
            metadata={DECISION: order.id, UNDOES: change.task.id},
            tenant=order.owner,
            caller=order.caller or Caller(order.context.user_id),
            scope=order.context.user_id,
        )

    async def _delete_confirmed(self, order: _DecisionOrder, waiting: PendingDeletion, intent: UserIntent) -> _DecisionResult:
        """Continues the run that asked, which deletes the task if it is unchanged."""
        paused = (await self._engine.attach(waiting.run)).run.spec
        spec = replace(
            paused,
            id=continuing_id(paused.id),
            parent=paused.id,
            input=(ApprovalResponse(waiting.approval, approve=True),),
            caller=order.caller or paused.caller,
            limits=replace(paused.limits, max_turns=1),
            metadata={**paused.metadata, DECISION: order.id},
        )
        await self._logs.assign(order.id, spec.id)
        try:
            agreed = UserTurn(order.context.message, agreed=waiting.action.task_description)
            return await self._run(spec, order, agreed)
        except InvalidRequest as error:
            if error.code not in (EXPIRED, SPENT):
                raise
            text = _format_task(words.EXPIRED, waiting) if error.code == EXPIRED else words.NOTHING_PENDING
            return _DecisionResult(make_cancelled(text, Outcome.MISSING_CONTEXT, intent))

    async def _run(self, spec: RunSpec, order: _DecisionOrder, said: UserTurn | None = None) -> _DecisionResult:
        self._tools.bind(spec.id, said or UserTurn(order.context.message, _read_seen(spec)))
        try:
            handle = await self._engine.start(spec)
            records = []
            # What comes of a yes or an undo is ours to say.
            speech = Speech(order.listener) if order.listener is not None and said is None else None
            async for record in handle.events():
                records.append(record)
                if speech is not None:
                    speech.add(record.event, handle.run)
            return _DecisionResult(project_decision(handle.run, records), spec.id)
        except NotAdmitted as error:
            return _DecisionResult(make_refused(str(error)))
        finally:
            self._tools.unbind(spec.id)

    def _spec(self, order: _DecisionOrder, thread: DecisionThread) -> RunSpec:
        context = order.context
        earlier = context.message_history[max(len(context.message_history) - self._history, 0) :]
        said = [(user if message.role == "user" else assistant)(message.content, id=self._new_id("msg")) for message in earlier]
        if not said and (waiting := _find_meant(order, thread)) is not None:
            said = [assistant(_format_task(words.CONFIRM, waiting), id=self._new_id("msg"))]
        metadata = {DECISION: order.id, SEEN: to_json(thread.seen)}
        return spec_for(
            "decision",
            id=order.run_id,
            model=self._model,
            input=(*said, user(context.message, id=self._new_id("msg"))),
            instructions=self._constitution,
            tools=TOOLS,
            tool_choice=ToolChoice(allowed=tuple(sorted(ALLOWED_TOOLS))),
            text=FORMAT,
            parallel_tool_calls=False,
            max_turns=self._iterations,
            turn_seconds=self._model_seconds,
            # Only what took too long: `FailFastProvider` sees to the rest.
            retry_model_errors=True,
            max_retries=1,
            approval_seconds=self._confirm_seconds,
            tool_output_chars=OUTPUT_CHARS,
            context_tokens=self._engine.context_tokens,
            metadata=metadata | ({ASKED: "yes"} if thread.is_asked else {}),
            # Whoever reads the run by the Responses API is not told the instructions.
            echo={"instructions": None},
            tenant=order.owner,
            caller=order.caller or Caller(context.user_id),
            scope=context.user_id,
        )


class FailFastProvider(ProviderWrapper):
    """Asks the provider behind it without waiting for a rate limit to pass, and marks its errors as final: a person is waiting.

    Only a turn that times out is retried, by the loop: it raises nothing.
    """

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async with aclosing(self._provider.stream(replace(request, is_patient=False))) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            error.retryable = False
            raise


class ConversationTurn:
    """Decides messages of one conversation, one after the other, while its lock is held."""

    def __init__(
        self,
        made: Callable[[_DecisionOrder], Awaitable[RecordedDecision]],
        new_id: NewId,
        tenant: str,
        caller: Caller | None = None,
    ) -> None:
        self._made, self._new_id, self._tenant, self._caller = made, new_id, tenant, caller

    async def decide(self, context: DecisionContext, *, listener: ReplyListener | None = None, key: str = "") -> RecordedDecision:
        """Decides a message. With a `key`, `recall` finds the decision again."""
        id = derive_id("dec", key) if key else self._new_id("dec")
        order = _DecisionOrder(id, self._new_id("resp"), context, self._tenant, listener, self._caller)
        with CancelScope(shield=True):
            return await self._made(order)
        raise AssertionError("a shielded scope is not cancelled")


class _TurnLocks:
    """A lock for each key, removed when nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, ...], Lock] = {}
        self._users: dict[tuple[str, ...], int] = {}

    @asynccontextmanager
    async def of(self, key: tuple[str, ...]) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


def derive_owner(tenant: str, user_id: str) -> str:
    """The tenant of a user's runs, threads and conversations. No API key has it, so no other endpoint reaches them."""
    return f"{tenant}{OWNED}{user_id}"


def _row(order: _DecisionOrder, at: float) -> DecisionLog:
    context = order.context
    return DecisionLog(
        decision_id=order.id,
        conversation_id=context.conversation_id,
        user_id=context.user_id,
        message=context.message[:MAX_MESSAGE_LENGTH],
        run_id=order.run_id,
        created_at=datetime.fromtimestamp(at, UTC),
        tenant=order.tenant,
    )


def _update_thread(thread: DecisionThread, done: _DecisionResult) -> DecisionThread:
    """The thread after a decision."""
    decided, waiting = done.report, None
    if decided.approval is not None and decided.decision.pending_action is not None:
        waiting = PendingDeletion(decided.decision.pending_action, decided.approval, done.run_id)
    shown = thread.seen.shown if decided.shown is None else decided.shown
    seen = Seen(shown, decided.recent or thread.seen.recent)
    is_asked = decided.decision.decision_type is DecisionType.ASK_CLARIFICATION
    if decided.changes is None:
        return DecisionThread(waiting, seen, is_asked, thread.changes, thread.changed_by)
    return DecisionThread(waiting, seen, is_asked, decided.changes, done.run_id)


def _find_meant(order: _DecisionOrder, thread: DecisionThread) -> PendingDeletion | None:
    """The pending deletion, if the client speaks of the same."""
    given, waiting = order.context.pending_confirmation, thread.waiting
    return waiting if given is not None and waiting is not None and is_same(given, waiting) else None


def _format_task(text: str, waiting: PendingDeletion) -> str:
    return text.format(task=waiting.action.task_description)


def _read_seen(spec: RunSpec) -> Seen:
    return msgspec.json.decode(spec.metadata[SEEN], type=Seen)
