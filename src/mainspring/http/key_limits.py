"""Limits of single API keys: requests and tokens in a minute, and requests at a time.

Theory of operation. A key with limits has one shared limit (`SharedLimits`), so that they hold for all processes on a store. A
request counts when it is admitted, its tokens when its run has ended, wherever that is driven. One task for each key in use
speaks to the store: it asks for as many requests as wait to be admitted, says how many are under way, and notes tokens. If the
store fails, those that wait are told so; tokens are kept, and noted when it is back.
"""

from asyncio import CancelledError, Event, Future, Task, get_running_loop, wait
from collections.abc import Awaitable, Callable, Sequence
from logging import getLogger
from typing import Annotated, Final

from anyio import current_time, move_on_after
from msgspec import Meta, Struct

from mainspring.core.errors import StoreError
from mainspring.core.items import decode
from mainspring.core.spec import pick_least
from mainspring.ports import (
    LIMIT_SECONDS,
    DocumentStore,
    EndedRun,
    Grant,
    RateWindow,
    RunObserver,
    SharedLimit,
    SharedLimits,
    WindowRoom,
)

log = getLogger(__name__)

MINUTE: Final = 60.0
MOST_KEYS: Final = 10_000
# How long a request beyond those at a time waits for word of other processes that one of theirs has just ended.
GRACE_SECONDS: Final = 0.25
ASK_AGAIN_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 2.0
KIND: Final = "api_key"
KEY_SUBJECT: Final = "key:"
Count = Annotated[int, Meta(ge=1)]
Headers = tuple[tuple[bytes, bytes], ...]
FindLimits = Callable[[str], Awaitable["KeyLimits"]]


class KeyLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a key may use, at all processes on a database together; None is no limit."""

    requests_per_minute: Count | None = None
    """How many requests it may send in a minute."""
    tokens_per_minute: Count | None = None
    """How many tokens its runs may use in a minute, what is read and what is said. A request is refused once they are used up."""
    requests_at_once: Count | None = None
    """How many requests it may have under way, open streams among them."""

    def complete(self, usual: "KeyLimits", most_at_once: int | None = None) -> "KeyLimits":
        """These limits, and the usual ones where these say nothing, with no more than `most_at_once` requests at once."""
        if most_at_once is None and (self == usual or usual == NO_LIMITS):
            return NO_LIMITS if self == NO_LIMITS else self
        return KeyLimits(
            self.requests_per_minute or usual.requests_per_minute,
            self.tokens_per_minute or usual.tokens_per_minute,
            pick_least(self.requests_at_once or usual.requests_at_once, most_at_once),
        )

    def find_excess(self, most: "KeyLimits") -> str | None:
        """The limit that lets a key use more than another may; None if there is none."""
        pairs = {
            "requests_per_minute": (self.requests_per_minute, most.requests_per_minute),
            "tokens_per_minute": (self.tokens_per_minute, most.tokens_per_minute),
            "requests_at_once": (self.requests_at_once, most.requests_at_once),
        }
        return next((name for name, (own, other) in pairs.items() if pick_least(own, other) != own), None)


NO_LIMITS: Final = KeyLimits()


class _LimitedKey(Struct, frozen=True):
    """What is read of a key here."""

    limits: KeyLimits = NO_LIMITS


async def find_key_limits(store: DocumentStore, usual: KeyLimits, most_at_once: int | None, key: str) -> KeyLimits:
    """The limits of the key that is this subject of a run. Raises `StoreError`."""
    found = await store.get(KIND, key.removeprefix(KEY_SUBJECT))
    return NO_LIMITS if found is None else decode(found.body, _LimitedKey).limits.complete(usual, most_at_once)


class KeyAdmission(Struct, frozen=True):
    """What the answer to a request says of the limits. A request beyond one has a `refusal` with its `code`, and `seconds` to
    wait."""

    headers: Headers = ()
    refusal: str = ""
    code: str = ""
    seconds: float = 0.0


class KeyUse(RunObserver):
    """What each key uses of its limits. `find_limits` tells those of a key whose run has ended here, and that has asked for
    nothing here."""

    name = "key limits"

    def __init__(self, shared: SharedLimits, find_limits: FindLimits) -> None:
        self._shared, self._find_limits = shared, find_limits
        self._meters: dict[str, KeyMeter] = {}

    def open_meter(self, key: str, limits: "KeyLimits | None" = None) -> "KeyMeter":
        if (meter := self._meters.get(key)) is None:
            if len(self._meters) >= MOST_KEYS:
                self._meters = {key: meter for key, meter in self._meters.items() if not meter.is_idle}
            meter = self._meters[key] = KeyMeter(key, self._shared, self._find_limits)
        meter.limits = meter.limits or limits
        return meter

    def run_ended(self, ended: EndedRun) -> None:
        key, tokens = ended.run.spec.caller.subject, ended.run.usage.total_tokens
        if tokens and key.startswith(KEY_SUBJECT):
            self.open_meter(key).note(tokens)

    async def close(self) -> None:
        """Tells the store what it does not know yet, if it takes that soon."""
        tasks = [task for meter in self._meters.values() if (task := meter.stop()) is not None]
        if tasks:
            _, late = await wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()


class _Waiting(Struct, frozen=True, eq=False):
    """A request that asks to be admitted. A message comes over a connection that is under way already."""

    admitted: "Future[KeyAdmission]"
    is_message: bool
    until: float


class KeyMeter:
    """What one key uses at this process, and the task that tells the store."""

    def __init__(self, key: str, shared: SharedLimits, find_limits: FindLimits) -> None:
        self.limits: KeyLimits | None = None
        self._key, self._shared, self._find_limits = key, shared, find_limits
        self._limit: SharedLimit | None = None
        self._waiting: list[_Waiting] = []
        self._under_way = self._tokens = 0
        self._changed = Event()
        self._task: Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._task is None or self._task.done()

    async def admit(self, *, is_message: bool = False) -> KeyAdmission:
        """Counts a request, unless a limit is reached. One that is admitted is under way until `leave` is called; a message on a
        connection is not. Raises `StoreError`."""
        place = _Waiting(get_running_loop().create_future(), is_message, current_time() + GRACE_SECONDS)
        self._waiting.append(place)
        self._tell_store()
        try:
            return await place.admitted
        except CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif not (is_message or place.admitted.cancelled() or place.admitted.exception() or place.admitted.result().refusal):
                self.leave()  # it was admitted a moment ago
            raise

    def leave(self) -> None:
        if self._under_way:
            self._under_way -= 1
            self._tell_store()

    def note(self, tokens: int) -> None:
        if self.limits is None or self.limits.tokens_per_minute is not None:
            self._tokens += tokens
            self._tell_store()

    def stop(self) -> "Task[None] | None":
        """The task that tells the store the last of it, if there is something to tell."""
        self._under_way = 0
        self._changed.set()
        return None if self.is_idle else self._task

    def _tell_store(self) -> None:
        self._changed.set()
        if self.is_idle:
            self._changed = Event()
            self._task = get_running_loop().create_task(self._update(self._changed))

    async def _update(self, changed: Event) -> None:
        """Tells the store what is used here, and has requests admitted, until there is nothing to tell."""
        told, has_failed = 0, False
        while True:
            changed.clear()
            self._waiting = [each for each in self._waiting if not each.admitted.cancelled()]
            asked, tokens, pause = list(self._waiting), self._tokens, LIMIT_SECONDS / 3
            try:
                limit = await self._open_limit()
                if self._limits_tokens or asked or self._under_way or told:
                    in_use = max(self._under_way - sum([each.is_message for each in asked]), 0)
                    grant = await limit.update(in_use, len(asked), tokens if self._limits_tokens else 0)
                    told = in_use + grant.count if self._limits_places else 0
                    self._answer(asked, grant)
                self._tokens -= tokens
                has_failed = False
            except Exception as error:  # whatever the store raises: nobody waits for a task that has ended
                if not has_failed:
                    cause = None if isinstance(error, StoreError) else error
                    told_of = "what the API key `%s` uses is noted later, since the store fails: %s"
                    log.warning(told_of, self._key, error, exc_info=cause)
                told, has_failed, pause = -1, True, RETRY_SECONDS
                self._fail(asked, error if isinstance(error, StoreError) else StoreError("the limits of the API key are unknown"))
            if not (self._waiting or self._under_way or self._tokens or told):
                return
            if has_failed or told == self._under_way:
                with move_on_after(ASK_AGAIN_SECONDS if self._waiting else pause):
                    await changed.wait()

    async def _open_limit(self) -> SharedLimit:
        if self._limit is None:
            self.limits = limits = self.limits or await self._find_limits(self._key)
            self._limit = self._shared.open_limit(
                f"api {self._key}",
                most_at_once=limits.requests_at_once,
                windows=[] if limits.requests_per_minute is None else [RateWindow(limits.requests_per_minute, MINUTE)],
                notes=None if limits.tokens_per_minute is None else RateWindow(limits.tokens_per_minute, MINUTE),
                waits=False,
            )
        return self._limit

    @property
    def _limits_places(self) -> bool:
        return self.limits is not None and self.limits.requests_at_once is not None

    @property
    def _limits_tokens(self) -> bool:
        return self.limits is not None and self.limits.tokens_per_minute is not None

    def _answer(self, asked: Sequence[_Waiting], grant: Grant) -> None:
        """Admits as many of those that asked as permits were got. Refuses the others, unless there may be more in a moment."""
        assert self.limits is not None
        may_come = grant.window is None and self._under_way < (self.limits.requests_at_once or 0)
        left, now = grant.count, current_time()
        for each in sorted(asked, key=lambda each: not each.is_message):
            if each not in self._waiting or each.admitted.cancelled():  # whoever asked has left
                continue
            if left:
                left -= 1
                self._under_way += self._limits_places and not each.is_message
                self._settle(each, KeyAdmission(_render_rooms(self.limits, grant.rooms)))
            elif not may_come or now >= each.until:
                self._settle(each, _refuse(self.limits, grant))

    def _settle(self, waiting: _Waiting, admission: KeyAdmission) -> None:
        self._waiting.remove(waiting)
        waiting.admitted.set_result(admission)

    def _fail(self, asked: Sequence[_Waiting], error: StoreError) -> None:
        for each in asked:
            if each in self._waiting and not each.admitted.cancelled():
                self._waiting.remove(each)
                each.admitted.set_exception(error)


def _refuse(limits: KeyLimits, grant: Grant) -> KeyAdmission:
    headers = _render_rooms(limits, grant.rooms)
    if grant.window is None:
        told = f"this API key has {limits.requests_at_once} requests under way; wait for one to end"
        return KeyAdmission(headers, told, "too_many_requests", 1.0)
    is_tokens = limits.requests_per_minute is None or (len(grant.rooms) > 1 and grant.rooms[0].left > 0)
    what = f"{limits.tokens_per_minute} tokens" if is_tokens else f"{limits.requests_per_minute} requests"
    told = f"this API key has used its {what} of a minute; try again in {grant.wait:.0f} s"
    return KeyAdmission(headers, told, "rate_limit_exceeded", grant.wait)


def _render_rooms(limits: KeyLimits, rooms: Sequence[WindowRoom]) -> Headers:
    """The headers that clients of the OpenAI API know."""
    windows = (("requests", limits.requests_per_minute), ("tokens", limits.tokens_per_minute))
    headers: Headers = ()
    for (what, most), room in zip([window for window in windows if window[1] is not None], rooms, strict=True):
        values = {"limit": str(most), "remaining": str(room.left), "reset": f"{room.seconds:.0f}s"}
        headers += tuple([(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()])
    return headers
