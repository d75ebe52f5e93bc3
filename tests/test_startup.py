"""Start-up is a feature: importing Mainspring is cheap and brings in nothing that is not used."""

import subprocess
import sys

import pytest

HEAVY = {
    *(
        "aiohttp",
        "apsw",
        "asyncpg",
        "jinja2",
        "mcp",
        "opentelemetry",
        "pydantic",
        "rich",
        "sqlalchemy",
        "starlette",
        "typer",
        "yaml",
    ),
}


def child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("statement", ["import mainspring", "from mainspring import Engine, tool"])
def test_importing_mainspring_brings_in_nothing_heavy(statement: str) -> None:
    loaded = set(child(f"{statement}\nimport sys\nprint(*sys.modules)").split())
    assert "mainspring" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_importing_mainspring_takes_less_than_a_quarter_of_a_second_of_cpu() -> None:
    code = "import time; before = time.process_time(); from mainspring import Engine, tool; print(time.process_time() - before)"
    assert min(float(child(code)) for _ in range(3)) < 0.25
