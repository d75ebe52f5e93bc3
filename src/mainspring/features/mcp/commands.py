"""`mainspring mcp`: the MCP servers of the settings."""

import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from mainspring.cli.context import load_settings
from mainspring.cli.options import AsJson
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.toml import write_toml
from mainspring.features.mcp.settings import McpServerSettings, make_server_specs
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.connection import CONNECT_SECONDS
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import Toolset

app = typer.Typer()

FILE = Path("mainspring.toml")
LIST_SECONDS = 10.0

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="Settings file. Default: mainspring.toml.", show_default=False)
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="Name of the server.")]
OneLabel = Annotated[str | None, typer.Argument(metavar="LABEL", help="Name of the server. Default: all.", show_default=False)]


class McpSettings(Struct, frozen=True):
    """The settings that these commands read."""

    mcp: dict[str, McpServerSettings]


class ListedServer(Struct, frozen=True):
    """A server as `list --json` shows it. One with an `error` is down."""

    label: str
    transport: str
    tools: int
    error: str | None


@app.command()
def add(
    label: Label,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND [ARG...]]", help="The program to start, after `--`.", show_default=False),
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The address, for a server that is reached by HTTP.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header to send. Repeatable.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the program. Repeatable.")] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Have a person approve every call.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Grant the program the network; it runs in a sandbox.")] = False,
    folder: Annotated[list[str] | None, typer.Option(metavar="PATH", help="A folder it may write to. Repeatable.")] = None,
    read: Annotated[list[str] | None, typer.Option(metavar="PATH", help="A file or folder it may read. Repeatable.")] = None,
    no_sandbox: Annotated[bool, typer.Option("--no-sandbox", help="Run the program without the sandbox.")] = False,
    config: ConfigFile = FILE,
) -> None:
    """
    Adds a server to the settings.

    Examples:

        mainspring mcp add time --network -- uvx mcp-server-time

        mainspring mcp add files --network --folder /srv/notes -- npx -y @modelcontextprotocol/server-filesystem /srv/notes

        mainspring mcp add docs --url https://example.com/mcp --header "Authorization: Bearer TOKEN"
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", label):
        raise InvalidRequest(f"the label `{label}` must be 1 to 64 letters, digits, `_` or `-`")
    if command and command[0].startswith(("http://", "https://")):
        raise InvalidRequest(f"`{command[0]}` is an address and no program; write: mainspring mcp add {label} --url {command[0]}")
    if not command and not url:
        raise InvalidRequest("say where the server is: a command behind `--`, or --url URL")
    given = {
        "url": url,
        **({"command": command[0], "args": command[1:]} if command else {}),
        "headers": _parse_pairs(header or (), ":"),
        "env": _parse_pairs(env or (), "="),
        "require_approval": "always" if ask else None,
        "network": network,
        "folders": [os.path.abspath(path) for path in folder or ()],
        "reads": [os.path.abspath(path) for path in read or ()],
    }
    table = {name: value for name, value in given.items() if value} | ({"sandboxed": False} if no_sandbox else {})
    make_server_specs({label: msgspec.convert(table, McpServerSettings)})
    known = load_settings(McpSettings, config).mcp if config.exists() else {}
    if label in known:
        raise InvalidRequest(
            f"{config} has a server `{label}` already; remove it with `mainspring mcp remove {label}`, or choose another label"
        )
    # Headers and variables hold keys, so a file that is new is for its owner alone.
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
        file.write("\n" + write_toml({"mcp": {label: table}}))
    if command and shutil.which(command[0]) is None:
        say(f"there is no program `{command[0]}` here; install it before the server starts, or correct {config}")
    say(f"added `{label}` to {config}; try it: mainspring mcp test {label}")


@app.command()
def remove(label: Label, config: ConfigFile = FILE) -> None:
    """Removes a server from the settings."""
    try:
        text = config.read_text("utf-8")
        before = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{config} cannot be read: {error}") from error
    if label not in before.get("mcp", {}):
        known = ", ".join([f"`{name}`" for name in before.get("mcp", {})]) or "none"
        raise InvalidRequest(f"{config} has no server `{label}`; it has: {known}")
    kept, is_kept = [], True
    for line in text.splitlines(keepends=True):
        if (header := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line)) is not None:
            is_kept = re.match(rf"mcp\s*\.\s*[\"']?{re.escape(label)}[\"']?\s*(\.|$)", header[1]) is None
        kept.append(line if is_kept else "")
    del before["mcp"][label]
    after = "".join(kept)
    if {"mcp": {}, **tomllib.loads(after)} != {"mcp": {}, **before}:
        raise InvalidRequest(f"the table of `{label}` in {config} is written in a way that has to be edited by hand")
    config.write_text(after, "utf-8")
    say(f"removed `{label}` from {config}")


@app.command("list")
async def list_servers(config: ConfigFile = FILE, json: AsJson = False) -> None:
    """Lists the servers of the settings, and whether they answer."""
    specs = _read_servers(config)
    offers = (await _collect_tools(specs, LIST_SECONDS)).offers
    if json:
        write_lines([ListedServer(each.spec.label, each.spec.transport, len(each.tools), each.error) for each in offers])
        return
    for offer in offers:
        spec = offer.spec
        how = [spec.transport, *(["sandboxed"] if spec.is_held else []), *(["network"] if spec.network else [])]
        print(f"{spec.label}  {', '.join(how)}  {' '.join([spec.command, *spec.args]) or spec.url}")
        print(f"  {f'down: {offer.error}' if offer.error is not None else f'ready, {len(offer.tools)} tools'}")


class ListedTool(Struct, frozen=True):
    """A tool as `mcp tools --json` has it."""

    name: str
    server: str
    description: str


@app.command()
async def tools(label: OneLabel = None, config: ConfigFile = FILE, json: AsJson = False) -> int:
    """Lists the tools of the servers, or of one of them, under the names that a model knows them by."""
    return await _connect(label, config, with_tools=True, as_json=json)


@app.command("test")
async def try_servers(label: OneLabel = None, config: ConfigFile = FILE) -> int:
    """Connects to the servers, or to one of them, and reports the outcome."""
    return await _connect(label, config, with_tools=False)


def _read_servers(config: Path) -> tuple[ServerSpec, ...]:
    return make_server_specs(load_settings(McpSettings, config if config != FILE else None).mcp)


async def _collect_tools(specs: Sequence[ServerSpec], seconds: float = CONNECT_SECONDS) -> Toolset:
    async with BuiltinTools(wraps=any(spec.is_held for spec in specs)) as builtins:
        tools = McpTools(specs, wrap=builtins.wrap, start_seconds=seconds)
        try:
            return await tools.collect_tools()
        finally:
            await tools.close()


async def _connect(label: str | None, config: Path, *, with_tools: bool, as_json: bool = False) -> int:
    servers = _read_servers(config)
    chosen = [spec for spec in servers if label in (None, spec.label)]
    if not chosen:
        known = ", ".join([f"`{spec.label}`" for spec in servers]) or "none; add one with `mainspring mcp add`"
        raise InvalidRequest(f"there is no MCP server `{label}`; known: {known}" if label else f"MCP servers: {known}")
    found = await _collect_tools(chosen)
    for offer in found.offers:
        if offer.error is not None:
            say(f"{offer.spec.label}: {offer.error}")
        elif not with_tools:
            print(f"{offer.spec.label}  answers, with {len(offer.tools)} tools")
        for rejected in offer.rejected:
            say(f"{offer.spec.label}: tool `{rejected.name}` cannot be used: {rejected.reason}")
    if as_json:
        write_lines([ListedTool(name, route.spec.label, route.tool.description) for name, route in found.routes.items()])
    for name, route in found.routes.items() if with_tools and not as_json else ():
        print(f"{name}  {' '.join(route.tool.description.split())[:100]}")
    return 1 if any(offer.error for offer in found.offers) else 0


def _parse_pairs(given: Sequence[str], sign: str) -> dict[str, str]:
    pairs = [text.partition(sign) for text in given]
    for name, found, _ in pairs:
        if not found or not name.strip():
            raise InvalidRequest(f"`{name}` must be NAME{sign}VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}
