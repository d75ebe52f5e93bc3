"""Yes, no, or something else: what a person answers when they are asked to confirm, and what a conversation keeps until then.

The question itself is the approval that the paused run has left in the store, as everywhere in Mainspring. A thread is the
document that finds it again: one for each person and conversation, with what that person has before their eyes.
"""

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, Literal

from msgspec import Struct

from mainspring.core.items import ApprovalResponse, decode, encode
from mainspring.engine.approvals import continuing_id, make_answer
from mainspring.ports import Document, DocumentStore
from mainspring_tasks.decision_types import PendingAction
from mainspring_tasks.task_references import Seen
from mainspring_tasks.task_tools import Change

Reply = Literal["yes", "no"]

THREAD: Final = "decision_thread"
YES: Final = frozenset(
    {"yes", "y", "yeah", "yep", "yup", "confirm", "do it", "go ahead", "sure", "ok", "okay", "of course", "i am sure", "i'm sure"}
)
NO: Final = frozenset(
    {
        "no", "n", "nope", "cancel", "don't", "dont", "never mind", "nevermind", "stop", "keep it", "keep", "not now",
        "not yet", "leave it", "do not", "forget it",
    }
)  # fmt: skip
# What people add to a yes or a no without meaning anything else.
_POLITE: Final = frozenset({"please", "thanks", "thank you", "delete it", "remove it", "it", "that"})
# What they say of the task, once they have said yes or no.
_ABOUT: Final = frozenset({"and", "delete", "remove", "the", "this", "my", "one", "task", "item", "for good"})
# English that makes no clear yes, whatever a model takes it for: doubts, greetings and looks at the list, and thanks alone.
_DOUBTS: Final = NO.union(
    {
        "but", "bye", "changed", "display", "first", "hello", "hey", "hi", "hm", "hmm", "hold", "instead", "later", "maybe",
        "nah", "never", "not", "perhaps", "show", "thought", "unless", "until", "wait",
    }
)  # fmt: skip
_THANKS: Final = frozenset({"a", "cheers", "lot", "much", "so", "thank", "thanks", "very", "you"})
_LONGEST: Final = 3
_LONGEST_YES: Final = 60
_QUESTION: Final = re.compile("[?\uff1f\u061f\u037e]")


def parse_confirmation(message: str, task: str = "") -> Reply | None:
    """Whether the message confirms or declines the deletion of the task; None if it asks a question or says anything else."""
    if _QUESTION.search(message):
        return None
    words, about = _words(message), _ABOUT.union(_words(task))
    found: set[Reply] = set()
    while words:
        for length in range(min(_LONGEST, len(words)), 0, -1):
            phrase = " ".join(words[:length])
            if phrase in YES or phrase in NO or phrase in _POLITE or (found and phrase in about):
                found |= {"yes"} if phrase in YES else {"no"} if phrase in NO else set()
                words = words[length:]
                break
        else:
            return None
    return found.pop() if len(found) == 1 else None


def is_clear(message: str) -> bool:
    """Whether a message may be the yes that a model takes it for: short, no question, no doubt that we know."""
    is_short = len(message) <= _LONGEST_YES and _QUESTION.search(message) is None
    words = _words(message)
    return is_short and _DOUBTS.isdisjoint(words) and not _THANKS.issuperset(words)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.casefold().replace("\u2019", "'"))


class PendingDeletion(Struct, frozen=True):
    """A deletion that waits for confirmation: what the user was asked, the approval behind it and the run that asks."""

    action: PendingAction
    approval: str
    run: str


class DecisionThread(Struct, frozen=True):
    """State of a user's conversation between two messages. `is_asked` says that the last reply asked for clarification,
    `changes` are what the run `changed_by` did, and nobody has taken back."""

    waiting: PendingDeletion | None = None
    seen: Seen = Seen()
    is_asked: bool = False
    changes: tuple[Change, ...] = ()
    changed_by: str = ""


def is_same(given: PendingAction, waiting: PendingDeletion) -> bool:
    """Whether the pending action that a client sent matches the one on record. Nothing is deleted on a client's word alone."""
    known = waiting.action
    return (given.action_type, given.task_id) == (known.action_type, known.task_id)


class Threads:
    """The threads of a store, one for each user and conversation of a tenant."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def load(self, tenant: str, user: str, conversation: str) -> DecisionThread:
        found = await self._store.get(THREAD, _key(user, conversation), tenant=tenant)
        return DecisionThread() if found is None else decode(found.body, DecisionThread)

    async def save(self, tenant: str, user: str, conversation: str, thread: DecisionThread) -> None:
        await self._store.put([Document(THREAD, _key(user, conversation), encode(thread), tenant)])

    async def refuse(self, waiting: PendingDeletion, tenant: str, user: str, now: float) -> None:
        """Denies the approval, unless it has been answered. That ends the run that asked; the model is not called again."""
        said = ApprovalResponse(waiting.approval, approve=False)
        answer = make_answer(said, continuing_id(waiting.run), tenant, now, by=user, reason="the user did not confirm")
        await self._store.put([answer], if_absent=True)


def is_expired(action: PendingAction, now: float) -> bool:
    return datetime.fromtimestamp(now, UTC) >= action.expires_at


def _key(user: str, conversation: str) -> str:
    return sha256(f"{len(user)}:{user}{conversation}".encode()).hexdigest()
