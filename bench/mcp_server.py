"""What a `tools/call` costs the server: CPU per call of an echo tool at `/mcp`, beside the SDK's own server, in one run.

    python bench/mcp_server.py [--calls N] [--rounds N]

Both serve the same tool in processes of their own, and are asked by the same bare client over one connection, in turns. A call at
`/mcp` is a run: judged by every policy, recorded in the database (here a file) and told to observers, which the SDK's is not.
`list` is `tools/list`, which runs nothing. Best of several rounds. Then the memory that each has for itself after its first call.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec
from bench.processes import parse_options
from msgspec import Struct
from yarl import URL

from mainspring.net.client import HttpClient, encode_headers, make_endpoint

SDK = str(Path(__file__).with_name("mcp_calls.py").resolve())
VERSION = "2026-07-28"
TICKS = 100
TOOL = '''
from mainspring import tool


@tool(effects=("read",))
def echo(text: str) -> str:
    """Says it again."""
    return text
'''
SETTINGS = 'tools = ["echoes:echo"]\nmodel = "scripted:script.json"\n[mcp_server]\ntools = ["echo"]\n'


class Contestant(Struct, frozen=True):
    pid: int
    url: str

    def read_cpu(self) -> float:
        """Seconds of CPU that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def read_memory(self) -> float:
        """Megabytes that it has for itself."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum([int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))]) / 1e3


@asynccontextmanager
async def start(command: list[str], folder: str) -> AsyncIterator[Contestant]:
    """A server, once it has said where it listens."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE, cwd=folder)
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline()).decode()
        yield Contestant(process.pid, said.split()[-1].replace("/v1", "/mcp"))
    finally:
        process.kill()
        await process.wait()


async def ask(client: HttpClient, url: str, method: str, params: dict[str, object]) -> object:
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": VERSION, f"{prefix}clientCapabilities": {}}
    heads = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    if "name" in params:
        heads["Mcp-Name"] = str(params["name"])
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
    answer = await client.request("POST", make_endpoint(URL(url)), encode_headers(heads.items()), body)
    found = b""
    while data := await answer.read():
        found += data
    return msgspec.json.decode(found if found.startswith(b"{") else found.partition(b"data: ")[2].strip())["result"]


async def measure(contestant: Contestant, method: str, params: dict[str, object], calls: int) -> float:
    """Milliseconds of the server's CPU per request."""
    async with HttpClient(seconds=60, proxy="") as client:
        before = contestant.read_cpu()
        for _ in range(calls):
            await ask(client, contestant.url, method, params)
        return (contestant.read_cpu() - before) / calls * 1e3


async def compare(calls: int, rounds: int) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "echoes.py").write_text(TOOL)
        (Path(folder) / "mainspring.toml").write_text(SETTINGS)
        (Path(folder) / "script.json").write_text('{"turns": [{"say": "unasked"}]}')
        async with (
            start(["-m", "mainspring", "serve", "--port", "0"], folder) as ours,
            start([SDK, "--serve", "http"], folder) as sdk,
        ):
            asked: dict[str, tuple[str, dict[str, object]]] = {
                "call": ("tools/call", {"name": "echo", "arguments": {"text": "tick tock"}}),
                "list": ("tools/list", {}),
            }
            before = ours.read_memory()
            for contestant in (ours, sdk):
                await measure(contestant, *asked["call"], 1)
            first = ours.read_memory() - before
            print(f"{'':8}{'/mcp':>12}{'sdk':>12}  ms of CPU in the server")
            for name, (method, params) in asked.items():
                best = [
                    min([await measure(contestant, method, params, calls) for _ in range(rounds)]) for contestant in (ours, sdk)
                ]
                print(f"{name:8}{best[0]:12.2f}{best[1]:12.2f}")
            print(f"{'memory':8}{ours.read_memory():12.1f}{sdk.read_memory():12.1f}  MB; the first call added {first:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parse_options(parser)
    asyncio.run(compare(options.calls, options.rounds))


if __name__ == "__main__":
    main()
