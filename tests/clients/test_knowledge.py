"""Every method that OpenAI's client has for files, uploads, vector stores, embeddings and conversations, with strict types."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.server.hosting import hosted

from mainspring import Engine
from mainspring.app.server import server
from mainspring.providers.scripted import Scripted, say
from mainspring.storage.file_folder import FileFolder


class LengthEmbedder:
    model = "lengths"

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        return [(float(len(text)), 1.0, -1.0) for text in texts]

    async def close(self) -> None:
        return


async def test_every_method_of_the_client_for_knowledge_works(tmp_path: Path) -> None:
    engine = Engine(
        Scripted(say("Nine.")), database=tmp_path / "runs.db", files=FileFolder(tmp_path / "files"), embedder=LengthEmbedder()
    )
    async with (
        hosted(server(engine)) as url,
        AsyncOpenAI(base_url=url, api_key="x", max_retries=0, _strict_response_validation=True, timeout=120) as client,
    ):
        await walk_files(client)
        await walk_uploads(client, tmp_path)
        await walk_stores(client)
        await walk_batches(client)
        await walk_conversations(client)


async def walk_files(client: AsyncOpenAI) -> None:
    made = await client.files.create(
        file=("a.txt", b"Doors open at nine."), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (made.object, made.filename, made.bytes, made.purpose) == ("file", "a.txt", 19, "user_data")
    assert made.expires_at is not None
    assert (await client.files.wait_for_processing(made.id)).id == made.id
    assert await client.files.retrieve(made.id) == made
    other = await client.files.create(file=io.BytesIO(b"x"), purpose="assistants")
    assert [file.id async for file in client.files.list(limit=1)] == [other.id, made.id]
    assert [file.id async for file in client.files.list(order="asc", purpose="user_data")] == [made.id]
    assert (await client.files.content(made.id)).content == b"Doors open at nine."
    async with client.files.with_streaming_response.content(made.id) as streamed:
        assert await streamed.read() == b"Doors open at nine."
    gone = await client.files.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "file")
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)
    await client.files.delete(other.id)
    # The client asks for base64 unless it is told otherwise, and holds that against the type of what it makes of it.
    async with AsyncOpenAI(base_url=client.base_url, api_key="x") as lenient:
        made_vectors = await lenient.embeddings.create(model="lengths", input=["a", "abc"])
    assert [each.embedding for each in made_vectors.data] == [[1.0, 1.0, -1.0], [3.0, 1.0, -1.0]]
    plain = await client.embeddings.create(model="lengths", input="abcd", encoding_format="float", user="me")
    assert (plain.data[0].embedding[0], plain.usage.total_tokens > 0) == (4.0, True)


async def walk_uploads(client: AsyncOpenAI, folder: Path) -> None:
    begun = await client.uploads.create(bytes=6, filename="b.txt", mime_type="text/plain", purpose="assistants")
    assert (begun.status, begun.object) == ("pending", "upload")
    second = await client.uploads.parts.create(begun.id, data=b"def")
    first = await client.uploads.parts.create(begun.id, data=b"abc")
    assert (first.object, first.upload_id) == ("upload.part", begun.id)
    done = await client.uploads.complete(begun.id, part_ids=[first.id, second.id])
    assert (done.status, done.file is not None) == ("completed", True)
    assert done.file is not None
    assert (await client.files.content(done.file.id)).text == "abcdef"
    dropped = await client.uploads.create(bytes=6, filename="c.txt", mime_type="text/plain", purpose="assistants")
    assert (await client.uploads.cancel(dropped.id)).status == "cancelled"
    (folder / "big.txt").write_bytes(b"0123456789" * 10)
    chunked = await client.uploads.upload_file_chunked(
        file=folder / "big.txt", mime_type="text/plain", purpose="assistants", part_size=30
    )
    assert chunked.file is not None
    assert (chunked.status, chunked.file.bytes) == ("completed", 100)
    for id in (done.file.id, chunked.file.id):
        await client.files.delete(id)


async def walk_stores(client: AsyncOpenAI) -> None:
    stores = client.vector_stores
    file = await client.files.create(file=("hours.md", b"# Hours\nThe office opens at nine."), purpose="assistants")
    made = await stores.create(name="office", metadata={"a": "b"}, expires_after={"anchor": "last_active_at", "days": 3})
    assert (made.object, made.name, made.expires_after is not None, made.file_counts.total) == ("vector_store", "office", True, 0)
    assert (await stores.retrieve(made.id)).id == made.id
    changed = await stores.update(made.id, name="new", expires_after=None)
    assert (changed.name, changed.metadata) == ("new", {"a": "b"})
    assert [store.id async for store in stores.list(limit=1)] == [made.id]
    attributes: dict[str, str | float | bool] = {"city": "Lyon", "floor": 2, "open": True}
    entry = await stores.files.create(made.id, file_id=file.id, attributes=attributes)
    assert entry.object == "vector_store.file"
    polled = await stores.files.poll(file.id, vector_store_id=made.id, poll_interval_ms=50)
    assert (polled.status, polled.last_error, polled.attributes) == ("completed", None, attributes)
    assert polled.usage_bytes > 0
    assert (await stores.files.retrieve(file.id, vector_store_id=made.id)).status == "completed"
    moved = await stores.files.update(file.id, vector_store_id=made.id, attributes={"city": "Paris"})
    assert moved.attributes == {"city": "Paris"}
    assert [each.id async for each in stores.files.list(made.id, filter="completed", order="asc")] == [file.id]
    content = [part async for part in stores.files.content(file.id, vector_store_id=made.id)]
    assert "opens at nine" in str(content[0].text)
    wanted: Any = {"type": "and", "filters": [{"type": "eq", "key": "city", "value": "Paris"}]}
    found = [
        each
        async for each in stores.search(
            made.id, query="office", max_num_results=3, filters=wanted, ranking_options={"score_threshold": 0.0}
        )
    ]
    assert [(each.file_id, each.filename, each.attributes) for each in found] == [(file.id, "hours.md", {"city": "Paris"})]
    again = await stores.files.create_and_poll(file.id, vector_store_id=made.id, poll_interval_ms=50)
    assert again.status == "completed"
    sent = await stores.files.upload(vector_store_id=made.id, file=("up.txt", b"Uploaded at once."))
    assert sent.vector_store_id == made.id
    ready = await stores.files.upload_and_poll(
        vector_store_id=made.id, file=("up2.txt", b"Uploaded and waited for."), poll_interval_ms=50
    )
    assert ready.status == "completed"
    out = await stores.files.delete(file.id, vector_store_id=made.id)
    assert (out.deleted, out.object) == (True, "vector_store.file.deleted")
    gone = await stores.delete(made.id)
    assert (gone.deleted, gone.object) == (True, "vector_store.deleted")


async def walk_batches(client: AsyncOpenAI) -> None:
    batches = client.vector_stores.file_batches
    store = await client.vector_stores.create(name="batches")
    ids = [(await client.files.create(file=(f"{n}.txt", f"text {n}".encode()), purpose="assistants")).id for n in range(3)]
    made = await batches.create(store.id, file_ids=ids[:2], attributes={"n": 1}, chunking_strategy={"type": "auto"})
    assert made.object == "vector_store.files_batch"
    done = await batches.poll(made.id, vector_store_id=store.id, poll_interval_ms=50)
    assert (done.status, done.file_counts.completed) == ("completed", 2)
    assert (await batches.retrieve(made.id, vector_store_id=store.id)).status == "completed"
    listed = [file.id async for file in batches.list_files(made.id, vector_store_id=store.id, limit=1)]
    assert sorted(listed) == sorted(ids[:2])
    static: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10}}
    one = await batches.create_and_poll(store.id, file_ids=ids[2:], chunking_strategy=static, poll_interval_ms=50)
    assert one.status == "completed"
    more = await batches.upload_and_poll(store.id, files=[("x.txt", b"one"), ("y.txt", b"two")], poll_interval_ms=50)
    assert (more.status, more.file_counts.total) == ("completed", 2)
    each: Any = [{"file_id": ids[0], "attributes": {"k": "v"}}]
    late = await batches.create(store.id, files=each)
    cancelled = await batches.cancel(late.id, vector_store_id=store.id)
    assert cancelled.status in ("cancelled", "completed", "in_progress")
    await client.vector_stores.delete(store.id)


async def walk_conversations(client: AsyncOpenAI) -> None:
    hello: Any = {"type": "message", "role": "user", "content": "Hello."}
    made = await client.conversations.create(items=[hello], metadata={"topic": "x"})
    assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "x"}
    assert (await client.conversations.update(made.id, metadata={"topic": "y"})).metadata == {"topic": "y"}
    again: Any = {**hello, "content": "Again."}
    added = await client.conversations.items.create(made.id, items=[hello, again])
    assert len(added.data) == 2
    answer = await client.responses.create(model="scripted", input="When?", conversation=made.id)
    assert answer.output_text == "Nine."
    items = [item async for item in client.conversations.items.list(made.id, limit=2, order="asc")]
    assert len(items) == 5
    first = items[0].id
    assert first is not None
    assert (await client.conversations.items.retrieve(first, conversation_id=made.id)).type == "message"
    assert (await client.conversations.items.delete(first, conversation_id=made.id)).id == made.id
    gone = await client.conversations.delete(made.id)
    assert (gone.deleted, gone.object) == (True, "conversation.deleted")
