"""Three servers and two workers on one database, hurt in every way: what they promise holds. `./check cluster` is longer."""

from collections.abc import Iterator

import pytest
from tests.cluster.suite import run_suite
from tests.kit.postgres import Postgres, running

pytestmark = pytest.mark.slow


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """One that may be stopped while other tests use theirs."""
    with running() as server:
        yield server


@pytest.mark.requirement("M1", "M3", "M7")
async def test_what_is_promised_holds_whatever_is_killed_frozen_and_cut_off(own_postgres: Postgres) -> None:
    report = await run_suite(own_postgres, "short", most=26, seconds=60)
    print(report)
    assert not report.breaches, str(report)


@pytest.mark.requirement("M2")
async def test_it_holds_for_processes_on_one_file() -> None:
    report = await run_suite(None, "short", most=4, seconds=4, kind="file", clients_at_once=3)
    print(report)
    assert not report.breaches, str(report)


@pytest.mark.requirement("M2")
async def test_it_holds_with_temporal_as_the_dispatcher(own_postgres: Postgres) -> None:
    report = await run_suite(own_postgres, "short", most=4, seconds=4, kind="temporal", clients_at_once=3)
    print(report)
    assert not report.breaches, str(report)
