"""The way of a request as `docs/architecture.md` draws it is the way that it takes."""

import re
from pathlib import Path

from tests.kit.walk import walk

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_files_that_a_request_goes_through_are_those_of_the_drawing() -> None:
    section = PAGE.read_text().partition("### The way of a request")[2]
    drawn = re.search(r"^```text\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert drawn is not None
    files = re.findall(r"[\w/]+\.py", drawn[1])
    assert files == [file.removeprefix("mainspring/") for file in walk().files]
