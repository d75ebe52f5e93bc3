import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """As everywhere, for fixtures that the tests of a module share."""
    return "asyncio"
