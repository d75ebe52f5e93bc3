"""Recordings: what a backend answered is kept as it came, without secrets, and plays again to the same events without it."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from anyio.to_thread import run_sync
from tests.cli.command import Shell
from tests.providers.backend import ASKED, DONE, Backend, chunk, events_of, serving, sse, usage_chunk

from mainspring.core.errors import InvalidRequest, RateLimited, Refused, Unauthorized, Unavailable
from mainspring.core.ids import counting
from mainspring.core.items import user
from mainspring.core.model_request import ModelRequest
from mainspring.ports import RecordedRequest
from mainspring.providers.cassette import Player, Recorder, StableIds
from mainspring.providers.chat.provider import Chat

KEY = "sk-local-0123456789"
PIECES = (
    sse(chunk({"role": "assistant", "content": ""}), chunk({"content": "Half p"})),
    sse(chunk({"content": "ast é"}))[:40],
    sse(chunk({"content": "ast é"}))[40:] + sse(chunk(finish="stop"), usage_chunk(9, 4)),
    DONE,
)


def chat(url: str, tape: Recorder | Player) -> Chat:
    return Chat(url, api_key=KEY, new_id=counting(), tape=tape)


async def test_an_answer_plays_again_piece_by_piece(backend: Backend, tmp_path: Path) -> None:
    backend.replies(*PIECES)
    file = tmp_path / "tape.jsonl"
    with closing(Recorder(file)) as tape:
        live = chat(backend.url, tape)
        heard = await events_of(live)
        await live.close()
    played = chat("http://127.0.0.1:9/v1", Player(file))
    assert await events_of(played) == heard
    await played.close()
    assert KEY not in file.read_text()
    assert "127.0.0.1" not in file.read_text()


async def test_each_recorded_answer_is_given_once_and_to_the_same_question_only(backend: Backend, tmp_path: Path) -> None:
    backend.replies(*PIECES)
    file = tmp_path / "tape.jsonl"
    with closing(Recorder(file)) as tape:
        live = chat(backend.url, tape)
        await events_of(live)
        await live.close()
    played = chat(backend.url, Player(file))
    other = ModelRequest("resp_1", "clockwork", (user("What day is it?"),))
    with pytest.raises(Refused, match=r"has no answer to POST chat/completions with this body: `messages` was .* and is .*day"):
        await events_of(played, other)
    await events_of(played)
    with pytest.raises(Refused, match=r"\(left\); record it again"):
        await events_of(played)
    await played.close()


async def test_failures_play_again_too(backend: Backend, tmp_path: Path) -> None:
    backend.replies(b'{"error": {"message": "slow down"}}', status=429, mime="application/json", headers={"Retry-After": "7"})
    backend.replies(PIECES[0], ending="abort")
    backend.release.set()
    file = tmp_path / "tape.jsonl"
    with closing(Recorder(file)) as tape:
        live = chat(backend.url, tape)
        with pytest.raises(RateLimited):
            await events_of(live)
        with pytest.raises(Unavailable):
            await events_of(live)
        await live.close()
    played = chat(backend.url, Player(file))
    with pytest.raises(RateLimited, match="slow down") as limited:
        await events_of(played)
    assert limited.value.retry_after == 7
    with pytest.raises(Unavailable, match="breaks off here"):
        await events_of(played)
    await played.close()


async def test_a_key_that_gets_into_the_question_is_not_kept(backend: Backend, tmp_path: Path) -> None:
    asked = {**ASKED, "messages": [{"role": "user", "content": f"My key is {KEY}."}]}
    backend.replies(*PIECES, expect=asked)
    file = tmp_path / "tape.jsonl"
    request = ModelRequest("resp_1", "clockwork", (user(f"My key is {KEY}."),))
    with closing(Recorder(file)) as tape:
        live = chat(backend.url, tape)
        heard = await events_of(live, request)
        await live.close()
    assert KEY not in file.read_text()
    played = chat(backend.url, Player(file))
    assert await events_of(played, request) == heard
    await played.close()


@pytest.mark.parametrize(
    "content", ["nonsense\n", "[]\n", '{"method": "GET"}\n', '{"method":"GET","path":"x","status":200,"version":9}\n']
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tape.jsonl").write_text(content)
    with pytest.raises(InvalidRequest, match=r"recording|recorded"):
        Player(tmp_path / "tape.jsonl")


def test_a_file_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read the recording"):
        Player(tmp_path / "none.jsonl")


@pytest.mark.parametrize("file", ["none/tape.jsonl", "/dev/full"])
async def test_without_a_recording_there_is_no_answer(backend: Backend, tmp_path: Path, file: str) -> None:
    if file == "/dev/full":
        backend.replies(*PIECES)
    with closing(Recorder(tmp_path / file)) as tape:
        live = chat(backend.url, tape)
        with pytest.raises(Refused, match="cannot record to"):
            await events_of(live)
        await live.close()


async def test_a_file_is_touched_only_once_there_is_something_to_record(tmp_path: Path) -> None:
    kept = tmp_path / "tape.jsonl"
    kept.write_text("precious")
    with closing(Recorder(kept)):
        pass
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("key", [KEY, 'sk-"quoted"\\-0123456789'])
async def test_a_key_that_the_backend_says_back_is_not_kept(backend: Backend, tmp_path: Path, key: str) -> None:
    told = msgspec.json.encode({"error": {"message": f"Incorrect API key provided: {key}."}})
    said = sse(chunk({"content": f"Your key is {key}, is it not?"}), chunk(finish="stop"), usage_chunk(9, 4)) + DONE
    backend.replies(told, status=401, mime="application/json")
    backend.replies(said[:120], said[120:130], said[130:])
    file = tmp_path / "tape.jsonl"
    with closing(Recorder(file)) as tape:
        live = Chat(backend.url, api_key=key, new_id=counting(), tape=tape)
        with pytest.raises(Unauthorized):
            await events_of(live)
        await events_of(live)
        await live.close()
    kept = file.read_text()
    assert "0123456789" not in kept
    assert "Incorrect API key provided: ****" in kept
    assert file.stat().st_mode & 0o077 == 0
    assert [len(piece) for piece in msgspec.json.decode(kept.splitlines()[1])["pieces"]]


def test_made_up_ids_are_the_same_for_the_same_question() -> None:
    first, again, other = StableIds(), StableIds(), StableIds()
    for ids, body in ((first, b"{}"), (again, b"{}"), (other, b"[]")):
        ids.about(RecordedRequest("POST", "chat/completions", body))
    made = [first.new_id("call"), first.new_id("call")]
    assert made == [again.new_id("call"), again.new_id("call")]
    assert len({*made, other.new_id("call")}) == 3


async def test_a_run_is_recorded_and_replayed_by_the_command(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    order = ("run", "What time is it?", "--model", "clockwork")
    async with serving() as backend:
        backend.replies(*PIECES)
        taped = (*order, "--base-url", backend.url, "--record", "tape.jsonl")
        live = await run_sync(lambda: shell.run(*taped, env={"OPENAI_API_KEY": KEY}))
        backend.check()
    again = await run_sync(lambda: shell.run(*order, "--base-url", backend.url, "--replay", "tape.jsonl"))
    assert (live.code, again.code) == (0, 0), live.err + again.err
    assert "Half past é" in live.out
    assert again.out.rpartition("tokens")[0] == live.out.rpartition("tokens")[0]
