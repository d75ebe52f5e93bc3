"""What is known of models: three sources, each field with its reason, and what was learned only as long as it holds."""

import tracemalloc
from collections.abc import Sequence

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.ports import LearnedProfile, ProfileFact, ProfileValue
from mainspring.providers.chat.provider import Chat
from mainspring.providers.profile_book import LEARNED_SECONDS, MOST_ENTRIES, RELOAD_SECONDS, ProfileBook
from mainspring.providers.profile_documents import KIND, StoredProfiles
from mainspring.providers.profiles import MOST_OF_TOOLS, NEUTRAL, ModelProfile, find_profile, list_values, load_shipped
from mainspring.storage.memory_runs import MemoryStore

HERE = "http://here/v1"


class Documents:
    """Keeps everything in a dict, and counts how often it is read."""

    def __init__(self, *kept: LearnedProfile) -> None:
        self.kept = {(each.backend, each.model): each for each in kept}
        self.reads = 0
        self.is_writing = False

    async def load(self) -> Sequence[LearnedProfile]:
        self.reads += 1
        return list(self.kept.values())

    def save(self, learned: LearnedProfile) -> None:
        self.kept[learned.backend, learned.model] = learned

    async def close(self) -> None: ...


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def open_book(documents: Documents, clock: Clock, backend: str = HERE, **pins: object) -> ProfileBook:
    book = ProfileBook(backend, "here", pins, clock=clock)  # type: ignore[arg-type]
    book.open(documents)
    await book.load()
    return book


async def test_a_later_source_wins_field_by_field_and_each_field_says_why() -> None:
    book = ProfileBook(HERE, "here", {"*": {"blank": "empty"}, "o3": {"window": 8192}})
    book.learn("o3", {"stream_options": False, "temperature": False}, "it was refused")
    profile = book.find("o3")
    assert profile == ModelProfile(blank="empty", window=8192, stream_options=False, temperature=False, top_p=False)
    facts = book.explain("o3").facts
    sources = {field: fact.source for field, fact in facts.items()}
    assert sources == {
        "blank": "operator", "window": "operator", "stream_options": "learned", "temperature": "learned", "top_p": "shipped",
    }  # fmt: skip
    assert facts["top_p"].evidence == "OpenAI's reasoning models know no sampling"
    assert facts["temperature"].evidence == "it was refused"


async def test_what_the_operator_has_set_is_not_learned() -> None:
    documents = Documents()
    book = await open_book(documents, Clock(), m={"stream_tools": True})
    book.learn("m", {"stream_tools": False}, "it lost calls")
    assert book.find("m") == NEUTRAL
    assert not documents.kept


async def test_what_was_learned_is_found_again_and_expires() -> None:
    documents, clock = Documents(), Clock()
    (await open_book(documents, clock)).learn("m", {"stream_options": False}, "refused")
    later = await open_book(documents, clock)
    assert later.find("m") == ModelProfile(stream_options=False)
    fact = later.explain("m").facts["stream_options"]
    assert (fact.source, fact.at, fact.until) == ("learned", 1_000.0, 1_000.0 + LEARNED_SECONDS)
    clock.now += LEARNED_SECONDS
    assert later.find("m") == NEUTRAL
    assert (await open_book(documents, clock)).find("m") == NEUTRAL


async def test_two_backends_with_one_model_do_not_mix() -> None:
    documents, clock = Documents(), Clock()
    here, there = await open_book(documents, clock), await open_book(documents, clock, "http://there/v1")
    here.learn("m", {"stream_options": False}, "refused")
    there.learn("m", {"blank": "empty"}, "refused")
    for url, known in ((HERE, ModelProfile(stream_options=False)), ("http://there/v1", ModelProfile(blank="empty"))):
        assert (await open_book(documents, clock, url)).find("m") == known


@pytest.mark.parametrize("is_met", [True, False])
async def test_another_server_at_the_same_address_is_not_held_to_what_the_last_one_showed(is_met: bool) -> None:
    documents, clock = Documents(), Clock()
    book = await open_book(documents, clock)
    if is_met:
        book.meet("uvicorn")
    book.learn("m", {"stream_options": False}, "refused")
    book.meet("uvicorn")
    later = await open_book(documents, clock)
    later.meet("")
    later.meet("uvicorn/0.30")
    assert later.find("m") == ModelProfile(stream_options=False)
    later.meet("llama.cpp")
    assert later.find("m") == NEUTRAL
    assert not documents.kept[HERE, "m"].facts


async def test_what_was_learned_can_be_forgotten() -> None:
    documents, clock = Documents(), Clock()
    book = await open_book(documents, clock)
    book.learn("m", {"stream_options": False, "blank": "empty"}, "refused")
    assert book.forget("m") == 2
    assert book.forget("m") == 0
    assert book.find("m") == (await open_book(documents, clock)).find("m") == NEUTRAL


async def test_a_store_is_read_once_however_often_a_model_is_asked() -> None:
    documents = Documents()
    book = await open_book(documents, Clock())
    for _ in range(3):
        await book.load()
        book.find("m")
    assert documents.reads == 1


async def test_what_another_process_learns_and_forgets_is_heeded_soon() -> None:
    documents, clock = Documents(), Clock()
    server, doctor = await open_book(documents, clock), await open_book(documents, clock)
    doctor.learn("m", {"stream_options": False}, "refused")
    await server.load()
    assert server.find("m") == NEUTRAL
    clock.now += RELOAD_SECONDS
    documents.is_writing = True  # of the server: the store does not have all that it knows
    await server.load()
    assert server.find("m") == NEUTRAL
    clock.now += RELOAD_SECONDS
    documents.is_writing = False
    await server.load()
    assert server.find("m") == ModelProfile(stream_options=False)
    doctor.forget("m")
    clock.now += RELOAD_SECONDS
    await server.load()
    assert server.find("m") == NEUTRAL
    assert documents.reads == 4


async def test_what_is_learned_while_the_store_is_read_is_not_lost() -> None:
    class Slow(Documents):
        async def load(self) -> Sequence[LearnedProfile]:
            read = await super().load()
            book.learn("m", {"blank": "empty"}, "refused")
            return read

    documents, clock = Slow(), Clock()
    book = ProfileBook(HERE, "here", clock=clock)
    book.open(documents)
    for _ in range(2):
        await book.load()
        assert book.find("m") == ModelProfile(blank="empty")
        clock.now += RELOAD_SECONDS


async def test_what_tools_of_a_caller_have_led_to_holds_for_these_alone() -> None:
    documents, clock = Documents(), Clock()
    book = await open_book(documents, clock)
    for number in range(MOST_OF_TOOLS + 1):
        clock.now += 1
        book.learn("m", {"schemas": "bare"}, "refused", f"{number:x}")
    later = await open_book(documents, clock)
    assert later.find("m") == NEUTRAL
    assert later.find_of_tools("m", lambda: f"{MOST_OF_TOOLS:x}") == {"schemas": "bare"}
    assert later.find_of_tools("m", lambda: "0") == {}
    assert len(documents.kept[HERE, "m"].facts) == MOST_OF_TOOLS


async def test_two_processes_on_one_store_keep_what_both_have_learned() -> None:
    store = MemoryStore()
    books = [ProfileBook(HERE, "here") for _ in range(3)]
    for book in books:
        book.open(StoredProfiles(store))
    for book in books[:2]:
        await book.load()
    for book, field in zip(books, ("stream_options", "temperature"), strict=False):
        book.learn("m", {field: False}, "refused")
        await book.close()
    await books[2].load()
    assert books[2].find("m") == ModelProfile(stream_options=False, temperature=False)
    books[2].forget("m")
    await books[2].close()
    assert not await store.documents(KIND)


async def test_what_another_version_has_learned_and_cannot_be_used_is_left_aside() -> None:
    odd = LearnedProfile(HERE, "m", "", {"blank": ProfileFact("purple", "learned")})
    assert (await open_book(Documents(odd), Clock())).find("m") == NEUTRAL


@pytest.mark.parametrize(
    ("values", "told"), [({"blnk": "empty"}, "did you mean `blank`"), ({"blank": "purple"}, "purple"), ({"window": 0}, "window")]
)
def test_a_field_or_a_value_that_no_profile_has_is_refused(values: dict[str, ProfileValue], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        Chat("http://here/v1", profiles={"m": values})
    assert caught.value.param == "providers"


def test_every_shipped_entry_has_a_pattern_a_link_and_fields_that_there_are() -> None:
    for entry in load_shipped():
        assert entry.server or entry.model
        assert entry.link.startswith("https://")
        # What people are shown is our own word; where it was seen is in the documentation.
        assert not any("://" in fact.evidence for fact in entry.facts.values())
        assert all(fact.value in list_values(field)[1:] for field, fact in entry.facts.items())


def test_a_server_is_known_by_its_host() -> None:
    assert find_profile("gpt-4o", "api.openai.com").limit == "max_completion_tokens"
    assert find_profile("gpt-4o", "gateway.example.org").limit == "max_tokens"


async def test_models_that_there_are_not_take_no_memory_for_good() -> None:
    book = ProfileBook(HERE, "here")
    tracemalloc.start()
    try:
        for number in range(10 * MOST_ENTRIES):
            book.find(f"{number}{'x' * 1000}")
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 5 * MOST_ENTRIES * 1000
