"""Every extension point on one page. Adapters implement these; the engine knows nothing else about them."""

from asyncio import Future
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from mainspring.core.errors import MainspringError, Malformed
from mainspring.core.events import Event, ModelEvent, Reason, Recorded, RunEnded, RunStarted, Status, Used
from mainspring.core.history import Entry
from mainspring.core.ids import NewId
from mainspring.core.items import ApprovalResponse, FunctionCall, Item, Json, Part, ToolDefinition, ToolKind
from mainspring.core.model_request import ModelRequest
from mainspring.core.response import Response
from mainspring.core.run import Call, Run
from mainspring.core.sandbox import (
    DEFAULT_SPEC,
    Language,
    OutputChunk,
    ProgramExit,
    ProgramResult,
    SandboxHealth,
    SandboxSpec,
    WorkspaceFile,
    WorkspaceListing,
)
from mainspring.core.spec import Charter, Conversation, RunSpec


class ModelInfo(Struct, frozen=True):
    id: str
    owned_by: str = ""
    created: int = 0


class Provider(Protocol):
    """A model backend. `stream` is the only way to ask it; whoever wants the whole answer drains it.

    The stream yields `ItemStarted`, deltas and `ItemDone` for each item and ends with exactly one `TurnEnded`. It raises only
    `ProviderError` children, and closing it early (cancel) frees the connection. What is sent into it, `core.model_stream` says;
    it may be ignored.
    """

    name: str

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, Any]: ...

    async def models(self) -> Sequence[ModelInfo]: ...

    async def close(self) -> None: ...


@runtime_checkable
class TokenCounter(Protocol):
    """What a `Provider` may be besides: one that knows how many tokens a request has. Without it, `core.tokens` estimates."""

    async def count_tokens(self, request: ModelRequest) -> int: ...


ModelFeature = Literal["logprobs", "audio_input", "penalties", "seed", "passthrough", "web_search"]
"""What only some adapters can bring to a backend and back: log probabilities of the text, `input_audio` parts, penalties for
tokens, texts that end an answer, a seed, and tools, items and parts of kinds that we do not know, passed on as they are. Where
the operator has named a service that searches the web, every model has `web_search`."""


@runtime_checkable
class FeatureReporter(Protocol):
    """What a `Provider` may be besides: one that has features that others lack. Ask with `providers.wrapper.find_features`."""

    def find_features(self, model: str) -> frozenset[ModelFeature]: ...


@runtime_checkable
class InPlace(Protocol):
    """What a `Provider` or an `OrderStep` may be besides: one that needs no guard, because it raises nothing but `Exception` and
    stops when it is cancelled. It then runs in the task of whoever asks, which is cheaper; others get a task of their own."""

    runs_in_place: bool


ProfileValue = bool | int | str
ProfileSource = Literal["shipped", "learned", "operator"]


class ProfileFact(Struct, frozen=True, omit_defaults=True):
    """What a field of a model's profile is, who says so, and why. `at` and `until` are seconds since 1970."""

    value: ProfileValue
    source: ProfileSource
    evidence: str = ""
    at: float | None = None
    until: float | None = None


class LearnedProfile(Struct, frozen=True):
    """What a backend has shown of one of its models. `server` is what it called itself then. Nothing that was said is in it."""

    backend: str
    model: str
    server: str
    facts: dict[str, ProfileFact]


class ProfileDocuments(Protocol):
    """Keeps what was learned of models. A failing store costs only what is kept: none of these raises."""

    @property
    def is_writing(self) -> bool:
        """Not all that was learned is written yet."""
        ...

    async def load(self) -> Sequence[LearnedProfile] | None:
        """What is kept; None if it cannot be read."""
        ...

    def save(self, learned: LearnedProfile) -> None:
        """Begins to write, and waits for nothing. One without facts is removed."""
        ...

    async def close(self) -> None:
        """Waits until all is written."""
        ...


class KnownProfile(Struct, frozen=True):
    """The profile in force of a model at a backend: every field, and why for those that are not neutral."""

    model: str
    backend: str
    server: str
    values: dict[str, ProfileValue | None]
    facts: dict[str, ProfileFact]
    provider: str = ""


@runtime_checkable
class ProfileKeeper(Protocol):
    """What a `Provider` may be besides: one that adapts to its models. A name may stand for several, which are told in order."""

    def keep_profiles(self, store: "DocumentStore") -> None:
        """Has what is learned kept there, and finds there what was learned before."""
        ...

    async def write_profiles(self) -> None:
        """Waits until all that was learned is written."""
        ...

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]: ...

    async def find_window(self, model: str) -> int | None:
        """How many tokens the model takes, if that is known; of several that may answer, the one that takes most."""
        ...

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        """Keeps what somebody else has found out of the model; nothing if the name stands for several."""
        ...

    async def forget_profiles(self, model: str) -> int:
        """Forgets what was learned. Returns of how many fields."""
        ...


class RecordedRequest(NamedTuple):
    """An HTTP request as a recording keeps it: no address, no header, no secret."""

    method: str
    path: str
    body: bytes | None


class HttpAnswer(Protocol):
    """An HTTP answer whose head is here. `read` returns what has arrived, waiting if need be, and nothing at the end."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    async def read(self) -> bytes: ...
    def close(self) -> None: ...


class RequestSigner(Protocol):
    """Authorizes each request to a backend whose credentials expire. `secrets` are those it uses now."""

    @property
    def secrets(self) -> Sequence[str]: ...

    async def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers that authorize the request. Raises a `ProviderError` if there are no credentials."""

    def renew(self, signed: Mapping[str, str], status: int, headers: Mapping[str, str]) -> bool:
        """Whether this answer to a request that was `signed` so says that its credentials have expired, and others can be had."""


class Tape(Protocol):
    """Stands between a provider and the network: `ask` asks the network, `secrets` must not be kept of its answer.

    It also makes the ids of the conversation, so that they are the same when it is played again. One that `needs_all` is of no
    use with a model that is asked without a network.
    """

    needs_all: bool

    async def answer(
        self, asked: RecordedRequest, ask: Callable[[], Awaitable[HttpAnswer]], secrets: Sequence[str]
    ) -> HttpAnswer: ...

    def new_id(self, prefix: str) -> str: ...


class ToolCall(Struct, frozen=True):
    """A call as an executor sees it: `arguments` is the JSON text the model wrote, `parsed` the object it stands for."""

    id: str
    name: str
    arguments: str
    parsed: Json = {}


class ToolResult(Struct, frozen=True):
    """What came of a call. `used` is what other runs have used on its behalf: it counts against the limits of the caller.

    `data` is the result as data, beside the text that the model reads, such as the exit code of a command. `is_late` says that
    the call failed because its time was up.
    """

    call_id: str
    output: str | tuple[Part, ...]
    is_error: bool = False
    used: Used | None = None
    data: Json | None = None
    is_late: bool = False


class Watcher(Protocol):
    """Is told every event in the moment it is recorded, with the run as it left it."""

    def reset(self) -> None:
        """The log begins anew: what was told so far is told again."""
        ...

    def add(self, record: Recorded, run: Run) -> None: ...


@runtime_checkable
class DeltaWatcher(Protocol):
    """What a `Watcher` may be besides: one that needs no run with most deltas, which is cheaper."""

    def add_delta(self, record: Recorded) -> bool:
        """Is told a delta that goes on with the event before. False if it wants the run as well: then `add` tells it."""
        ...


Retell = Callable[[Watcher], None]
"""Tells a watcher every event of a run so far."""


class RunHandle(Protocol):
    """A run as its readers see it, live or as the store has it."""

    @property
    def id(self) -> str: ...

    @property
    def run(self) -> Run: ...

    def batches(self, after: int = -1) -> AsyncIterator[list[Recorded]]: ...

    async def wait(self) -> Run: ...

    def request_cancel(self) -> None: ...


QuestionStand = Literal["open", "used_here", "used_elsewhere", "closed"]
"""Whether a person may still answer what a call has asked, or a run acts on the answer, in this process or in another one. What
is closed was withdrawn with its run, has expired, or was never asked."""


class Runs(Protocol):
    """The engine, as far as a tool that starts runs of its own needs it."""

    new_id: NewId

    async def start(self, spec: RunSpec) -> RunHandle: ...

    async def resume(self, run_id: str) -> RunHandle: ...

    async def attach(self, run_id: str) -> RunHandle: ...

    async def find_question(self, id: str, tenant: str) -> QuestionStand: ...


class CallContext(Struct, frozen=True):
    """What a tool may know of the run that calls it. `progress` shows a line of text while the tool works.

    `tenant` is whose run it is, `user` for whom of theirs. `scope` names what the runs of one conversation share, and is the
    run's own id outside of one. `runs` is the engine that performs the call. `call_id` names the call: by it, others can tell
    that they are asked twice.

    A call can be taken up where it was, after a crash, or when a person has answered what it asked by `AskPerson`: `kept` is what
    it has said last that it needs for that, and `answer` what the person said. `keep` says it, and waits until that is durable.
    `question` is the id that what it asks next will have.
    """

    run_id: str
    tool: ToolDefinition
    progress: Callable[[str], None]
    tenant: str = ""
    scope: str = ""
    runs: Runs | None = None
    call_id: str = ""
    user: str = ""
    keep: Callable[[str, Json], Awaitable[None]] | None = None
    kept: Json | None = None
    answer: ApprovalResponse | None = None
    question: str = ""


class ToolExecutor(Protocol):
    """Performs calls of one kind. `execute` may raise anything: that becomes one error output.

    It is cancelled when its time is up or the run ends; `DelegateToClient` hands the call to the client instead.
    """

    kind: ToolKind

    def can_execute(self, tool: ToolDefinition) -> bool: ...

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult: ...


class Allow(Struct, frozen=True):
    """Nothing speaks against the call. A `note` is a warning: the call runs, and the verdict records it."""

    note: str = ""


class Deny(Struct, frozen=True):
    """The call is not performed and the model reads why. `stop` ends the run once the turn's calls are answered. A call that
    `is_returned` goes back to the model, and the answer to the client has neither it nor its output."""

    reason: str
    stop: Reason | None = None
    is_returned: bool = False


class Ask(Struct, frozen=True):
    """A person must agree first."""

    prompt: str


class Client(Struct, frozen=True):
    """The client performs this call."""


Verdict = Allow | Deny | Ask | Client


class CallPolicy(Protocol):
    """Answers one question about a call. Raising, or taking too long, means no.

    A class that promises `never_waits = True` is asked in place, which is cheaper; others are asked under guard.
    """

    name: str

    def judge(self, call: Call, run: Run) -> Coroutine[Any, Any, Verdict]: ...


@runtime_checkable
class QuickPolicy(Protocol):
    """What a `CallPolicy` may be besides: one that says whether it never waits. Subclass it to say so."""

    never_waits: bool = True


@runtime_checkable
class CountingPolicy(Protocol):
    """What a `CallPolicy` may be besides: one that counts the calls it is asked about, so that it is asked about each once."""

    counts_calls: bool


class AnswerCheck(Protocol):
    """Looks at the answer of a run that is about to be completed. `flaw` says why it cannot count, None if it can."""

    name: str

    def flaw(self, run: Run) -> str | None: ...


class StoredRun(Struct, frozen=True):
    """A run as the store lists it. `response` is there once the run has ended."""

    id: str
    status: Status
    created_at: float
    parent: str | None = None
    model: str = ""
    background: bool = False
    response: Response | None = None
    tenant: str = ""
    conversation: Conversation | None = None


class Document(Struct, frozen=True):
    """A small JSON body that is kept beside the runs, found again by its kind and id, within one tenant and one parent.

    `parent` is the id of the document it belongs to, empty if there is none. `number` is the store's: it grows from document to
    document, is never used twice, and stays when the body is replaced.
    """

    kind: str
    id: str
    body: bytes
    tenant: str = ""
    parent: str = ""
    number: int = 0


class Snapshot(Struct, frozen=True):
    """What is written together with the last event: the answer, and the run's entries, for those that continue it or
    refer to one of its items.

    `documents` are put as `Store.put` does, but for those whose parent is gone: they are dropped.
    """

    response: Response
    entries: tuple[Entry, ...]
    documents: tuple[Document, ...] = ()


class Note(Struct, frozen=True):
    """What the audit is to hold: JSON that says what happened, and the call that it happened to, if to one."""

    body: bytes
    call: str = ""


class Segment(Struct, frozen=True):
    """A stretch of a run's log that is written whole or not at all, with what the audit is to hold of it.

    The snapshot is there if it ends the run. One without records only adds notes, for a run that is not stored itself.
    Raises `Malformed` unless the records are numbered in a row, number 0 is `RunStarted`, and a snapshot comes with `RunEnded`
    and only with it.
    """

    run_id: str
    records: Sequence[Recorded]
    snapshot: Snapshot | None = None
    notes: Sequence[Note] = ()

    def __post_init__(self) -> None:
        records = self.records
        if not records:
            if not self.notes:
                raise Malformed(f"an append to run `{self.run_id}` holds no events")
            return
        first, last = records[0], records[-1]
        if last.seq - first.seq != len(records) - 1:
            raise Malformed(f"events {first.seq} to {last.seq} of run `{self.run_id}` are not numbered in a row")
        if (first.seq == 0) is not (type(first.event) is RunStarted):
            raise Malformed(f"event {first.seq} of run `{self.run_id}` cannot be {type(first.event).__name__}")
        if (self.snapshot is not None) is not (type(last.event) is RunEnded):
            raise Malformed(f"run `{self.run_id}`: a snapshot is written with RunEnded, not with {type(last.event).__name__}")


class Link(Struct, frozen=True):
    """A note in the audit. `number` grows from note to note; `place` is that in its chain, from 1. `hash` covers the note and the
    hash before it, see `storage.audit_chain`."""

    number: int
    note: Note
    hash: bytes
    chain: str = ""
    place: int = 0


class Filter(Struct, frozen=True):
    """Which runs to list: those that fit every field that says something. `since` is inclusive, `before` is not. `text` is in the
    prompt or the error, whatever its case, or the id of the run. `waits_at` leaves those that wait for a person at that time."""

    tenant: str | None = None
    status: tuple[Status, ...] = ()
    model: str | None = None
    background: bool | None = None
    parent: str | None = None
    conversation: str | None = None
    since: float | None = None
    before: float | None = None
    agent: str | None = None
    text: str | None = None
    waits_at: float | None = None
    ids: tuple[str, ...] | None = None


EVERY_RUN = Filter()


PAGE_BYTES = 8 * 1024 * 1024
"""A page of a list ends behind the entry with which it has so many bytes, however many entries were asked for."""


class RunPage(Struct, frozen=True):
    runs: tuple[StoredRun, ...]
    has_more: bool = False


class RunSummary(Struct, frozen=True):
    """A run in a line, which is read without its log and its answer. `number` is the store's, and grows from run to run.

    `prompt` is the beginning of what was asked last, `caller` the key that asked. `waits_until` is there if the run has stopped
    for a person and no other run has gone on with it. Of runs that an older version has stored, all but their columns are empty.
    """

    number: int
    id: str
    status: Status
    created_at: float
    model: str
    tenant: str = ""
    parent: str | None = None
    ended_at: float | None = None
    agent: str = ""
    caller: str = ""
    prompt: str = ""
    reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    waits_until: float | None = None


class SummaryPage(Struct, frozen=True):
    runs: tuple[RunSummary, ...]
    has_more: bool = False


class Pruned(Struct, frozen=True):
    """How many runs were forgotten, and which could not be, because what they hold cannot be read."""

    count: int = 0
    damaged: tuple[str, ...] = ()


UsageGroup = Literal["day", "model", "agent", "caller", "tenant"]


class UsageSum(Struct, frozen=True):
    """What the runs of a group and a model have used together. `failed` are those that failed, `ended` those that have ended, and
    `seconds` the time that these took in all."""

    group: str
    model: str
    runs: int
    failed: int
    ended: int
    seconds: float
    input_tokens: int
    output_tokens: int


OWNED = "\x1f"
"""In the name of a tenant whose runs belong to a part of the program that drives them by rules of its own. No key has it."""


class Driver(Struct, frozen=True):
    """An engine that drives runs, and its process: `place` is what numbers it, `born` tells it from a later one of its number."""

    id: str
    place: str = ""
    pid: int = 0
    born: str = ""


class Claim(Struct, frozen=True):
    """A run that its driver may go on with. `is_cancelled` says that somebody has asked for its cancel, `was_free` that it was
    nobody's: it was never driven, or was given back."""

    is_cancelled: bool = False
    was_free: bool = False


class Leases(Protocol):
    """Who drives which run, without a look into any log. Times are those of the store's own clock, never of its users'.

    A driver has one lease, for all its runs, and renews it with `beat`. A run is its driver's from the first append on, by
    `RunStarted.driver`; one that begins with an empty driver is nobody's, and waits to be claimed. A run may be claimed when it
    is nobody's, or when the lease of its driver is over. Appends need no claim, only the next number: so whoever claims a run
    reads its log afterwards, and again if a driver that has just lost it was quicker.
    """

    async def beat(self, driver: Driver, seconds: float) -> bool:
        """Extends the lease to so many seconds from now. Returns whether it was not over; else others may have claimed runs of
        its driver."""
        ...

    async def release(self, driver: str, run_id: str | None = None) -> None:
        """Ends the lease: the runs of this driver can be claimed at once. With a run, gives back only that."""
        ...

    async def list_drivers(self, place: str | None = None) -> Sequence[Driver]:
        """Those whose lease is not over; with a place, only those of it."""
        ...

    async def is_alive(self, driver: str) -> bool:
        """Whether its lease is not over."""
        ...

    async def find_driver(self, run_id: str) -> str | None:
        """The driver of a run that has not ended, None if it can be claimed. Raises `NotFound`."""
        ...

    async def claim(self, run_id: str, driver: str) -> Claim | None:
        """Makes the run this driver's, or finds that it is; None if it is another's or has ended. Raises `NotFound`."""
        ...

    async def list_claimable(self, *, owned: bool = False, limit: int = 1000) -> Sequence[str]:
        """Ids of runs that can be claimed, oldest first: with `owned` those of `OWNED` tenants, else those of all others."""
        ...

    async def wait_for_claimable(self, seconds: float) -> None:
        """Returns when there may be something new to claim, and after so many seconds at the latest."""
        ...

    async def request_cancel(self, run_id: str) -> None:
        """Asks whoever drives the run, or claims it later, to cancel it; nothing if it has ended. Raises `NotFound`."""
        ...

    async def list_cancelled(self, driver: str) -> Sequence[str]:
        """The runs of this driver that somebody has asked to cancel, and that have not ended."""
        ...

    async def wait_for_cancel(self, driver: str, seconds: float) -> None:
        """Returns when the driver may have been asked for a cancel, and after so many seconds at the latest."""
        ...


class RunStore(Protocol):
    """Keeps runs: their logs and answers, and who drives them."""

    is_durable: bool
    """Whether what it keeps is found again by another process."""

    @property
    def leases(self) -> Leases: ...

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> "Future[None]":
        """Begins to write at once; the future is done when the records are durable.

        All of it or nothing: the records continue the log (else `Superseded`), the snapshot goes with its last event, and the
        notes join the audit. Appends of one run take effect in the order they were made. The first append creates the run.
        """
        ...

    def append_all(self, segments: "Sequence[Segment]") -> "Future[list[MainspringError | None]]":
        """Like `append` for many runs at once, in one transaction; the future says of each segment why it was not written, None
        if it is durable, and never fails itself. One that cannot be written is left out, and takes no other with it."""
        ...

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        """The log behind event number `after`; raises `NotFound`."""
        ...

    def follow(self, run_id: str, after: int = -1) -> AsyncGenerator[list[Recorded], None]:
        """The log behind event number `after` as it grows, whichever process writes it: what is there, then each time there is
        more, until the run has ended. Raises `NotFound`."""
        ...

    async def load(self, run_id: str) -> StoredRun:
        """Raises `NotFound`."""
        ...

    async def items(self, ids: Sequence[str], *, tenant: str = "") -> dict[str, Item]:
        """Those of these items that an ended run of the tenant has said or heard, by id."""
        ...

    async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
        """The entries of this ended run and all it continues, oldest first; raises `NotFound` if one is missing or unfinished.

        A chain that began in a conversation begins with what that held then, but for what has been removed since. A run of
        another tenant than the one named is as good as missing; None is every tenant.
        """
        ...

    async def measure_history(self, run_id: str, *, tenant: str | None = None) -> int:
        """How many bytes `history` would read, without reading them; 0 if there is nothing that is not in memory already."""
        ...

    async def measure_run(self, run_id: str) -> int:
        """The same of `events`."""
        ...

    async def list(
        self,
        *,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = True,
        only: Filter = EVERY_RUN,
    ) -> RunPage:
        """Runs by the time they were created; `after` is the id of the last one seen, whether or not that one fits too. Raises
        `NotFound` if it is no run of the tenant's."""
        ...

    async def summarize(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> SummaryPage:
        """As `list`, in lines."""
        ...

    async def find_summaries(self, numbers: Sequence[int]) -> Sequence[RunSummary]:
        """Those of these runs that are there, by number."""
        ...

    async def list_states(self, after: int) -> Mapping[int, Status]:
        """The status of each run that has a higher number, and of each that has not ended."""
        ...

    async def find_last_number(self) -> int:
        """The highest number of a run, 0 if there is none."""
        ...

    async def wait_for_change(self, seconds: float) -> None:
        """Returns when a run may have begun or ended in any process, and after so many seconds at the latest."""
        ...

    async def sum_usage(self, by: UsageGroup, only: Filter = EVERY_RUN) -> Sequence[UsageSum]:
        """The sums of runs by group and model; a day is one of UTC, as in `2026-01-31`. Of the filter, tenant and times count."""
        ...

    async def list_unfinished(self) -> Sequence[str]:
        """Ids of the runs without a `RunEnded`, oldest first."""
        ...

    async def delete(self, run_id: str) -> None:
        """Forgets a run, its log and its answer, whether or not they can be read; raises `NotFound`."""
        ...

    async def prune(self, before: float, *, skip: Sequence[str] = ()) -> Pruned:
        """Forgets some of the runs that ended before this time, the oldest first, but none that a kept one continues, and none of
        those to skip. An empty answer says that there are no more. The audit and all documents stay."""
        ...


RUN_METADATA: Final = "run_metadata"
"""The kind of documents that belong to runs: each has the id of its run, and goes with it."""


class DocumentStore(Protocol):
    """Keeps documents."""

    is_durable: bool
    """Whether what it keeps is found again by another process."""

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        """Writes all of them, or none and says so: a parent is missing, or with `if_absent` one of them is there already."""
        ...

    async def swap(self, document: Document, known: bytes) -> bool:
        """Replaces the body of a document if it is still the `known` one. Says whether it was."""
        ...

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None: ...

    async def remove(self, kind: str, id: str, *, tenant: str = "", parent: str = "", number: int | None = None) -> bool:
        """Removes a document and those that belong to it; with `number`, only the one that has it. Says whether it was there."""
        ...

    async def documents(
        self,
        kind: str,
        *,
        tenant: str = "",
        parent: str = "",
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> Sequence[Document]:
        """By number; `after` is the number of the last one seen, whether or not there is such a document. No more are read behind
        the one with which there are more than `most_bytes`."""
        ...

    async def measure_documents(self, kind: str, *, tenant: str = "", parent: str = "") -> int:
        """How many bytes `documents` would read, without reading them."""
        ...

    async def read_clock(self) -> float:
        """The time by the clock that all processes on this store share, in seconds since 1970."""
        ...


class AuditStore(Protocol):
    """Keeps the audit. Nothing is ever changed in it, or taken from it."""

    async def note(self, notes: Sequence[Note]) -> None:
        """Adds to the audit, for a run that is not stored."""
        ...

    async def audit(
        self, *, after: int | None = None, limit: int | None = None, newest_first: bool = False, call: str | None = None
    ) -> Sequence[Link]:
        """The audit by number, or what it has about one call; `after` is the number of the last one seen."""
        ...

    async def read_chain(self, chain: str, *, after: int | None = None, limit: int) -> Sequence[Link]:
        """A chain of the audit by place, with its anchors; `after` is the place of the last one seen."""
        ...

    async def list_chains(self) -> Sequence[str]:
        """The names of all chains, in their order."""
        ...


class Store(RunStore, DocumentStore, AuditStore, Protocol):
    """Keeps all of them in one place, from `open` to `close`. Everything but `append` raises `StoreError` when it cannot be used.

    Whoever needs only one of the three takes only that.
    """

    is_durable: bool

    async def open(self) -> None:
        """Raises `StoreError` that says what to do if the store cannot be used at all. Opening twice does nothing."""
        ...

    async def close(self) -> None: ...


class DispatchedRuns(Struct, frozen=True):
    """An engine that drives runs, as a dispatcher sees it. `drive` takes up the run of this id, and returns when it has ended or
    is not driven here, be it only for now; `drive_all` takes up all that nobody drives, and returns at once. `tend` is to be
    called now and then by whoever does not call that. All raise `StoreError`."""

    drive: Callable[[str], Awaitable[None]]
    drive_all: Callable[[], Awaitable[object]]
    tend: Callable[[], Awaitable[None]]


class Dispatcher(Protocol):
    """Brings runs that one engine has accepted to another that drives them. What a run does and what becomes of it is in the
    store; a dispatcher only says who is to do it now, and the store lets only one."""

    async def submit(self, run_id: str) -> None:
        """Has a run driven that was stored without a driver. Raises `MainspringError` if that cannot be: the run then fails."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Asks whoever drives the run, or takes it up later, to cancel it. Raises `NotFound`, `StoreError`."""
        ...

    async def work(self, runs: DispatchedRuns) -> None:
        """Has runs driven here, until it is cancelled."""
        ...


class RateWindow(Struct, frozen=True):
    """At most `count` permits within any `seconds`."""

    count: int
    seconds: float


class WindowRoom(Struct, frozen=True):
    """What is left of a window, and in how many seconds all of it is there again."""

    left: int
    seconds: float


class Grant(Struct, frozen=True):
    """How many permits were got. If these are fewer than were asked for, there may be more in `wait` seconds, and `window` is the
    one that is used up, None if too many are in use at once. `rooms` are those of the limit's windows, in their order."""

    count: int
    wait: float = 0.0
    window: RateWindow | None = None
    rooms: tuple[WindowRoom, ...] = ()


class SharedLimit(Protocol):
    """A limit that all processes on a store keep together."""

    async def update(self, in_use: int, wanted: int, noted: int = 0) -> Grant:
        """Says how many permits this process uses, which holds for `LIMIT_SECONDS`, and asks for more. Those that it gets are in
        use from then on. What it wants and does not get is left to it by the others, up to its share. `noted` is how much was
        used since of what is counted afterwards. Raises `StoreError`: then nothing was noted."""
        ...


LIMIT_SECONDS = 6.0
"""How long a process is taken to use its permits if it is not heard of again."""


class SharedLimits(Protocol):
    """Opens limits that hold for all processes on a store, by names that mean the same in all of them."""

    def open_limit(
        self,
        name: str,
        *,
        most_at_once: int | None = None,
        windows: Sequence[RateWindow] = (),
        notes: RateWindow | None = None,
        waits: bool = True,
    ) -> SharedLimit:
        """`notes` is a window for what is counted afterwards, and may be exceeded: no permit is given once it is used up. Of a
        limit that nobody `waits` for, nothing is left to those who wanted more."""
        ...


@runtime_checkable
class LimitSharer(Protocol):
    """What a `Provider` may be besides: one that limits how often it is asked."""

    def share_limits(self, limits: SharedLimits) -> None:
        """Has its limits hold for all processes on a store together."""
        ...


class Drivers(Protocol):
    """Which processes on a store live. `id` names this one to others, empty where no other can be on it."""

    @property
    def id(self) -> str: ...

    async def show(self) -> None:
        """Tells the others of this process, before they find its name somewhere. Raises `StoreError`."""
        ...

    async def is_driven(self, driver: str) -> bool:
        """Whether this is another process, and it lives. Raises `StoreError`."""
        ...


class FileStorage(Protocol):
    """Keeps files where every process of a deployment finds them. Each raises `FilesUnavailable` when it cannot be used.

    A key is words of ASCII letters, digits, `.`, `_` and `-` between slashes. A file is there whole or not at all.
    """

    async def open(self) -> None:
        """Tries it out, once. Raises `FilesUnavailable` with what to do if files cannot be written, read, listed and removed."""
        ...

    async def put(self, key: str, data: bytes) -> None: ...

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> None:
        """Writes a file of any size, a piece at a time. Whatever the pieces raise is raised, and then there is no file."""
        ...

    async def get(self, key: str) -> bytes:
        """Raises `NotFound`."""
        ...

    def read_pieces(self, key: str) -> AsyncGenerator[bytes, None]:
        """A file of any size, a piece at a time. Raises `NotFound`."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """What is not there is passed over."""
        ...

    async def list_keys(self, prefix: str) -> Sequence[str]:
        """The keys of the files below a folder, in any order."""
        ...

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders in a folder, in any order."""
        ...


class NamedFile(Struct, frozen=True):
    name: str
    data: bytes


class FileLoader(Protocol):
    """Reads a file that a tenant has uploaded. Raises `NotFound`, and `InvalidRequest` for one with more than so many bytes."""

    async def __call__(self, tenant: str, id: str, most: int) -> NamedFile: ...


class Sink(Protocol):
    """Is told every event, with the run as that event left it. May be slow or fail; a run never waits for it.

    A class that has `hears`, a set of event types, is told only those, and costs nothing for the others.
    """

    async def __call__(self, run: Run, event: Event) -> None: ...


@runtime_checkable
class SelectiveSink(Protocol):
    """What a `Sink` may be besides: one that is told only events of these types, and costs nothing for the others."""

    hears: Collection[type]


class ContinuedRun(Struct, frozen=True):
    """The paused run that an order continues with a person's answer, and the budget and charters that it was under."""

    run_id: str
    budget: Json | None = None
    charters: tuple[Charter, ...] = ()


class OrderContext(Struct, frozen=True):
    """What an order step may know beside the order. `find_run` raises `NotFound`."""

    find_run: Callable[[str], Awaitable[Run]]
    continued: ContinuedRun | None = None


class OrderStep(Protocol):
    """Prepares an order before its run starts: adds tools, narrows limits, refuses it with an `InvalidRequest`.

    Steps run in the order of their list. Subclass it to inherit the two methods that most steps do not need.
    """

    name: str

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec: ...

    async def withdraw(self, order: RunSpec) -> None:
        """The run was not started after all: gives back what `prepare` reserved."""
        return

    def release(self, run_id: str) -> None:
        """The run is not driven here any more: frees what `prepare` keeps for it in this process."""
        return


class ReadingStep(OrderStep):
    """A step that reads, and neither reserves nor starts anything. Orders of which only the tokens are counted take it, too."""


class EndedRun(Struct, frozen=True):
    """A run that has ended here, with its log and the calls that waited before it."""

    run: Run
    log: Sequence[Recorded]
    waiting: tuple[FunctionCall, ...] = ()


class RunObserver(Protocol):
    """Is told of whole runs. A failure is logged and never fails a run. Subclass it to inherit what it need not hear."""

    name: str

    def run_ended(self, ended: EndedRun) -> None:
        """The run has ended here, and its end is stored."""
        return

    async def run_resumed(self, retell: Retell) -> None:
        """A run whose driver was gone is driven here from now on, or was only read again because it had ended."""
        return

    async def run_forgotten(self, run: Run) -> None:
        """The run was deleted from the store."""
        return


Vector = Sequence[float]


class Embedder(Protocol):
    """Makes vectors of texts. `model` names the space that they are in: vectors of two models cannot be compared."""

    model: str

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """One vector for each text, all of one size. Raises `Refused` if these texts can never be embedded, else a
        `ProviderError`."""
        ...

    async def close(self) -> None: ...


class WebQuery(Struct, frozen=True):
    """What to search the web for: `most` results, with about `chars` of each, of these domains and those below them; of all if
    there are none."""

    text: str
    most: int
    chars: int
    domains: tuple[str, ...] = ()


class FoundPage(Struct, frozen=True):
    """A page of the web, and what a search service says of it."""

    url: str
    title: str = ""
    text: str = ""


class WebSearcher(Protocol):
    """Searches the web."""

    async def search(self, query: WebQuery) -> Sequence[FoundPage]:
        """The pages that it finds, best first; they may be more, and of other domains. Raises a `ProviderError`."""
        ...


class RecalledMemory(Protocol):
    """Something remembered: what it says, and where that is from."""

    @property
    def text(self) -> str: ...

    @property
    def citation(self) -> str: ...


class Recall(Protocol):
    """Finds what an agent of a tenant has learned before that fits a question, best first."""

    async def __call__(self, query: str, *, tenant: str, agent: str, top_k: int) -> Sequence[RecalledMemory]: ...


class PythonSession(Protocol):
    """A Python interpreter in a lease that keeps its variables from cell to cell."""

    async def run_cell(self, code: str, *, timeout: float | None = None) -> ProgramResult:  # noqa: ASYNC109 - for the program
        """Runs one cell. One that ends the interpreter, or is ended, says so; the next one gets a new interpreter."""
        ...


class SandboxLease(Protocol):
    """One workspace and what runs in it. Cancelling whoever waits for a run ends that run and all it started."""

    def run(
        self,
        program: str | Sequence[str],
        *,
        language: Language = "python",
        timeout: float | None = None,
        stdin: bytes = b"",
    ) -> AsyncGenerator[OutputChunk | ProgramExit, None]:
        """Runs code, or a command if it is a list. Closing the stream early ends the run.

        Raises `InvalidRequest` for a language that is not there or a path that leads out, `SandboxError` if nothing starts.
        """
        ...

    def session(self) -> AbstractAsyncContextManager[PythonSession]: ...

    async def put(self, path: str, data: bytes) -> WorkspaceFile:
        """Writes a file, making its folders. Raises `InvalidRequest` if the path leads out, over a link or to no regular file,
        and if there is no room for it."""
        ...

    async def put_all(self, files: Mapping[str, bytes], listing: WorkspaceListing) -> None:
        """Writes files by path, as `put` does, and looks for room once. The listing says which of them are executable, and which
        folders and links to make where nothing is. What was made before something that raises stays."""
        ...

    async def get(self, path: str) -> bytes:
        """A file's content. Raises `NotFound`, and `InvalidRequest` as `put` does or if it is larger than `Limits.file`."""
        ...

    async def remove(self, path: str) -> None:
        """Removes a file. Raises as `get` does."""
        ...

    async def list(self) -> WorkspaceListing:
        """The regular files, by path, and which empty folders and links there are."""
        ...

    async def release(self) -> None:
        """Ends everything in the lease and returns when it is removed. Leaving `async with` begins that without waiting."""
        ...


class Sandbox(Protocol):
    """Runs code that a model wrote apart from the machine, be it in a namespace of this one or in a pod elsewhere.

    It lends out leases. Nothing of a lease is left once it is released.
    """

    def acquire(self, spec: SandboxSpec = DEFAULT_SPEC) -> AbstractAsyncContextManager[SandboxLease]: ...

    async def health(self) -> SandboxHealth: ...
