"""What is known of the models of one backend, from all sources, and what they show while they answer.

Theory of operation. A book is in memory: looking a profile up reads no store and waits for nothing. What was learned is loaded
before the backend is asked, at most every `RELOAD_SECONDS`, so that what another process learns or forgets holds here, too; what
is learned is written when it changes, and nobody waits for that. A fact that was learned holds for `LEARNED_SECONDS`, then the
neutral way is tried again. It holds for this address and this model, and while the server there calls itself what it did. What
tools are like that a caller sends is no trait of a model: a fact that they have led to holds for the same tools only. What the
operator has set is never learned.
"""

import time
from collections.abc import Callable, Mapping
from logging import getLogger
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import asdict

from mainspring.core.errors import InvalidRequest
from mainspring.core.lru_cache import LRUCache
from mainspring.definitions.parsed_file import hint
from mainspring.ports import KnownProfile, LearnedProfile, ProfileDocuments, ProfileFact, ProfileValue
from mainspring.providers.profiles import OF_TOOLS, Facts, ModelProfile, build_profile, drop_old, find_shipped

log = getLogger(__name__)

LEARNED_SECONDS: Final = 30 * 86_400.0
EVERY_MODEL: Final = "*"
MOST_ENTRIES: Final = 1024
RELOAD_SECONDS: Final = 5.0
Pins = Mapping[str, Mapping[str, ProfileValue]]


class _Entry(NamedTuple):
    profile: ModelProfile
    facts: Facts
    until: float
    of_tools: Mapping[str, Mapping[str, ProfileValue]]
    """What holds for some tools only, by their digest."""


class ProfileBook:
    """The profiles of the models at `backend`, an address. `pins` is what the operator has set, by model, `*` for all of them.

    Raises `InvalidRequest` for a field or a value that no profile has.
    """

    def __init__(self, backend: str, host: str, pins: Pins | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.backend, self._host, self._server, self._clock = backend, host, "", clock
        self._pins = {
            model: {field: ProfileFact(value, "operator", "set in the settings") for field, value in values.items()}
            for model, values in (pins or {}).items()
        }
        for model, facts in self._pins.items():
            _check_pins(model, facts)
        self._learned: dict[str, dict[str, ProfileFact]] = {}
        # Anybody may ask for models that there are not.
        self._entries: LRUCache[str, _Entry] = LRUCache(MOST_ENTRIES)
        self._documents: ProfileDocuments | None = None
        self._due, self._changes = inf, 0

    def open(self, documents: ProfileDocuments) -> None:
        """What is learned from now on is kept there."""
        self._documents, self._due = documents, -inf

    @property
    def is_due(self) -> bool:
        """What was learned should be read again."""
        return self._clock() >= self._due

    async def close(self) -> None:
        if self._documents is not None:
            await self._documents.close()

    async def load(self) -> None:
        """Reads what was learned, here before or by other processes, unless that was done just now."""
        if self._documents is None or not self.is_due:
            return
        is_first, self._due = self._due == -inf, self._clock() + RELOAD_SECONDS
        changes = self._changes
        stored = None if self._documents.is_writing else await self._documents.load()
        if stored is None or (changes != self._changes and not is_first):
            return
        known = {each.model: each for each in stored if each.backend == self.backend}
        if is_first:
            self._server = self._server or next((each.server for each in known.values()), "")
            learned = {model: {**each.facts, **self._learned.get(model, {})} for model, each in known.items()}
            learned = {**self._learned, **learned}
        else:
            learned = {model: each.facts for model, each in known.items() if each.server in ("", self._server)}
        if learned != self._learned:
            self._learned = learned
            self._entries.clear()

    def find(self, model: str) -> ModelProfile:
        """The profile in force."""
        return self._find_entry(model).profile

    def find_of_tools(self, model: str, digest: Callable[[], str]) -> Mapping[str, ProfileValue]:
        """The fields that hold for the tools with this digest, beside the profile."""
        known = self._find_entry(model).of_tools
        return known.get(digest(), {}) if known else {}

    def explain(self, model: str) -> KnownProfile:
        entry = self._find_entry(model)
        return KnownProfile(model, self.backend, self._server, asdict(entry.profile), dict(entry.facts))

    def can_learn(self, model: str, field: str) -> bool:
        return not any(field in self._pins.get(name, ()) for name in (EVERY_MODEL, model))

    def learn(self, model: str, values: Mapping[str, ProfileValue], evidence: str, digest: str = "") -> None:
        """Keeps what the backend has shown, but for what the operator has set. `evidence` has nothing in it that was said. With
        a `digest` it holds for these tools only."""
        now = self._clock()
        fresh = {
            f"{field}{OF_TOOLS}{digest}" if digest else field: ProfileFact(value, "learned", evidence, now, now + LEARNED_SECONDS)
            for field, value in values.items()
            if self.can_learn(model, field)
        }
        if fresh:
            log.warning("model %s at %s: %s, because %s", model, self.backend, _tell(fresh), evidence)
            self._keep(model, {**self._learned.get(model, {}), **fresh})

    def forget(self, model: str) -> int:
        """Forgets what was learned of a model. Returns of how many fields."""
        count = len(self._learned.get(model, ()))
        if count:
            self._keep(model, {})
        return count

    def meet(self, server: str) -> None:
        """The backend has answered as this server. What another one has shown there does not hold for it."""
        name = server.partition("/")[0].strip()[:_MOST_NAME]
        if not name or name == self._server:
            return
        was, self._server = self._server, name
        self._entries.clear()
        for model, facts in [(model, facts) for model, facts in self._learned.items() if facts]:
            if was:
                log.warning("what was learned of %s is forgotten: another server answers at %s", model, self.backend)
            # What was learned from the first answer has no server yet.
            self._keep(model, {} if was else facts)

    def _find_entry(self, model: str) -> _Entry:
        entry = self._entries.get(model)
        if entry is None or entry.until <= self._clock():
            entry = self._entries[model] = self._gather(model)
        return entry

    def _gather(self, model: str) -> _Entry:
        now = self._clock()
        learned = {field: fact for field, fact in self._learned.get(model, {}).items() if fact.until is None or now < fact.until}
        shipped = find_shipped(model, f"{self._host} {self._server}")
        facts = {**shipped, **learned, **self._pins.get(EVERY_MODEL, {}), **self._pins.get(model, {})}
        until = min([fact.until for fact in facts.values() if fact.until is not None], default=inf)
        of_tools: dict[str, dict[str, ProfileValue]] = {}
        try:
            for name, fact in learned.items():
                field, _, digest = name.partition(OF_TOOLS)
                if digest:
                    build_profile({field: fact})
                    of_tools.setdefault(digest, {})[field] = fact.value
            return _Entry(
                build_profile({name: fact for name, fact in facts.items() if OF_TOOLS not in name}), facts, until, of_tools
            )
        except ValueError as error:  # written by another version
            log.warning("what was learned of %s at %s cannot be used: %s", model, self.backend, error)
            self._learned[model] = {}
            return self._gather(model)

    def _keep(self, model: str, facts: dict[str, ProfileFact]) -> None:
        now = self._clock()
        self._changes += 1
        self._learned[model] = drop_old(facts, now)
        self._entries.pop(model)
        if self._documents is not None:
            self._documents.save(LearnedProfile(self.backend, model, self._server, self._learned[model]))


def _check_pins(model: str, facts: Facts) -> None:
    for field in facts:
        if field not in ModelProfile.__struct_fields__:
            told = hint(field, ModelProfile.__struct_fields__)
            raise InvalidRequest(f"the profile of `{model}` has no field `{field}`; {told}", param="providers")
    try:
        build_profile(facts)
    except ValueError as error:
        raise InvalidRequest(f"the profile of `{model}`: {error}; docs/models.md lists the values", param="providers") from error


def _tell(facts: Facts) -> str:
    return ", ".join([f"{field} = {fact.value}" for field, fact in facts.items()])


_MOST_NAME: Final = 100
