from pathlib import Path

import pytest
from tests.cli.command import Shell

TOOLS = '''
import asyncio
import time
from pathlib import Path

from mainspring import tool
from mainspring.ports import CallContext


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    with Path("tally").open("a") as tally:
        tally.write(f"{a} + {b}\\n")
    return a + b


@tool
async def hang(context: CallContext) -> str:
    """Never ends."""
    context.progress("hanging")
    await asyncio.Event().wait()


@tool
async def deaf(context: CallContext) -> str:
    """Holds everything up when it is told to stop."""
    context.progress("not listening")
    try:
        await asyncio.Event().wait()
    finally:
        time.sleep(600)


@tool
def dream(context: CallContext) -> str:
    """Sleeps in a thread that nobody can wake."""
    context.progress("dreaming")
    time.sleep(600)


def undocumented(text: str) -> str:
    return text
'''


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with the module `mytools` in it."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    return Shell(tmp_path)
