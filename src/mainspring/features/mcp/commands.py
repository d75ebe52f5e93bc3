"""`mainspring mcp`: the MCP servers of the settings."""

import asyncio
import os
import re
import shutil
import tomllib
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct

from mainspring.cli.context import load_settings
from mainspring.cli.options import AsJson, Tenant
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.toml import write_toml
from mainspring.features.governance.injection import scan
from mainspring.features.mcp.loopback import listen_for_callback
from mainspring.features.mcp.settings import McpServerSettings, make_server_specs
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.connection import CONNECT_SECONDS
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.lock import Difference, LockFile, McpLock, fetch_certificate, read_lock, write_lock
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import ServerOffer, Toolset

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import SignIns

app = typer.Typer()

FILE = Path("mainspring.toml")
LIST_SECONDS = 10.0
SIGN_IN_SECONDS = 600.0

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="Settings file. Default: mainspring.toml.", show_default=False)
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="Name of the server.")]
User = Annotated[
    str, typer.Option(metavar="NAME", help="The `user` of requests. Default: those that name none.", show_default=False)
]
OneLabel = Annotated[str | None, typer.Argument(metavar="LABEL", help="Name of the server. Default: all.", show_default=False)]


class McpSettings(Struct, frozen=True):
    """The settings that these commands read."""

    mcp: dict[str, McpServerSettings]
    database: str
    secret_key: str
    allow_hosts: tuple[str, ...]
    mcp_lock: str


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
    oauth: Annotated[bool, typer.Option("--oauth", help="Have each user sign in to the server.")] = False,
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

        mainspring mcp add wiki --url https://example.org/mcp --oauth
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
    if oauth:
        table["oauth"] = {}
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
    then = f"mainspring mcp sign-in {label}" if oauth else f"mainspring mcp test {label}"
    say(f"added `{label}` to {config}; try it: {then}")


@app.command()
async def remove(label: Label, config: ConfigFile = FILE) -> None:
    """Removes a server from the settings, and revokes the tokens of those who have signed in to it."""
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
    removed = before["mcp"].pop(label)
    after = "".join(kept)
    if {"mcp": {}, **tomllib.loads(after)} != {"mcp": {}, **before}:
        raise InvalidRequest(f"the table of `{label}` in {config} is written in a way that has to be edited by hand")
    if "oauth" in removed:
        settings = load_settings(McpSettings, config)
        async with _open_sign_ins(settings) as sign_ins:
            count = await sign_ins.sign_out_all(settings.mcp[label].make_spec(label), label)
            say(f"signed {count} users out of `{label}`")
    config.write_text(after, "utf-8")
    say(f"removed `{label}` from {config}")


@app.command("sign-in")
async def sign_in(
    label: Label,
    user: User = "",
    tenant: Tenant = "",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    config: ConfigFile = FILE,
) -> None:
    """Signs a user in to a server, by the browser of this machine. Runs that wait for it go on."""
    settings, spec = _read_server(label, config)
    async with _open_sign_ins(settings) as sign_ins, listen_for_callback() as (address, wait):
        account = sign_ins.find_account(spec, tenant, user)
        link = await sign_ins.begin(spec, account, address)
        say(f"open this link to sign in to `{label}`:")
        print(link, flush=True)
        if not no_browser:
            webbrowser.open(link)
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS):
                answer = await wait()
        except TimeoutError:
            raise InvalidRequest(f"nobody has signed in within {SIGN_IN_SECONDS / 60:.0f} minutes; run this again") from None
        await sign_ins.finish(answer)
    say(f"signed in to `{label}`{f' for {user}' if user else ''}")


@app.command("sign-out")
async def sign_out(label: Label, user: User = "", tenant: Tenant = "", config: ConfigFile = FILE) -> None:
    """Signs a user out of a server: their tokens are revoked and forgotten."""
    settings, spec = _read_server(label, config)
    async with _open_sign_ins(settings) as sign_ins:
        was_signed_in = await sign_ins.sign_out(spec, sign_ins.find_account(spec, tenant, user))
    say(f"signed out of `{label}`" if was_signed_in else f"nobody was signed in to `{label}`")


@app.command("list")
async def list_servers(config: ConfigFile = FILE, json: AsJson = False) -> None:
    """Lists the servers of the settings, and whether they answer."""
    settings = _load(config)
    offers = (await _collect_tools(settings, make_server_specs(settings.mcp), LIST_SECONDS)).offers
    if json:
        write_lines([_show_server(offer) for offer in offers])
        return
    for offer in offers:
        spec = offer.spec
        how = [spec.transport, *(["sandboxed"] if spec.is_held else []), *(["network"] if spec.network else [])]
        print(f"{spec.label}  {', '.join(how)}  {' '.join([spec.command, *spec.args]) or spec.url}")
        print(f"  {_describe_state(offer)}")


def _show_server(offer: ServerOffer) -> ListedServer:
    count = 0 if offer.needs_sign_in else len(offer.tools)
    return ListedServer(offer.spec.label, offer.spec.transport, count, _find_error(offer))


def _describe_state(offer: ServerOffer) -> str:
    if offer.needs_sign_in:
        return f"sign-in needed: mainspring mcp sign-in {offer.spec.label}"
    if offer.error is not None:
        return offer.error if offer.is_refused else f"down: {offer.error}"
    return f"ready, {len(offer.tools)} tools"


def _find_error(offer: ServerOffer) -> str | None:
    return f"sign-in needed: mainspring mcp sign-in {offer.spec.label}" if offer.needs_sign_in else offer.error


@app.command("lock")
async def lock_servers(config: ConfigFile = FILE) -> int:
    """Pins all servers as they are now: how they are reached, their versions, and their tools. Changes are refused then."""
    settings = _load(config)
    found = await _look(settings, None)
    if down := [offer for offer in found if _find_error(offer.offer) is not None]:
        for each in down:
            say(f"{each.offer.spec.label}: {_find_error(each.offer)}")
        raise InvalidRequest("nothing was pinned: a server that does not answer cannot be; correct it, or remove it")
    lock = McpLock({})
    for each in found:
        lock = lock.accept(each.offer, each.certificate)
        _warn(each.offer)
    write_lock(Path(settings.mcp_lock), lock)
    count = sum([len(server.tools) for server in lock.servers.values()])
    say(f"pinned {len(lock.servers)} servers with {count} tools in {settings.mcp_lock}")
    return 0


@app.command()
async def diff(label: OneLabel = None, config: ConfigFile = FILE) -> int:
    """Shows what is another than was approved, and what in it reads like orders to the model. Exits with 1 if there is any."""
    settings = _load(config)
    lock, is_same = _read_lock(settings), True
    for each in await _look(settings, label):
        if (error := _find_error(each.offer)) is not None:
            say(f"{each.offer.spec.label}: {error}")
            is_same = False
            continue
        found = lock.compare(each.offer, each.certificate)
        for difference in found:
            _print_difference(difference)
        is_same = is_same and not found
        _warn(each.offer, [difference.tool for difference in found])
    return 0 if is_same else 1


@app.command()
async def accept(
    label: OneLabel = None,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="Only this tool, and nothing else of the server.", show_default=False)
    ] = None,
    config: ConfigFile = FILE,
) -> None:
    """Approves what servers are now, or one of them, or one tool. Look at `mainspring mcp diff` first."""
    settings = _load(config)
    lock = _read_lock(settings)
    for each in await _look(settings, label):
        if (error := _find_error(each.offer)) is not None:
            raise InvalidRequest(f"{each.offer.spec.label}: {error}; nothing was accepted")
        lock = lock.accept(each.offer, each.certificate, tool)
        _warn(each.offer, None if tool is None else [tool])
    if label is None:  # servers that are gone from the settings
        lock = McpLock({name: server for name, server in lock.servers.items() if name in settings.mcp})
    write_lock(Path(settings.mcp_lock), lock)
    say(f"accepted {f'`{tool}` of ' if tool else ''}{f'`{label}`' if label else 'all servers'} in {settings.mcp_lock}")


class SeenServer(Struct, frozen=True):
    """A server as it is now, whatever was approved."""

    offer: ServerOffer
    certificate: str


async def _look(settings: McpSettings, label: str | None) -> list[SeenServer]:
    specs = make_server_specs(settings.mcp)
    chosen = [spec for spec in specs if label in (None, spec.label)]
    if not chosen:
        known = ", ".join([f"`{spec.label}`" for spec in specs]) or "none"
        raise InvalidRequest(f"there is no MCP server `{label}`; known: {known}")
    guard = AddressGuard(settings.allow_hosts)
    offers = (await _collect_tools(settings, chosen, is_held=False)).offers
    return [SeenServer(offer, "" if offer.error else await fetch_certificate(offer.spec, guard)) for offer in offers]


def _read_lock(settings: McpSettings) -> McpLock:
    lock = read_lock(Path(settings.mcp_lock))
    if lock is None:
        raise InvalidRequest(f"there is no {settings.mcp_lock}; make it with `mainspring mcp lock`")
    return lock


def _print_difference(found: Difference) -> None:
    print(f"{found.label}{f' {found.tool}' if found.tool else ''}: {found.what}")
    before, after = found.before.splitlines(), found.after.splitlines()
    for line in unified_diff(before, after, "approved", "now", lineterm="", n=1):
        print(f"  {line}")


def _warn(offer: ServerOffer, tools: Sequence[str] | None = None) -> None:
    """Says what in the words of a server reads like orders to the model."""
    for tool in offer.tools:
        if tools is None or tool.name in tools:
            for finding in scan({"description": tool.description, "schema": tool.schema}):
                say(f"{offer.spec.label} {tool.name}: {finding.path} reads like orders to the model ({finding.rule})")


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


def _load(config: Path) -> McpSettings:
    return load_settings(McpSettings, config if config != FILE else None)


def _read_server(label: str, config: Path) -> tuple[McpSettings, ServerSpec]:
    """Raises `InvalidRequest` for a server that nobody signs in to."""
    settings = _load(config)
    known = [spec for spec in make_server_specs(settings.mcp) if spec.oauth is not None]
    for spec in known:
        if spec.label == label:
            return settings, spec
    names = ", ".join([f"`{spec.label}`" for spec in known]) or "none"
    raise InvalidRequest(
        f"there is no MCP server `{label}` to sign in to; those with a table [mcp.LABEL.oauth] are: {names}", param="label"
    )


@asynccontextmanager
async def _open_sign_ins(settings: McpSettings) -> "AsyncIterator[SignIns]":
    from mainspring.features.mcp.open_sign_ins import open_sign_ins

    location = parse_location(settings.database)
    async with open_store(location) as store:
        yield open_sign_ins(store, location, AddressGuard(settings.allow_hosts), secret_key=settings.secret_key)


async def _collect_tools(
    settings: McpSettings, specs: Sequence[ServerSpec], seconds: float = CONNECT_SECONDS, *, is_held: bool = True
) -> Toolset:
    """With `is_held`, only what was approved."""
    async with AsyncExitStack() as stack:
        builtins = await stack.enter_async_context(BuiltinTools(wraps=any(spec.is_held for spec in specs)))
        lock = LockFile(Path(settings.mcp_lock)) if is_held else None
        has_sign_ins = any(spec.oauth is not None for spec in specs)
        sign_ins = await stack.enter_async_context(_open_sign_ins(settings)) if has_sign_ins else None
        tools = McpTools(specs, wrap=builtins.wrap, start_seconds=seconds, sign_ins=sign_ins, lock=lock)
        try:
            return await tools.collect_tools()
        finally:
            await tools.close()


async def _connect(label: str | None, config: Path, *, with_tools: bool, as_json: bool = False) -> int:
    settings = _load(config)
    servers = make_server_specs(settings.mcp)
    chosen = [spec for spec in servers if label in (None, spec.label)]
    if not chosen:
        known = ", ".join([f"`{spec.label}`" for spec in servers]) or "none; add one with `mainspring mcp add`"
        raise InvalidRequest(f"there is no MCP server `{label}`; known: {known}" if label else f"MCP servers: {known}")
    found = await _collect_tools(settings, chosen)
    for offer in found.offers:
        if (error := _find_error(offer)) is not None:
            say(f"{offer.spec.label}: {error}")
        elif not with_tools:
            print(f"{offer.spec.label}  answers, with {len(offer.tools)} tools")
        for rejected in offer.rejected:
            say(f"{offer.spec.label}: tool `{rejected.name}` cannot be used: {rejected.reason}")
    if as_json:
        write_lines([ListedTool(name, route.spec.label, route.tool.description) for name, route in found.routes.items()])
    for name, route in found.routes.items() if with_tools and not as_json else ():
        print(f"{name}  {' '.join(route.tool.description.split())[:100]}")
    return 1 if any(_find_error(offer) for offer in found.offers) else 0


def _parse_pairs(given: Sequence[str], sign: str) -> dict[str, str]:
    pairs = [text.partition(sign) for text in given]
    for name, found, _ in pairs:
        if not found or not name.strip():
            raise InvalidRequest(f"`{name}` must be NAME{sign}VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}
