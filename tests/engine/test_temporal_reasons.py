"""What is said when Temporal cannot be reached; what needs its server is in `tests/server/test_temporal.py`."""

import pytest

from mainspring.core.errors import DispatcherUnavailable
from mainspring.engine.temporal.settings import TemporalSettings
from mainspring.engine.temporal.temporal_dispatcher import TemporalDispatcher, say_why
from mainspring.storage.memory_runs import MemoryStore


async def test_a_server_that_cannot_be_reached_is_told_in_a_line_with_the_next_step() -> None:
    dispatcher = TemporalDispatcher(MemoryStore(), TemporalSettings(address="127.0.0.1:1"))
    with pytest.raises(DispatcherUnavailable) as told:
        await dispatcher.submit("r1")
    assert told.value.message == (
        "Temporal at 127.0.0.1:1 cannot be used: Connection refused; check `address` and `namespace` in `[temporal]`, and that "
        "the cluster runs"
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (
            'Failed client connect: `get_system_info` call error after connection: Status { code: Unknown, message: "transport '
            'error", source: Some(hyper::Error(Io, Custom { kind: BrokenPipe, error: "stream closed by its peer" })) }',
            "stream closed by its peer",
        ),
        ("Namespace runs is not found.", "Namespace runs is not found."),
        ("invalid target URL\nand more", "invalid target URL"),
        ("word " * 100, "word " * 39 + "..."),
    ],
)
def test_the_reason_is_a_whole_one(told: str, why: str) -> None:
    assert say_why(RuntimeError(told)) == why
