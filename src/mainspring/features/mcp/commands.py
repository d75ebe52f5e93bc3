"""`mainspring mcp`: the MCP servers of the settings."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from mainspring.tools.mcp.server_specs import ServerSpec

ADD = """
Adds a server to the settings.

Examples:

    mainspring mcp add time --network -- uvx mcp-server-time

    mainspring mcp add files --network --folder /srv/notes -- npx -y @modelcontextprotocol/server-filesystem /srv/notes

    mainspring mcp add docs --url https://example.com/mcp --header "Authorization: Bearer TOKEN"
"""

app = typer.Typer(name="mcp", help="Adds, lists and tries the MCP servers whose tools every request may use.")

Config = Annotated[Path, typer.Option(metavar="FILE", help="The settings. Default: mainspring.toml.", show_default=False)]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="What the server is called.")]


@app.command(help=ADD)
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
    config: Config = Path("mainspring.toml"),
) -> int:
    from mainspring.app.settings import load
    from mainspring.cli.plain import say
    from mainspring.core.errors import InvalidRequest
    from mainspring.definitions.toml import write_toml
    from mainspring.features.mcp.settings import McpServerSettings, make_server_specs

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", label):
        raise InvalidRequest(f"the label `{label}` must be 1 to 64 letters, digits, `_` or `-`")
    table: dict[str, object] = {"url": url} if url else {}
    if command and command[0].startswith(("http://", "https://")):
        raise InvalidRequest(f"`{command[0]}` is an address and no program; write: mainspring mcp add {label} --url {command[0]}")
    if command:
        table |= {"command": command[0], "args": command[1:]}
    table |= {"headers": _pairs(header or (), ":")} if header else {}
    table |= {"env": _pairs(env or (), "=")} if env else {}
    table |= {"require_approval": "always"} if ask else {}
    table |= {"network": True} if network else {}
    table |= {name: [os.path.abspath(path) for path in given] for name, given in (("folders", folder), ("reads", read)) if given}
    table |= {"sandboxed": False} if no_sandbox else {}
    if not command and not url:
        raise InvalidRequest("say where the server is: a command behind `--`, or --url URL")
    make_server_specs({label: msgspec.convert(table, McpServerSettings)})
    known = load({}, file=config).mcp if config.exists() else {}
    if label in known:
        raise InvalidRequest(f"{config} has a server `{label}` already; remove its table, or choose another label")
    # Headers and variables hold keys, so a file that is new is for its owner alone.
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
        file.write("\n" + write_toml({"mcp": {label: table}}))
    if command and shutil.which(command[0]) is None:
        say(f"there is no program `{command[0]}` here; install it before the server starts, or correct {config}")
    say(f"added `{label}` to {config}; try it: mainspring mcp test {label}")
    return 0


@app.command("list")
def list_servers(config: Config = Path("mainspring.toml")) -> int:
    """Lists the servers of the settings."""
    for spec in _servers(config):
        how = [spec.transport, *(["sandboxed"] if spec.is_held else []), *(["network"] if spec.network else [])]
        print(f"{spec.label}  {', '.join(how)}  {' '.join([spec.command, *spec.args]) or spec.url}")
    return 0


@app.command()
def tools(label: Annotated[str | None, typer.Argument(metavar="LABEL")] = None, config: Config = Path("mainspring.toml")) -> int:
    """Lists the tools of the servers, or of one of them, under the names that a model knows them by."""
    return _offered(label, config, with_tools=True)


@app.command("test")
def try_out(
    label: Annotated[str | None, typer.Argument(metavar="LABEL")] = None, config: Config = Path("mainspring.toml")
) -> int:
    """Connects to the servers, or to one of them, and says what came of it."""
    return _offered(label, config, with_tools=False)


def _servers(config: Path) -> "tuple[ServerSpec, ...]":
    from mainspring.app.settings import load
    from mainspring.features.mcp.settings import make_server_specs

    return make_server_specs(load({}, file=config if config != Path("mainspring.toml") else None).mcp)


def _offered(label: str | None, config: Path, *, with_tools: bool) -> int:
    from mainspring.cli.follow import launch
    from mainspring.cli.plain import say
    from mainspring.core.errors import InvalidRequest
    from mainspring.tools.builtin.builtins import BuiltinTools
    from mainspring.tools.mcp.executor import McpTools

    servers = _servers(config)
    chosen = [spec for spec in servers if label in (None, spec.label)]
    if not chosen:
        known = ", ".join([f"`{spec.label}`" for spec in servers]) or "none; add one with `mainspring mcp add`"
        raise InvalidRequest(f"there is no MCP server `{label}`; known: {known}" if label else f"MCP servers: {known}")

    async def offered() -> int:
        async with BuiltinTools(wraps=any(spec.is_held for spec in chosen)) as builtins:
            servers = McpTools(chosen, wrap=builtins.wrap)
            try:
                found = await servers.toolset()
            finally:
                await servers.close()
        for offer in found.offers:
            if offer.error is not None:
                say(f"{offer.spec.label}: {offer.error}")
            elif not with_tools:
                print(f"{offer.spec.label}  answers, with {len(offer.tools)} tools")
            for rejected in offer.rejected:
                say(f"{offer.spec.label}: tool `{rejected.name}` cannot be used: {rejected.reason}")
        for name, route in found.routes.items() if with_tools else ():
            print(f"{name}  {' '.join(route.tool.description.split())[:100]}")
        return 1 if any(offer.error for offer in found.offers) else 0

    return launch(offered())


def _pairs(given: Sequence[str], sign: str) -> dict[str, str]:
    from mainspring.core.errors import InvalidRequest

    pairs = [text.partition(sign) for text in given]
    for name, found, _ in pairs:
        if not found or not name.strip():
            raise InvalidRequest(f"`{name}` must be NAME{sign}VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}
