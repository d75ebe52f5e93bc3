"""A server whose machine is gone says nothing any more, not even that. Packets are lost on the way, by a router of our own."""

import asyncio
from asyncio import to_thread
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.kit.link import linked_port
from tests.kit.network import DATABASE, TESTS, can_have_networks, enter_network, running_network
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE
from tests.store.logs import begin, say

from mainspring.core.errors import StoreError
from mainspring.storage.choose_store import choose_store, open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres.postgres_server import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_have_networks(), reason="no network namespaces")]


@pytest.mark.requirement("M1")
async def test_what_is_written_goes_to_another_host_when_the_first_one_is_gone_without_a_word(
    postgres: Postgres, emptied: Location
) -> None:
    name = urlsplit(emptied.given).path
    # A thread may have a network of its own.
    await asyncio.wait_for(to_thread(asyncio.run, write_while_the_host_goes(postgres.socket, name)), PATIENCE)


async def write_while_the_host_goes(server: Path, name: str) -> None:
    enter_network()
    with running_network() as network:
        cable = network.connect()
        async with linked_port(server, DATABASE) as (_, first), linked_port(server, TESTS) as (_, other):
            cable.end.join()
            hosts = f"{DATABASE}:{first},{TESTS}:{other}"
            place = parse_location(f"postgresql://postgres@{hosts}{name}?connect_timeout=1&tcp_user_timeout=300")
            async with open_store(place) as store:
                await store.append("a", begin("a"))
                cable.hold("questions", "answers")
                async with asyncio.timeout(PATIENCE_SECONDS - 5):
                    await store.append("a", say(1, "x"))
                    assert [record.seq for record in await store.events("a")] == [0, 1]
            async with open_store(place) as store:  # the first of its hosts says nothing from the beginning
                assert [record.seq for record in await store.events("a")] == [0, 1]
            alone = choose_store(parse_location(f"postgresql://postgres@{DATABASE}:{first}{name}?connect_timeout=1"))
            with pytest.raises(StoreError, match="does not answer"):
                await alone.open()
