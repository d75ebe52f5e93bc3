"""Merges the tools of several MCP servers into one set for a model.

The model's name for a tool is the server's own where that is unique, else `server__tool`, and always valid for every provider.
The operator's servers come first: a tool of another server gets none of their names. Names are never parsed: the set maps each to
its tool.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Effect, Json, ToolDefinition, encode
from mainspring.core.look_alikes import LONGEST_NAME, fold_name
from mainspring.core.text import shorten_line
from mainspring.core.tool_names import clean_name, fit_name, propose_names
from mainspring.tools.mcp.exchange import RejectedTool, RemoteTool, ToolListing
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.schema import Validator

# What a model is told of one server, however much that has to say.
MOST_TOOLS = 128
LONGEST_DESCRIPTION = 8_000
MOST_SCHEMA_BYTES = 64_000
MOST_BYTES = 512_000
SIGN_IN = "sign_in_to_"


class ServerOffer(Struct, frozen=True):
    """The tools of one server: those that may be used, those that are rejected, or why there are none. One that `is_refused` is
    another than was approved."""

    spec: ServerSpec
    tools: tuple[RemoteTool, ...] = ()
    rejected: tuple[RejectedTool, ...] = ()
    error: str | None = None
    needs_sign_in: bool = False
    is_refused: bool = False
    says: str = ""


class ToolRoute(Struct, frozen=True):
    """A tool under the name that the model knows it by, and whose it is."""

    spec: ServerSpec
    tool: RemoteTool
    definition: ToolDefinition
    needs_approval: bool


class Toolset(Struct, frozen=True):
    """The tools of some servers, for one principal and user. `routes` is by the model's names, `qualified` by `server__tool`."""

    offers: tuple[ServerOffer, ...] = ()
    routes: dict[str, ToolRoute] = {}
    qualified: dict[str, ToolRoute] = {}
    principal: str = ""
    user: str = ""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple([route.definition for route in self.routes.values()])

    def route(self, name: str) -> ToolRoute | None:
        """Whose tool this is. A qualified name is known even where a shorter one is in use: an older set may have needed it."""
        return self.routes.get(name) or self.qualified.get(name)


async def build_offer(spec: ServerSpec, listing: ToolListing) -> ServerOffer:
    """The tools that the server's spec allows, each checked by itself: an invalid one does not affect the others."""
    sound: dict[str, RemoteTool] = {}
    unsound = list(listing.rejected)
    size = 0
    for listed in listing.tools:
        await asyncio.sleep(0)  # schemas may take a while to compile
        if not spec.offers(listed.name, listed.is_read_only):
            continue
        tool = replace(listed, description=listed.description[:LONGEST_DESCRIPTION])
        if len(sound) >= MOST_TOOLS:
            unsound.append(RejectedTool(shorten_line(tool.name), f"the server has more than {MOST_TOOLS} tools"))
        elif is_sign_in(spec, tool.name):
            unsound.append(RejectedTool(shorten_line(tool.name), "a tool of this name is ours, to sign in to the server"))
        elif (reason := "it is listed twice" if tool.name in sound else _find_flaw(tool, size)) is None:
            sound[tool.name] = tool
            size += len(encode(tool))
        else:
            unsound.append(RejectedTool(shorten_line(tool.name), reason))
    return ServerOffer(spec, tuple(sound.values()), tuple(unsound), says=listing.says)


def make_sign_in_tool(spec: ServerSpec) -> RemoteTool:
    """The tool by which a model has a user sign in to a server whose tools it cannot know yet."""
    told = (
        f"Has the user sign in to `{spec.label}`, whose tools can be used after that. Call it when the task needs that server; "
        "the user is shown a link."
    )
    return RemoteTool(f"{SIGN_IN}{spec.label}", told, {"type": "object", "properties": {}}, {"readOnlyHint": True})


def is_sign_in(spec: ServerSpec, name: str) -> bool:
    """Whether the tool of this name is ours, to sign in to the server."""
    return spec.is_personal and name == f"{SIGN_IN}{spec.label}"


def build_toolset(
    offers: Sequence[ServerOffer],
    *,
    principal: str = "",
    user: str = "",
    taken: Collection[str] = (),
    own: Collection[str] = (),
) -> Toolset:
    """All tools of all offers, each with a name of its own that is not one of `taken`. One that imitates a tool of another
    server, or is called like one of our `own`, is rejected."""
    offers = _reject_imitations(offers, frozenset([fold_name(name) for name in own]))
    routes: dict[str, ToolRoute] = {}
    qualified: dict[str, ToolRoute] = {}
    for is_trusted in (True, False):
        every = [(offer.spec, tool) for offer in offers if offer.spec.trusted == is_trusted for tool in offer.tools]
        shorts = Counter([clean_name(tool.name) for _, tool in every])
        used = {*taken, *qualified, *[clean_name(route.tool.name) for route in routes.values()]}
        for spec, tool in every:
            whole = f"{spec.label}\0{tool.name}"
            short, long = clean_name(tool.name), f"{clean_name(spec.label)}__{clean_name(tool.name)}"
            preferred = short if shorts[short] == 1 and short not in used else long
            name = next(name for name in propose_names(preferred, whole) if name not in routes and name not in used)
            routes[name] = route = _build_route(spec, tool, name)
            qualified.setdefault(fit_name(long, whole), route)
    return Toolset(tuple(offers), routes, qualified, principal, user)


def _reject_imitations(offers: Sequence[ServerOffer], own: Collection[str]) -> Sequence[ServerOffer]:
    """Names belong to whoever comes first: our own tools, whose names are folded, then the operator's servers, in the order of
    the settings."""
    names: dict[str, tuple[str, str]] = {}
    qualified: dict[tuple[str, str], tuple[str, str]] = {}
    flaws: dict[tuple[str, str], str] = {}
    for offer in sorted(offers, key=lambda offer: not offer.spec.trusted):
        label = offer.spec.label
        for tool in offer.tools:
            folded, whole = fold_name(tool.name), (fold_name(label), fold_name(tool.name))
            if not folded:
                continue  # there is nothing but separators to be alike
            if folded in own:
                flaws[label, tool.name] = (
                    "a tool of Mainspring's has this name, or one that looks like it; leave it out with `allowed_tools`, have it "
                    "renamed, or switch the other one off"
                )
                continue
            alike = names.get(folded)
            # Tools of one name are told apart by their labels, so those must not be alike.
            known = [None if alike is not None and alike[1] == tool.name else alike, qualified.get(whole)]
            known += [qualified.get(each) for each in _split_name(tool.name)]
            imitated = next((found for found in known if found is not None and found[0] != label), None)
            if imitated is not None:
                owner, name = imitated
                flaws[label, tool.name] = (
                    f"its name imitates `{shorten_line(name)}` of the server `{owner}`; if both are wanted, leave one out with "
                    "`allowed_tools`, or have one renamed"
                )
                continue
            names.setdefault(folded, (label, tool.name))
            qualified.setdefault(whole, (label, tool.name))
    return [_reject(offer, flaws) for offer in offers] if flaws else offers


def _split_name(name: str) -> list[tuple[str, str]]:
    """The labels and tools, folded, whose qualified name this may be. A label may have `__` in it."""
    words = name[:LONGEST_NAME].split("__")
    return [(fold_name("__".join(words[:place])), fold_name("__".join(words[place:]))) for place in range(1, len(words))]


def _reject(offer: ServerOffer, flaws: Mapping[tuple[str, str], str]) -> ServerOffer:
    label = offer.spec.label
    bad = [RejectedTool(shorten_line(tool.name), flaws[label, tool.name]) for tool in offer.tools if (label, tool.name) in flaws]
    kept = tuple([tool for tool in offer.tools if (label, tool.name) not in flaws])
    return replace(offer, tools=kept, rejected=(*offer.rejected, *bad)) if bad else offer


def _find_flaw(tool: RemoteTool, others: int) -> str | None:
    """Why the tool cannot be used, beside others of that many bytes."""
    if len(encode(tool.schema)) > MOST_SCHEMA_BYTES:
        return f"its schema has more than {MOST_SCHEMA_BYTES} bytes"
    if others + len(encode(tool)) > MOST_BYTES:
        return f"what the server tells of its tools has more than {MOST_BYTES} bytes"
    try:
        Validator(ToolDefinition(tool.name, parameters=tool.schema))
    except InvalidRequest as error:
        return error.message
    return None if tool.name else "it has no name"


def _build_route(spec: ServerSpec, tool: RemoteTool, name: str) -> ToolRoute:
    definition = ToolDefinition(
        name,
        tool.description,
        _complete_schema(tool.schema),
        # Servers write schemas that strict modes refuse.
        strict=False,
        kind="mcp",
        repeatable=tool.name in spec.repeatable or tool.is_read_only or tool.annotations.get("idempotentHint") is True,
        polls=tool.name in spec.polling or (spec.trusted and tool.annotations.get("pollingHint") is True),
        effects=_read_effects(spec, tool),
        timeout=spec.task_timeout if tool.may_be_task else spec.timeout,
    )
    needs_approval = not is_sign_in(spec, tool.name) and spec.needs_approval(tool.name, tool.is_read_only)
    return ToolRoute(spec, tool, definition, needs_approval)


def _complete_schema(schema: Json) -> Json:
    # Some providers refuse an object that does not say which properties it has.
    return schema if "properties" in schema else {**schema, "properties": {}}


def _read_effects(spec: ServerSpec, tool: RemoteTool) -> tuple[Effect, ...]:
    """What a call does to the world, by the tool's annotations and the protocol's defaults; a stranger's are not believed."""
    hints = tool.annotations if spec.trusted else {}
    effects: list[Effect] = ["read"] if hints.get("readOnlyHint") is True else ["write"]
    if effects == ["write"] and hints.get("destructiveHint") is not False:
        effects.append("destructive")
    if hints.get("openWorldHint") is not False:
        effects.append("network")
    return tuple(effects)
