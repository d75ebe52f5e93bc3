"""The stores that every test of the contract runs on."""

import pytest

from mainspring.ports import Store


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store
