"""An engine whose one tool needs a person's approval, and leaves a trace each time it is performed.

As a program it is a real server process that can be killed: `asking.py DATABASE TALLY` prints its port.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from socket import socket

from uvicorn import Config, Server

from mainspring import Engine, tool
from mainspring.app.server import server
from mainspring.core.events import ModelEvent
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCallOutput, Message, ToolDefinition, text_of
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, ModelInfo, Verdict
from mainspring.providers.scripted import Scripted, call, calls, say


class Obedient:
    """A model that wipes every disk it is told to, and then says what came of it."""

    name = "obedient"

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        last = request.items[-1]
        if isinstance(last, FunctionCallOutput):
            outputs = [text_of(item.output) for item in request.items if isinstance(item, FunctionCallOutput)]
            told = say(f"It says: {'; '.join(outputs)}")
        else:
            assert isinstance(last, Message)
            order, *names = last.text.split()
            assert order in ("Wipe", "Locate")
            told = calls(*[call("wipe", disk=name) for name in names], *([call("locate")] if order == "Locate" else []))
        # With `repeat` a script of one turn answers any turn of a run.
        return Scripted(told, repeat=True, new_id=random_id, chunk=4096).stream(request)

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("obedient")]

    async def close(self) -> None:
        pass


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Ask("May I wipe this disk?") if call.item.name == "wipe" else Allow()


LOCATE = ToolDefinition("locate", "Where the user is.")


def asking(database: str, tally: Path, **options: float) -> Engine:
    """The engine. Every `wipe` adds a line to the tally when it begins, and when it ends; the disk `deaf` never does."""
    lines = os.open(tally, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @tool(effects=("destructive",))
    async def wipe(disk: str) -> str:
        """Must not run twice."""
        os.write(lines, f"begin {disk}\n".encode())
        if disk == "deaf":
            print("begin deaf", flush=True)
            await asyncio.Event().wait()
        os.write(lines, f"end {disk}\n".encode())
        return f"wiped {disk}"

    seconds = options.get("approval_seconds", 3600.0)
    policies = [AsksFirst()]
    return Engine(Obedient(), tools=[wipe], policies=policies, database=database, audit=True, approval_seconds=seconds)


class Announcing(Server):
    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


if __name__ == "__main__":
    app = server(asking(sys.argv[1], Path(sys.argv[2])))
    Announcing(Config(app, port=0, log_level="error", lifespan="on")).run()
