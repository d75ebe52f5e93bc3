"""What must hold after any faults: a pure function of what was seen and of what is there.

Each rule is a function that yields what breaks it. It knows nothing of how faults are made, nor of the product.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tests.cluster.history import (
    DONE,
    ENDED,
    TICK_SECONDS,
    Accepted,
    Answered,
    Arrived,
    Breach,
    Cancelled,
    Contents,
    Conversed,
    Fired,
    Froze,
    Indexed,
    Kept,
    Seen,
    Streamed,
    Told,
    Unanswered,
    WorkflowAccepted,
    WorkflowCancelled,
)

REPEATABLE = ("look",)
WORKFLOW_ENDED = ("success", "partial", "failed", "cancelled")
# A step that a frozen process was in the middle of is finished as soon as it wakes up. That is not promised away.
AWAKE = 1.0
# What is on its way to another process may be read there a moment later.
ON_ITS_WAY = 1.0
_WORKFLOW_EVENTS = {
    "success": "workflow.completed",
    "partial": "workflow.completed",
    "failed": "workflow.failed",
    "cancelled": "workflow.cancelled",
}
Rule = Callable[[Sequence[Seen], Contents], Iterator[str]]


def check(history: Sequence[Seen], contents: Contents) -> list[Breach]:
    """Everything that is wrong, rule by rule."""
    return [Breach(name, about) for name, rule in RULES.items() for about in rule(history, contents)]


def find_unended(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """Every accepted run has ended, and so has whatever else was begun."""
    for run in dict.fromkeys([seen.run for seen in history if isinstance(seen, Accepted)]):
        if run not in contents.runs:
            yield f"{run} was accepted and is not there"
    for run, stored in contents.runs.items():
        if stored.status not in ENDED:
            yield f"{run} is {stored.status}"


def find_unanswered(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """Whoever asks again gets an answer once all is well."""
    yield from [seen.what for seen in history if isinstance(seen, Unanswered)]


def find_doubled(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """A request that is sent again is one run, unless the first has failed before it did anything."""
    runs: dict[str, set[str]] = defaultdict(set)
    for seen in history:
        if isinstance(seen, Accepted):
            runs[seen.key].add(seen.run)
    done = {effect.run for effect in contents.effects}
    for key, named in runs.items():
        counted = [run for run in named if run in done or (run in contents.runs and contents.runs[run].status != "failed")]
        if len(counted) > 1:
            yield f"the key {key} has the runs {', '.join(sorted(counted))}"


def find_repeated(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """No call begins twice, nor is done twice, unless its tool is repeatable."""
    for (call, phase), times in Counter(
        [(effect.call, effect.phase) for effect in contents.effects if effect.tool not in REPEATABLE]
    ).items():
        if times > 1:
            yield f"{call} has {phase} {times} times"


def find_unrecorded(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """No tool has an effect whose start is not in the log."""
    for effect in contents.effects:
        if effect.run not in contents.runs or effect.call not in contents.runs[effect.run].started:
            yield f"{effect.call} of {effect.run} has {effect.phase}, and no log says that it started"


def find_late(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """Nothing has an effect after `cancelled` was answered."""
    cancelled: dict[str, float] = {}
    for seen in history:
        if isinstance(seen, Cancelled):
            cancelled.setdefault(seen.run, seen.at)
    for run in cancelled:
        if run in contents.runs and contents.runs[run].status != "cancelled":
            yield f"{run} was answered to be cancelled, and is {contents.runs[run].status}"
    frozen = [seen for seen in history if isinstance(seen, Froze)]
    for effect in contents.effects:
        if effect.at > (told := cancelled.get(effect.run, effect.at)):
            own = [each for each in frozen if each.pid == effect.pid]
            if any(each.at < told < each.until <= effect.at < each.until + AWAKE for each in own):
                continue
            late = effect.at - cancelled[effect.run]
            yield f"{effect.call} of {effect.run} has {effect.phase} {late:.3f} s after the cancel was answered"


def find_torn(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """What was streamed is what is stored, byte by byte, from wherever it was read on, and all servers tell the same."""
    for run, stored in contents.runs.items():
        if len(set(stored.streams.values())) > 1:
            yield f"{run} is another stream at each of {', '.join(stored.streams)}"
    for seen in history:
        if not isinstance(seen, Streamed) or seen.run not in contents.runs:
            continue
        for whole in list(contents.runs[seen.run].streams.values())[:1]:
            rest = _cut(whole, seen.after)
            if not rest.startswith(seen.frames):
                same = next((place for place, (a, b) in enumerate(zip(rest, seen.frames, strict=False)) if a != b), len(rest))
                told = f"{seen.frames[same - 60 : same + 60]!r} instead of {rest[same - 60 : same + 60]!r}"
                yield f"{run_of(seen)} behind {seen.after} at {seen.server} was {told}"
            elif seen.frames.endswith(DONE) and rest != seen.frames:
                yield f"{run_of(seen)} at {seen.server} ended early"


def run_of(seen: Streamed) -> str:
    return f"the stream of {seen.run}"


def _cut(stream: bytes, after: int) -> bytes:
    """The stream behind the event of this number."""
    if after < 0:
        return stream
    _, mark, rest = stream.partition(f'"sequence_number":{after},'.encode())
    if not mark:
        _, mark, rest = stream.partition(f'"sequence_number":{after}}}'.encode())
    return rest.partition(b"\n\n")[2] if mark else b""


def find_misused_approvals(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """A yes is used once, and a yes that was taken is not lost."""
    answers: dict[str, list[Answered]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, Answered):
            answers[seen.question].append(seen)
    children = Counter([stored.parent for stored in contents.runs.values() if stored.parent])
    for question, given in answers.items():
        taken = {each.run for each in given if each.run}
        asker = given[0].asker
        if len(taken) > 1:
            yield f"{question} was used by {', '.join(sorted(taken))}"
        if children[asker] > 1:
            yield f"{question} of {asker} has {children[asker]} runs that continue it"
        if not children[asker] or any(run not in contents.runs for run in taken):
            yield f"{question} was answered, and nothing goes on with it"


def find_overspent(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """All runs of a tenant together make no more calls than its budget has, and no more than its account says."""
    calls: dict[str, set[str]] = defaultdict(set)
    for effect in contents.effects:
        calls[effect.tenant].add(effect.call)
    for tenant, most in contents.allowances.items():
        if len(calls[tenant]) > most:
            yield f"{tenant} has made {len(calls[tenant])} calls of {most}"
        if not len(calls[tenant]) <= contents.spent.get(tenant, 0) <= most:
            yield f"the account of {tenant} has {contents.spent.get(tenant, 0)} of {most}, for {len(calls[tenant])} calls"


def find_unended_workflows(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """Every accepted run of a workflow has ended, and a key has one."""
    runs: dict[str, set[str]] = defaultdict(set)
    for seen in history:
        if isinstance(seen, WorkflowAccepted):
            runs[seen.key].add(seen.run)
            if (status := contents.workflows.get(seen.run, "not there")) not in WORKFLOW_ENDED:
                yield f"{seen.run} is {status}"
    yield from [f"the key {key} has the runs {', '.join(sorted(named))}" for key, named in runs.items() if len(named) > 1]


def find_repeated_steps(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """A request of a step that is not repeatable arrives once."""
    for (run, step), times in Counter([(seen.run, seen.step) for seen in history if isinstance(seen, Arrived)]).items():
        if times > 1:
            yield f"the request of {step} of {run} has arrived {times} times"


def find_late_steps(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """No step has its effect after the workflow was answered to be cancelled."""
    cancelled = {seen.run: seen.at for seen in history if isinstance(seen, WorkflowCancelled)}
    for run in cancelled:
        if (status := contents.workflows.get(run)) != "cancelled":
            yield f"{run} was answered to be cancelled, and is {status}"
    for seen in history:
        if isinstance(seen, Arrived) and seen.at > cancelled.get(seen.run, seen.at) + ON_ITS_WAY:
            yield f"the request of {seen.step} of {seen.run} came {seen.at - cancelled[seen.run]:.3f} s after the cancel"


def find_lost_files(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """What a container has taken is there, byte by byte."""
    for seen in history:
        if isinstance(seen, Kept) and contents.files.get(seen.container, {}).get(seen.path) != seen.digest:
            yield f"{seen.path} of {seen.container} is not what was put in"


def find_torn_conversations(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """What was said and answered in a conversation is in it once, in the order in which it was said."""
    said: dict[str, list[str]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, Conversed):
            said[seen.conversation].append(seen.text)
    for conversation, texts in said.items():
        found = [text for text in contents.conversations.get(conversation, ()) if text in texts]
        if found != texts:
            yield f"in {conversation} there is {found} of {texts}"


def find_misfired(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """Every due time of the schedule has started one run, and nobody has started another one."""
    fired: dict[float, set[str]] = defaultdict(set)
    for seen in history:
        if isinstance(seen, Fired):
            fired[round(seen.due, 3)].add(seen.run or seen.outcome)
            if seen.outcome != "started":
                yield f"what was due at {seen.due:.3f} is {seen.outcome}"
    for due, runs in fired.items():
        if len(runs) > 1:
            yield f"what was due at {due:.3f} has the runs {', '.join(sorted(runs))}"
    for due, following in pairwise(sorted(fired)):
        if following - due > 1.5 * TICK_SECONDS:
            yield f"nothing was due between {due:.3f} and {following:.3f}"
    known = {seen.run for seen in history if isinstance(seen, WorkflowAccepted)} | {
        run for runs in fired.values() for run in runs
    }
    for run in {seen.run for seen in history if isinstance(seen, Arrived)} - known:
        yield f"nobody has started {run}, and it does something"


def find_untold(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """The endpoint is told of every end and of every question, each by one event, however often that comes."""
    ends = {
        run: f"response.{stored.status}" for run, stored in contents.runs.items() if stored.is_told and stored.status in ENDED
    }
    ends |= {run: _WORKFLOW_EVENTS[status] for run, status in contents.workflows.items() if status in _WORKFLOW_EVENTS}
    asked = {seen.question: "approval.requested" for seen in history if isinstance(seen, Answered)}
    told: dict[tuple[str, str], set[str]] = defaultdict(set)
    taken: set[tuple[str, str]] = set()
    for seen in history:
        if isinstance(seen, Told):
            told[seen.subject, seen.kind].add(seen.event)
            if seen.is_taken:
                taken.add((seen.subject, seen.kind))
    yield from [f"nobody was told {kind} of {subject}" for subject, kind in sorted((ends | asked).items() - taken)]
    for (subject, kind), events in told.items():
        if len(events) > 1:
            yield f"{kind} of {subject} has the events {', '.join(sorted(events))}"
        if kind != "approval.requested" and ends.get(subject, kind) != kind:
            yield f"{kind} was told of {subject}, for which it is {ends[subject]}"


def find_unindexed(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """A file of which a client was told that it is indexed is found, once."""
    for seen in history:
        if isinstance(seen, Indexed) and (found := contents.found.get(seen.word, ())) != (seen.file,):
            yield f"{seen.word} of {seen.file} is found in {found}"


def find_broken_audit(history: Sequence[Seen], contents: Contents) -> Iterator[str]:
    """The audit verifies."""
    if contents.audit:
        yield contents.audit


RULES: dict[str, Rule] = {
    "unended": find_unended,
    "unanswered": find_unanswered,
    "doubled": find_doubled,
    "repeated": find_repeated,
    "unrecorded": find_unrecorded,
    "late": find_late,
    "torn": find_torn,
    "approvals": find_misused_approvals,
    "overspent": find_overspent,
    "workflows": find_unended_workflows,
    "steps": find_repeated_steps,
    "late steps": find_late_steps,
    "files": find_lost_files,
    "conversations": find_torn_conversations,
    "schedule": find_misfired,
    "events": find_untold,
    "search": find_unindexed,
    "audit": find_broken_audit,
}
