"""Asks the model for an MCP server, as a run of its own: under the caller's key, charters and budget, and at its expense.

The operator allows it for each server (`sampling`). The run has no tools, and its id follows from the call, so that a call that
is taken up after a crash asks once.
"""

from collections import Counter
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from mainspring.core.delegation import child_id
from mainspring.core.errors import MainspringError, NotFound
from mainspring.core.items import InputImage, InputText, Item, Json, Message, OutputText, Part
from mainspring.core.run import Run
from mainspring.core.spec import ToolChoice, spec_for
from mainspring.ports import CallContext
from mainspring.tools.mcp.json_rpc import refuse

MOST_TOKENS = 4_096
MOST_SAMPLES = 16


class Sampler:
    """What one call's server has the model say."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._asked: Counter[str] = Counter()

    async def ask_model(self, params: Json) -> Run:
        """The run that answers `sampling/createMessage`. Raises `RequestRefused`."""
        if params.get("tools"):
            raise refuse("The model is asked without tools")
        try:
            return await self._run(params)
        except MainspringError as error:
            raise refuse(f"The model was not asked: {error.message}") from error

    async def _run(self, params: Json) -> Run:
        context = self._context
        assert context.runs is not None, "servers are called by runs of an engine"
        # By what is asked, not when: a call that is taken up after a crash begins to count anew.
        told = {name: value for name, value in params.items() if name != "_meta"}
        digest = sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()
        self._asked[digest] += 1
        id = child_id(context.run_id, f"{context.call_id} samples {digest} {self._asked[digest]}")
        try:
            handle = await context.runs.resume(id)
        except NotFound:
            caller = (await context.runs.attach(context.run_id)).run.spec
            asked = params.get("maxTokens")
            order = spec_for(
                "responses",
                id=id,
                model=caller.model,
                input=read_messages(params.get("messages")),
                instructions=str(params.get("systemPrompt") or "") or None,
                tool_choice=ToolChoice("none"),
                tenant=caller.tenant,
                caller=caller.caller,
                store=caller.store,
                within=caller.id,
                charters=caller.charters,
                max_turn_tokens=min(asked, MOST_TOKENS) if isinstance(asked, int) and asked > 0 else MOST_TOKENS,
            )
            handle = await context.runs.start(replace(order, budget=caller.budget))
        return await handle.wait()


def render_sample(run: Run) -> Json:
    """The result of `sampling/createMessage`. Raises `RequestRefused`."""
    if run.status not in ("completed", "incomplete"):
        raise refuse(f"The model gave no answer: {run.reason}")
    stop = "endTurn" if run.status == "completed" else "maxTokens"
    return {"role": "assistant", "content": {"type": "text", "text": run.text}, "model": run.spec.model, "stopReason": stop}


def read_messages(messages: object) -> tuple[Item, ...]:
    """The messages as items. Raises `RequestRefused` for what no model is shown."""
    if not isinstance(messages, list) or not messages:
        raise refuse("There are no messages for the model")
    return tuple([_read_message(message) for message in messages])


def _read_message(message: object) -> Item:
    match message:
        case {"role": "user" | "assistant" as role, "content": dict(content)}:
            return Message(role=role, content=(_read_part(role, content),))
        case {"role": "user" | "assistant" as role, "content": [*contents]}:
            return Message(role=role, content=tuple([_read_part(role, each) for each in contents]))
        case _:
            raise refuse("A message for the model is none")


def _read_part(role: str, content: object) -> Part:
    match content:
        case {"type": "text", "text": str(text)}:
            return InputText(text) if role == "user" else OutputText(text)
        case {"type": "image", "data": str(data), "mimeType": str(mime)} if role == "user" and mime.startswith("image/"):
            return InputImage(f"data:{mime};base64,{data}")
        case _:
            raise refuse("The model is asked with text and images alone")
