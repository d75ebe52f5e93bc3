"""The way of a request as `docs/architecture.md` draws it is the way that it takes."""

import re
from pathlib import Path

import pytest
from tests.kit.walk import walk

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_files_that_a_request_goes_through_are_those_of_the_drawing() -> None:
    drawn = re.search(r"^```walk\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if drawn is None:
        pytest.skip("there is no block ```walk in docs/architecture.md")
    files = re.findall(r"[\w/]+\.py", drawn[1])
    assert files == [file.removeprefix("mainspring/") for file in walk().files]
