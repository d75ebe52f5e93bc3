"""MCP servers as others write them down: `mcpServers` and `servers` of other programs, and `server.json` of the registry."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json

# Programs that fetch what they run, so that they are of no use without the network.
FETCHERS = frozenset({"npx", "uvx", "bunx", "pnpm", "pipx", "deno", "docker", "podman"})

# What is no JSON, beside texts, in which the same may stand.
_COMMENT = re.compile(r'(?P<kept>"(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'(?P<kept>"(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_INPUT = re.compile(r"\$\{[^}]*\}")
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_ENTRY_FIELDS = frozenset({
    "type", "transport", "transportType", "command", "args", "env", "cwd", "url", "serverUrl", "httpUrl", "headers", "disabled",
    "enabled", "description", "name", "timeout", "tools", "includeTools", "disabledTools", "excludeTools", "oauth", "auth",
})  # fmt: skip
# What these say is of no use here, and losing it changes nothing about the server. Which calls are asked about is said here.
_IDLE_FIELDS = frozenset({
    "gallery", "version", "icon", "dev", "$schema", "metadata", "autoApprove", "alwaysAllow", "trust", "alwaysLoad", "watchPaths",
    "sandbox", "sandboxEnabled",
})  # fmt: skip
# What only that program can do for the server.
_FOREIGN_FIELDS = ("envFile", "headersHelper", "authProviderType", "targetAudience", "targetServiceAccount")
# How clients for OAuth are described, and what of that has no meaning here: where the browser comes back to.
_OAUTH_FIELDS = {
    "clientId": "client_id", "client_id": "client_id", "CLIENT_ID": "client_id", "clientSecret": "client_secret",
    "client_secret": "client_secret", "CLIENT_SECRET": "client_secret", "scopes": "scopes",
}  # fmt: skip
_IDLE_OAUTH_FIELDS = frozenset({"enabled", "callbackPort", "redirectUri", "redirect_uri"})
_TRANSPORTS = {
    "stdio": "stdio", "local": "stdio", "http": "http", "streamable-http": "http", "streamable_http": "http",
    "streamableHttp": "http", "sse": "sse",
}  # fmt: skip
# Some programs count seconds, and some milliseconds.
_SHORTEST_IN_MS = 1_000
_RUNNERS = {"npm": ("npx", ("-y",)), "pypi": ("uvx", ())}
# What else a file may say that starts a package. Another program, such as a shell, would start what the file says instead.
_HINTS = {"npm": ("npx", "bunx", "pnpm"), "pypi": ("uvx", "pipx")}


class ImportedServers(Struct, frozen=True):
    """The tables that settings get, by label, and what was left out, with the reason."""

    tables: dict[str, Json]
    skipped: dict[str, str]


def read_other_settings(path: Path) -> ImportedServers:
    """The servers of another program's settings. Raises `InvalidRequest` if one is not understood: then none is to be taken."""
    match _read_json(path):
        case {"mcpServers": dict(found)} | {"servers": dict(found)} | {"mcp": {"servers": dict(found)}}:
            pass
        case _:
            raise InvalidRequest(f"{path} has neither `mcpServers` nor `servers`; it is no file of MCP servers")
    tables: dict[str, Json] = {}
    skipped: dict[str, str] = {}
    for name, entry in found.items():
        label = re.sub(r"[^A-Za-z0-9_-]+", "-", str(name)).strip("-")[:64]
        if not isinstance(entry, dict) or not label:
            raise InvalidRequest(f"{path}: the server `{name}` is no table of settings, or has no name; nothing was imported")
        if entry.get("disabled") is True or entry.get("enabled") is False:
            skipped[str(name)] = "it is switched off there"
        elif variable := _INPUT.search(msgspec.json.encode(entry).decode()):
            skipped[str(name)] = (
                f"it needs a value for {variable[0]}, which only that program knows; add it with `mainspring mcp add`"
            )
        elif entry.get("disabledTools") or entry.get("excludeTools"):
            skipped[str(name)] = (
                "it leaves tools out there; add it with `mainspring mcp add`, and name the others in `allowed_tools`"
            )
        elif foreign := _find_foreign(entry):
            skipped[str(name)] = f"it needs `{foreign}`, which only that program has; add it with `mainspring mcp add`"
        elif label in tables:
            skipped[str(name)] = f"another one is called `{label}` already"
        else:
            tables[label] = _convert_entry(path, str(name), entry)
    return ImportedServers(tables, skipped)


def read_registry_entry(path: Path, env: Mapping[str, str], headers: Mapping[str, str]) -> Json:
    """The table of a server that a `server.json` describes: the first way to reach it that can be used here. Raises
    `InvalidRequest`, naming what it needs and was not given."""
    entry = _read_json(path)
    entry = entry["server"] if isinstance(entry.get("server"), dict) else entry
    packages, remotes = _list_tables(entry.get("packages")), _list_tables(entry.get("remotes"))
    for remote in remotes:
        transport = _TRANSPORTS.get(str(remote.get("type") or remote.get("transport_type")))
        if transport in ("http", "sse") and isinstance(remote.get("url"), str):
            given = _fill_values(path, "header", _list_tables(remote.get("headers")), headers)
            url = _fill_variables({**remote, "value": remote["url"]})
            if url is None:
                raise InvalidRequest(
                    f"{path}: its address is `{remote['url']}`; fill that in: mainspring mcp add LABEL --url URL"
                )
            return {
                "url": url,
                **({"transport": "sse"} if transport == "sse" else {}),
                "headers": given,
                "env": dict(env),
            }
    refused = []
    for package in packages:
        kind = str(package.get("registryType") or package.get("registry_type") or package.get("registry_name"))
        runner = _RUNNERS.get(kind)
        if runner is None or not isinstance(name := package.get("identifier") or package.get("name"), str):
            refused.append(f"from {kind}")
            continue
        match package.get("transport"):
            case {"type": str(by)} if by != "stdio":
                refused.append(f"reached by {by}")
                continue
            case _:
                pass
        command = str(package.get("runtimeHint") or runner[0])
        if command not in _HINTS[kind] or name.startswith("-"):
            raise InvalidRequest(f"{path} says to start the package `{name}` by `{command}`, which starts no package of {kind}")
        version = package.get("version")
        program = f"{name}@{version}" if isinstance(version, str) and version not in ("", "latest") else name
        before = _list_arguments(path, _list_tables(package.get("runtimeArguments")))
        behind = _list_arguments(path, _list_tables(package.get("packageArguments")))
        variables = _fill_values(path, "variable", _list_tables(package.get("environmentVariables")), env)
        flags = [flag for flag in runner[1] if flag not in before]
        return {
            "command": command,
            "args": [*flags, *before, program, *behind],
            "env": {**env, **variables},
            "headers": dict(headers),
        }
    told = f"packages {', '.join(sorted(set(refused)))}" if refused else "no package and no remote"
    raise InvalidRequest(
        f"{path} has {told}; a server is added from npm or PyPI, by standard input and output, or a remote address. One that "
        "you start yourself is added by its address: mainspring mcp add LABEL --url URL"
    )


def _read_json(path: Path) -> Json:
    """The object in a file, which may have comments, and commas behind the last entries, as editors write their settings."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}; name the file of that program") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is no text in UTF-8; name the file of that program") from error
    for unwanted in (_COMMENT, _LAST_COMMA):
        text = unwanted.sub(lambda found: found["kept"] or "", text)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path} is no JSON object: {error}") from error


def _convert_entry(path: Path, name: str, entry: Json) -> Json:
    if unknown := sorted(entry.keys() - _ENTRY_FIELDS - _IDLE_FIELDS - set(_FOREIGN_FIELDS)):
        raise InvalidRequest(f"{path}: `{unknown[0]}` of the server `{name}` is not known here; nothing was imported")
    told = entry.get("type") or entry.get("transport") or entry.get("transportType")
    transport = None if told is None else _TRANSPORTS.get(str(told))
    if told is not None and transport is None:
        raise InvalidRequest(f"{path}: the server `{name}` has the transport `{told}`, which is not known; nothing was imported")
    kept = {field: entry[field] for field in ("command", "args", "env", "cwd", "headers") if entry.get(field)}
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    tools, seconds = entry.get("includeTools") or entry.get("tools"), entry.get("timeout")
    return {
        **kept,
        **({"url": url} if url else {}),
        **({"transport": "sse"} if transport == "sse" else {}),
        **({"allowed_tools": tools} if tools and tools != ["*"] else {}),
        **({"oauth": oauth} if (oauth := _convert_oauth(entry)) is not None else {}),
        **({"timeout": seconds / 1000 if seconds >= _SHORTEST_IN_MS else seconds} if isinstance(seconds, int | float) else {}),
    }


def _find_foreign(entry: Json) -> str | None:
    """What the server needs of the program whose settings these are, if it needs something."""
    needed = [field for field in _FOREIGN_FIELDS if entry.get(field)]
    needed += [field for field in _get_oauth(entry) or {} if field not in _OAUTH_FIELDS and field not in _IDLE_OAUTH_FIELDS]
    return needed[0] if needed else None


def _get_oauth(entry: Json) -> Json | None:
    """How the server is signed in to, if that is said."""
    told = entry.get("oauth") or entry.get("auth")
    return told if isinstance(told, dict) and told.get("enabled") is not False else None


def _convert_oauth(entry: Json) -> Json | None:
    told = _get_oauth(entry)
    if told is None:
        return None
    found = {_OAUTH_FIELDS[field]: value for field, value in told.items() if field in _OAUTH_FIELDS and value}
    scopes = found.get("scopes")
    return {**found, "scopes": scopes.split()} if isinstance(scopes, str) else found


def _list_tables(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _fill_values(path: Path, what: str, wanted: Sequence[Json], given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in wanted:
        name = str(each.get("name"))
        if name in given:
            found[name] = given[name]
        elif (value := _fill_variables(each)) is not None:
            found[name] = value
        elif _is_required(each):
            option = "--header NAME:VALUE" if what == "header" else "--env NAME=VALUE"
            raise InvalidRequest(f"{path}: the server needs the {what} `{name}`; give it with {option}")
    return found


def _list_arguments(path: Path, wanted: Sequence[Json]) -> list[str]:
    found: list[str] = []
    for each in wanted:
        name, value = each.get("name"), _fill_variables(each)
        if value is not None:
            found += [name, value] if each.get("type") == "named" and isinstance(name, str) else [value]
        elif _is_required(each):
            told = str(name or each.get("valueHint") or each.get("description") or "argument")
            raise InvalidRequest(
                f"{path}: the server needs a value for `{told}`; add it by its command: mainspring mcp add LABEL -- ..."
            )
    return found


def _fill_variables(entry: Json) -> str | None:
    """The value of an entry with its variables filled in; None if there is no value, or not of each variable."""
    value, variables = entry.get("value", entry.get("default")), _get_variables(entry)
    if not isinstance(value, str) or _INPUT.search(value):
        return None
    known = {
        name: variables.get(name, {}).get("value", variables.get(name, {}).get("default")) for name in _VARIABLE.findall(value)
    }
    if any(not isinstance(each, str) for each in known.values()):
        return None
    return _VARIABLE.sub(lambda found: str(known[found[1]]), value)


def _is_required(entry: Json) -> bool:
    """Whether the server is of no use without a value: it says so of the entry or of a variable in it, or has not said what a
    variable is."""
    variables = _get_variables(entry)
    named = [variables.get(name, {"isRequired": True}) for name in _VARIABLE.findall(str(entry.get("value", "")))]
    return any(each.get("isRequired") or each.get("is_required") for each in (entry, *named))


def _get_variables(entry: Json) -> dict[str, Json]:
    found = entry.get("variables")
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}
