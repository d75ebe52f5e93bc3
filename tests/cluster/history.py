"""What is seen from outside while a cluster suffers, and what its database holds afterwards: all that the checker is told.

Moments are seconds of this machine's monotonic clock, which no fault touches: clients, tools and faults are on one machine.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

DONE = b"data: [DONE]\n\n"
ENDED = ("completed", "failed", "cancelled", "incomplete")
# How often the schedule of the deployment is due.
TICK_SECONDS = 5.0


class Accepted(Struct, frozen=True, tag=True):
    """A server has named this run to a client, for the request of this key."""

    at: float
    run: str
    key: str


class Cancelled(Struct, frozen=True, tag=True):
    """A client has been answered that this run is cancelled."""

    at: float
    run: str


class Streamed(Struct, frozen=True, tag=True):
    """What one connection has read of the stream of a run, behind event number `after`: whole frames, without pings."""

    at: float
    run: str
    server: str
    after: int
    frames: bytes


class Answered(Struct, frozen=True, tag=True):
    """A client has sent a yes to a question. `run` is the run that goes on; it is empty where the answer was refused as used."""

    at: float
    question: str
    asker: str
    run: str = ""


class Unanswered(Struct, frozen=True, tag=True):
    """A client has given up on a request that every server was asked for, over and over, when all was well again."""

    at: float
    what: str


class WorkflowAccepted(Struct, frozen=True, tag=True):
    """A server has named this run of a workflow to a client, for the request of this key."""

    at: float
    run: str
    key: str


class WorkflowCancelled(Struct, frozen=True, tag=True):
    """A client has been answered that this run of a workflow is cancelled."""

    at: float
    run: str


class Arrived(Struct, frozen=True, tag=True):
    """The request of a step has come to where it was sent."""

    at: float
    run: str
    step: str


class Kept(Struct, frozen=True, tag=True):
    """A client has been answered that a file is in a container."""

    at: float
    container: str
    path: str
    digest: str


class Conversed(Struct, frozen=True, tag=True):
    """A client has said this in a conversation, and has been answered."""

    at: float
    conversation: str
    text: str


class Fired(Struct, frozen=True, tag=True):
    """A server has said what became of a due time of the schedule: `run` is what it started, if it did."""

    at: float
    due: float
    outcome: str
    run: str = ""


class Told(Struct, frozen=True, tag=True):
    """An event has come to the endpoint of webhooks: `subject` is what it tells of. `is_taken` says that it was answered
    with 2xx; then it comes again only if that answer was lost."""

    at: float
    event: str
    kind: str
    subject: str
    is_taken: bool = True


class Indexed(Struct, frozen=True, tag=True):
    """A client has been answered that a file, which has this word, can be found in a vector store."""

    at: float
    store: str
    file: str
    word: str


class Faulted(Struct, frozen=True, tag=True):
    """A fault began."""

    at: float
    kind: str
    member: str
    seconds: float = 0.0


class Froze(Struct, frozen=True, tag=True):
    """A process was stopped by SIGSTOP, and was woken at `until`."""

    at: float
    pid: int
    until: float


Seen = (
    Accepted
    | Cancelled
    | Streamed
    | Answered
    | Unanswered
    | WorkflowAccepted
    | WorkflowCancelled
    | Arrived
    | Kept
    | Conversed
    | Fired
    | Told
    | Indexed
    | Faulted
    | Froze
)


class Effect(Struct, frozen=True):
    """What a tool has left outside of everything that we write: one line when it begins, and one when it is done. `pid` is the
    process that did it."""

    at: float
    run: str
    call: str
    tool: str
    tenant: str
    phase: Literal["begun", "done"]
    pid: int = 0


class StoredRun(Struct, frozen=True):
    """A run as the database has it. `streams` are its whole stream at each server, `parent` is what it continues. `is_told` says
    that the endpoint of webhooks has to hear of it."""

    status: str
    streams: Mapping[str, bytes]
    started: frozenset[str] = frozenset()
    parent: str = ""
    is_told: bool = False


class Contents(Struct, frozen=True):
    """What there is afterwards. `allowances` are the calls that all runs of a tenant may make in total; `spent` is what the
    accounts say of them. `audit` is what is wrong with the audit. `workflows` are their runs with how they ended; `files` the
    digests of what containers hold, and `conversations` what users have said in each. `found` are the files that a search for a
    word finds."""

    runs: Mapping[str, StoredRun]
    effects: tuple[Effect, ...]
    allowances: Mapping[str, int]
    spent: Mapping[str, int]
    audit: str = ""
    workflows: Mapping[str, str] = {}
    files: Mapping[str, Mapping[str, str]] = {}
    conversations: Mapping[str, tuple[str, ...]] = {}
    found: Mapping[str, tuple[str, ...]] = {}


class Breach(Struct, frozen=True):
    """A rule that does not hold, and where."""

    rule: str
    about: str
