"""`mainspring mcp`: the MCP servers of the settings."""

import asyncio
import os
import re
import shutil
import tomllib
import webbrowser
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlsplit

import msgspec
import typer
from msgspec import Struct

from mainspring.cli.context import load_settings
from mainspring.cli.options import AsJson, Tenant
from mainspring.cli.output import say, spell_out, write_lines, write_text
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.core.redact import redact_text
from mainspring.definitions.toml import write_toml
from mainspring.features.governance.injection import scan
from mainspring.features.mcp.loopback import listen_for_callback
from mainspring.features.mcp.other_formats import FETCHERS, read_other_settings, read_registry_entry
from mainspring.features.mcp.settings import McpServerSettings, make_server_specs
from mainspring.late_module import LateModule
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.lock import LockDifference, LockFile, McpLock, digest_server, fetch_certificate, read_lock, write_lock
from mainspring.tools.mcp.server_connection import CONNECT_SECONDS
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.server_watch import ServerState
from mainspring.tools.mcp.toolset import ServerOffer, Toolset

if TYPE_CHECKING:
    from mainspring.features.mcp import open_sign_ins
    from mainspring.tools.mcp.sign_in import SignIns
else:
    open_sign_ins = LateModule("mainspring.features.mcp.open_sign_ins")

app = typer.Typer()

FILE = Path("mainspring.toml")
LIST_SECONDS = 10.0
SIGN_IN_SECONDS = 600.0
NO_SERVERS = "there are no MCP servers in the settings; add one with `mainspring mcp add`"

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
    """A server as `list --json` shows it. `state` is `ready`, `down`, `refused` for one that is another than was approved, or
    `personal` for one that wants a sign-in. `server` and `protocol` are what it calls itself and
    speaks, `latency_ms` is how long its last answer took."""

    label: str
    transport: str
    tools: int
    error: str | None
    state: str = "ready"
    server: str = ""
    protocol: str = ""
    latency_ms: float | None = None


@app.command()
def add(
    label: Label,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND [ARG...]]", help="The program to start, after `--`.", show_default=False),
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The address, for a server that is reached by HTTP.")] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A `server.json` of the registry that describes the server.")
    ] = None,
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

        mainspring mcp add weather --from server.json --network --env WEATHER_KEY=...
    """
    _check_place(label, command, url, file)
    given = {
        "url": url,
        **({"command": command[0], "args": command[1:]} if command else {}),
        "headers": (headers := _parse_pairs(header or (), ":")),
        "env": (variables := _parse_pairs(env or (), "=")),
        **({} if file is None else read_registry_entry(file, variables, headers)),
        "require_approval": "always" if ask else None,
        **({"network": True} if network else {}),
        "folders": [os.path.abspath(path) for path in folder or ()],
        "reads": [os.path.abspath(path) for path in read or ()],
    }
    table = {name: value for name, value in given.items() if value} | ({"sandboxed": False} if no_sandbox else {})
    if oauth:
        table["oauth"] = {}
    if file is not None and "command" in table and not network and not no_sandbox:
        raise InvalidRequest(
            f"`{table['command']}` fetches the package and starts it, for which it needs the network; grant it with --network"
        )
    if no_sandbox:
        table.pop("network", None)
    if label in _read_known(config):
        raise InvalidRequest(
            f"{config} has a server `{label}` already; remove it with `mainspring mcp remove {label}`, or choose another label"
        )
    _append_servers(config, {label: table})
    then = f"mainspring mcp sign-in {label}" if oauth else f"mainspring mcp test {label}"
    say(f"added `{label}` to {config}; try it: {then}")


def _check_place(label: str, command: list[str] | None, url: str | None, file: Path | None) -> None:
    """Raises `InvalidRequest` unless there is a label, and one way to say where the server is."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", label):
        raise InvalidRequest(f"the label `{label}` must be 1 to 64 letters, digits, `_` or `-`")
    if file is not None and (command or url):
        raise InvalidRequest("--from says where the server is; leave the command and --url out")
    if command and command[0].startswith(("http://", "https://")):
        raise InvalidRequest(f"`{command[0]}` is an address and no program; write: mainspring mcp add {label} --url {command[0]}")
    if not command and not url and file is None:
        raise InvalidRequest("say where the server is: a command behind `--`, --url URL, or --from FILE")


@app.command("import")
def import_servers(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Settings of another program, with `mcpServers` or `servers`, as JSON.")
    ],
    ask: Annotated[bool, typer.Option("--ask", help="Have a person approve every call.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Grant the programs the network; they run in a sandbox.")] = False,
    config: ConfigFile = FILE,
) -> None:
    """
    Adds the servers of another program's settings (Claude Desktop, Cursor, VS Code): all that can be used here, or none.

    Examples:

        mainspring mcp import ~/.cursor/mcp.json --network
    """
    found, known = read_other_settings(file), _read_known(config)
    skipped = {
        **found.skipped,
        **{label: f"{config} has a server of that name already" for label in found.tables if label in known},
    }
    tables = {label: table for label, table in found.tables.items() if label not in known}
    for table in tables.values():
        table |= ({"require_approval": "always"} if ask else {}) | ({"network": True} if network and "command" in table else {})
    if tables:
        _append_servers(config, tables)
    for name, why in skipped.items():
        say(f"skipped `{name}`: {why}")
    fetching = [label for label, table in tables.items() if Path(str(table.get("command", ""))).name in FETCHERS]
    if fetching and not network:
        say(
            f"these fetch what they run, and have no network here: {', '.join(fetching)}; set `network = true` for each you trust"
        )
    say(f"added {', '.join([f'`{label}`' for label in tables]) or 'no server'} to {config}")


def _read_known(config: Path) -> Mapping[str, McpServerSettings]:
    return load_settings(McpSettings, config).mcp if config.exists() else {}


def _append_servers(config: Path, tables: Mapping[str, Json]) -> None:
    """Writes all of them, once all are known to be valid. Raises `InvalidRequest`."""
    try:
        made = {label: msgspec.convert(table, McpServerSettings) for label, table in tables.items()}
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}; nothing was added") from None
    make_server_specs(made)
    added = "\n" + write_toml({"mcp": dict(tables)})
    try:
        tomllib.loads((config.read_text("utf-8") if config.exists() else "") + added)
    except ValueError as error:
        raise InvalidRequest(
            f"{config} says `mcp` in a way that nothing can be added to ({error}); write its servers as tables [mcp.LABEL]. "
            "Nothing was added"
        ) from None
    # Headers and variables hold keys, so a file that is new is for its owner alone.
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
        file.write(added)
    for server in made.values():
        if server.command and shutil.which(server.command) is None:
            say(f"there is no program `{server.command}` here; install it before the server starts, or correct {config}")


@app.command()
async def remove(label: Label, config: ConfigFile = FILE) -> None:
    """Removes a server from the settings, and revokes the tokens of those who have signed in to it."""
    try:
        text = config.read_text("utf-8")
        before = tomllib.loads(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{config} cannot be read: {reason}; name the settings with --config FILE") from error
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
                answer = await wait(dict(parse_qsl(urlsplit(link).query))["state"])
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
    found = await _collect_tools(settings, make_server_specs(settings.mcp), LIST_SECONDS)
    states = {state.label: state for state in found.states}
    if json:
        write_lines([_show_server(offer, states[offer.spec.label]) for offer in found.tools.offers])
        return
    if not found.tools.offers:
        say(NO_SERVERS)
    for offer in found.tools.offers:
        spec = offer.spec
        how = [spec.transport, *(["sandboxed"] if spec.is_held else []), *(["network"] if spec.network else [])]
        _print(f"{spec.label}  {', '.join(how)}  {redact_text(' '.join([spec.command, *spec.args]) or spec.url)}")
        _print(f"  {_describe_offer(offer)}{_describe_state(states[spec.label])}")


def _show_server(offer: ServerOffer, state: ServerState) -> ListedServer:
    error = _find_error(offer)
    return ListedServer(
        offer.spec.label,
        offer.spec.transport,
        0 if offer.needs_sign_in else len(offer.tools),
        error,
        _name_state(offer),
        state.server,
        state.protocol,
        None if state.latency is None else round(1000 * state.latency, 1),
    )


def _name_state(offer: ServerOffer) -> str:
    if offer.needs_sign_in:
        return "personal"
    return "refused" if offer.is_refused else "ready" if offer.error is None else "down"


def _describe_offer(offer: ServerOffer) -> str:
    if offer.needs_sign_in:
        return f"sign-in needed: mainspring mcp sign-in {offer.spec.label}"
    if offer.error is not None:
        return offer.error if offer.is_refused else f"down: {offer.error}"
    unusable = f", {len(offer.rejected)} cannot be used (mainspring mcp tools {offer.spec.label})" if offer.rejected else ""
    return f"ready, {len(offer.tools)} tools{unusable}"


def _find_error(offer: ServerOffer) -> str | None:
    return f"sign-in needed: mainspring mcp sign-in {offer.spec.label}" if offer.needs_sign_in else offer.error


def _describe_state(state: ServerState) -> str:
    """What is known of a server that answers."""
    if state.state != "ready":
        return ""
    latency = "" if state.latency is None else f"{1000 * state.latency:.0f} ms"
    protocol = f"MCP {state.protocol}" if state.protocol else ""
    return "".join([f", {told}" for told in (state.server, protocol, latency) if told])


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
        if found:
            name = each.offer.spec.label
            say(f"accept exactly this: mainspring mcp accept {name} --seen {digest_server(each.offer, each.certificate)}")
    return 0 if is_same else 1


@app.command()
async def accept(
    label: OneLabel = None,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="Only this tool, and nothing else of the server.", show_default=False)
    ] = None,
    seen: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="Only if the server is still what `mcp diff` showed with this.", show_default=False),
    ] = None,
    config: ConfigFile = FILE,
) -> None:
    """Approves what servers are now, or one of them, or one tool, and shows what that is. Look at `mainspring mcp diff` first."""
    if seen is not None and label is None:
        raise InvalidRequest("--seen is of one server; name it: mainspring mcp accept LABEL --seen DIGEST")
    settings = _load(config)
    lock = _read_lock(settings)
    for each in await _look(settings, label):
        if (error := _find_error(each.offer)) is not None:
            raise InvalidRequest(f"{each.offer.spec.label}: {error}; nothing was accepted")
        if seen is not None and seen != digest_server(each.offer, each.certificate):
            raise InvalidRequest(
                f"`{label}` is not what was seen; look at it again with `mainspring mcp diff {label}`. Nothing was accepted"
            )
        for difference in lock.compare(each.offer, each.certificate):
            if tool in (None, difference.tool):
                _print_difference(difference)
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
        raise _not_known(label, specs)
    guard = AddressGuard(settings.allow_hosts)
    offers = (await _collect_tools(settings, chosen, is_held=False)).tools.offers
    return [SeenServer(offer, "" if offer.error else await fetch_certificate(offer.spec, guard)) for offer in offers]


def _read_lock(settings: McpSettings) -> McpLock:
    lock = read_lock(Path(settings.mcp_lock))
    if lock is None:
        raise InvalidRequest(f"there is no {settings.mcp_lock}; make it with `mainspring mcp lock`")
    return lock


def _print(line: str) -> None:
    """Writes one line, in which everything that a server says can be seen."""
    write_text(spell_out(line).replace("\n", "\\n"), 4)


def _print_difference(found: LockDifference) -> None:
    _print(f"{found.label}{f' {found.tool}' if found.tool else ''}: {found.what}")
    before, after = found.before.splitlines(), found.after.splitlines()
    for line in unified_diff(before, after, "approved", "now", lineterm="", n=1):
        _print(f"  {line}")


def _warn(offer: ServerOffer, tools: Sequence[str] | None = None) -> None:
    """Says what in the words of a server reads like orders to the model."""
    for tool in offer.tools:
        if tools is None or tool.name in tools:
            for finding in scan({"description": tool.description, "schema": tool.schema}):
                say(f"{offer.spec.label} {tool.name}: {finding.path} reads like orders to the model ({finding.rule})")


class ToolRow(Struct, frozen=True):
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
    location = parse_location(settings.database)
    async with open_store(location) as store:
        yield open_sign_ins.open_sign_ins(store, location, AddressGuard(settings.allow_hosts), secret_key=settings.secret_key)


class _Collected(Struct, frozen=True):
    """What some servers offer, and how they are doing."""

    tools: Toolset
    states: tuple[ServerState, ...]


async def _collect_tools(
    settings: McpSettings, specs: Sequence[ServerSpec], seconds: float = CONNECT_SECONDS, *, is_held: bool = True
) -> _Collected:
    """With `is_held`, only what was approved."""
    async with AsyncExitStack() as stack:
        builtins = await stack.enter_async_context(BuiltinTools(wraps=any(spec.is_held for spec in specs)))
        lock = LockFile(Path(settings.mcp_lock)) if is_held else None
        has_sign_ins = any(spec.oauth is not None for spec in specs)
        sign_ins = await stack.enter_async_context(_open_sign_ins(settings)) if has_sign_ins else None
        tools = McpTools(specs, wrap=builtins.wrap, start_seconds=seconds, sign_ins=sign_ins, lock=lock)
        try:
            return _Collected(await tools.collect_tools(), tools.states)
        finally:
            await tools.close()


def _not_known(label: str | None, servers: Sequence[ServerSpec]) -> InvalidRequest:
    known = ", ".join([f"`{spec.label}`" for spec in servers]) or "none; add one with `mainspring mcp add`"
    return InvalidRequest(NO_SERVERS if label is None else f"there is no MCP server `{label}`; known: {known}")


async def _connect(label: str | None, config: Path, *, with_tools: bool, as_json: bool = False) -> int:
    settings = _load(config)
    servers = make_server_specs(settings.mcp)
    chosen = [spec for spec in servers if label in (None, spec.label)]
    if not chosen:
        raise _not_known(label, servers)
    collected = await _collect_tools(settings, chosen)
    found, states = collected.tools, {state.label: state for state in collected.states}
    for offer in found.offers:
        if (error := _find_error(offer)) is not None:
            say(f"{offer.spec.label}: {error}")
        elif not with_tools:
            _print(f"{offer.spec.label}  answers, with {len(offer.tools)} tools{_describe_state(states[offer.spec.label])}")
        for rejected in offer.rejected:
            say(f"{offer.spec.label}: tool `{rejected.name}` cannot be used: {rejected.reason}")
    if as_json:
        write_lines([ToolRow(name, route.spec.label, route.tool.description) for name, route in found.routes.items()])
    for name, route in found.routes.items() if with_tools and not as_json else ():
        _print(f"{name}  {' '.join(route.tool.description.split())[:100]}")
    return 1 if any(_find_error(offer) for offer in found.offers) else 0


def _parse_pairs(given: Sequence[str], sign: str) -> dict[str, str]:
    pairs = [text.partition(sign) for text in given]
    for name, found, _ in pairs:
        if not found or not name.strip():
            raise InvalidRequest(f"`{name}` must be NAME{sign}VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}
