"""What becomes of everything that the Responses API knows: the rows of docs/compatibility.md, each of which a test tries out.

After a change here: `python -m scripts.compatibility` writes the page.
"""

from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]
Kind = Literal["field", "tool", "item", "content part", "include value", "event"]
Verdict = Literal["works", "passed on", "refused", "ignored", "not sent"]

VERDICTS: dict[Verdict, str] = {
    "works": "has the effect that it has with OpenAI, whatever the model",
    "passed on": "reaches a backend that speaks the Responses API as it is; with others it is refused, or ignored if it says so",
    "refused": "400 or 404, with the name of the field and what to do",
    "ignored": "accepted, without effect, and listed in `Mainspring-Ignored`",
    "not sent": "an event that this server never sends",
}


class Case(Struct, frozen=True):
    """A row. `body` is a request that has it; `sent` is what the model's backend is asked because of it, `told` what the Response
    says. `param` is what a refusal or the list of what is ignored names. A row that takes a world of its own names the test that
    shows it in `shown_by`."""

    kind: Kind
    name: str
    verdict: Verdict
    body: Json = {}
    note: str = ""
    param: str = ""
    sent: Json = {}
    told: Json = {}
    shown_by: str = ""
    is_ignored_elsewhere: bool = False


LIMITS = "tests/server/test_limits.py::test_settings_definitions_and_requests_set_limits_the_later_ones_first"
HELLO: Json = {"role": "user", "content": "hello"}
FUNCTION: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SCHEMA: Json = {"type": "json_schema", "name": "town", "schema": {"type": "object"}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _field(name: str, verdict: Verdict, value: object, note: str = "", **more: Any) -> Case:
    more = {"param": name, **more} if verdict != "works" else more
    return Case("field", name, verdict, {name: value}, note, **more)


def _tool(kind: str, verdict: Verdict, note: str = "", shown_by: str = "", /, **fields: Any) -> Case:
    body = {"tools": [{"type": kind, **fields}]}
    return Case("tool", kind, verdict, body, note, param="tools[0].type", shown_by=shown_by)


def _item(name: str, verdict: Verdict, *items: Json, note: str = "", shown_by: str = "") -> Case:
    return Case("item", name, verdict, {"input": [*items, HELLO]}, note, param="input[0].type", shown_by=shown_by)


def _part(name: str, verdict: Verdict, role: str = "user", note: str = "", **fields: Any) -> Case:
    message = {"role": role, "content": [{"type": name, **fields}]}
    return Case("content part", name, verdict, {"input": [message, HELLO]}, note, param="input[0].content[0].type")


def _include(name: str, verdict: Verdict, note: str = "", **more: Any) -> Case:
    is_foreign = verdict == "passed on"
    return Case("include value", name, verdict, {"include": [name]}, note, "include[0]", is_ignored_elsewhere=is_foreign, **more)


def _event(name: str, verdict: Verdict = "works", says: str = "hello", note: str = "", shown_by: str = "", **more: Any) -> Case:
    return Case("event", name, verdict, {"input": says, "stream": True, **more}, note, shown_by=shown_by)


FIELDS = (
    _field("model", "works", "chat/m", "a model of the backend, an alias, or `agent:NAME`", sent={"model": "m"}),
    _field("input", "works", "hello", sent={"messages": [{"role": "user", "content": "hello"}]}),
    _field(
        "instructions",
        "works",
        "Be brief.",
        sent={"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]},
    ),
    _field("previous_response_id", "works", "RESPONSE", told={"previous_response_id": "RESPONSE"}),
    _field("conversation", "works", "CONVERSATION", "not with `store: false`", told={"conversation": {"id": "CONVERSATION"}}),
    _field("tools", "works", [FUNCTION], "kinds: see below"),
    Case("field", "tool_choice", "works", {"tools": [FUNCTION], "tool_choice": "none"}, sent={"tool_choice": "none"}),
    Case(
        "field",
        "allowed_tools",
        "works",
        {"tools": [FUNCTION], "allowed_tools": ["weather"]},
        "not of OpenAI: names of tools, short for a `tool_choice` of that type",
        told={
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
        },
    ),
    Case(
        "field",
        "parallel_tool_calls",
        "works",
        {"tools": [FUNCTION], "parallel_tool_calls": False},
        sent={"parallel_tool_calls": False},
    ),
    _field("max_tool_calls", "works", 3, told={"max_tool_calls": 3}),
    _field("max_output_tokens", "works", 64, sent={"max_tokens": 64}),
    *[
        _field(name, "works", value, "not of OpenAI: see [limits](server.md#limits-of-a-response)", shown_by=LIMITS)
        for name, value in (
            ("max_turns", 3),
            ("max_errors_in_row", 3),
            ("max_tool_calls_per_turn", 3),
            ("tool_seconds", 3.5),
            ("max_seconds", 30.5),
        )
    ],
    _field("temperature", "works", 0.5, sent={"temperature": 0.5}),
    _field("top_p", "works", 0.5, sent={"top_p": 0.5}),
    _field(
        "top_logprobs",
        "works",
        2,
        "with `chat` and `responses` backends; others: refused",
        sent={"logprobs": True, "top_logprobs": 2},
    ),
    _field("presence_penalty", "works", 0.5, "with `chat` backends; others: refused", sent={"presence_penalty": 0.5}),
    _field("frequency_penalty", "works", 0.5, "with `chat` backends; others: refused", sent={"frequency_penalty": 0.5}),
    _field("logprobs", "works", True, "not of OpenAI's Responses API; as the include value", sent={"logprobs": True}),
    _field("text", "works", {"format": {"type": "json_object"}}, sent={"response_format": {"type": "json_object"}}),
    Case(
        "field",
        "text.verbosity",
        "passed on",
        {"text": {"verbosity": "low"}},
        "others: ignored",
        "text.verbosity",
        sent={"text": {"verbosity": "low"}},
        is_ignored_elsewhere=True,
    ),
    _field("reasoning", "works", {"effort": "low"}, sent={"reasoning_effort": "low"}),
    Case(
        "field",
        "reasoning.summary",
        "passed on",
        {"reasoning": {"summary": "auto"}},
        "others: ignored",
        "reasoning.summary",
        sent={"reasoning": {"summary": "auto"}},
        is_ignored_elsewhere=True,
    ),
    _field("truncation", "works", "auto", told={"truncation": "auto"}),
    _field("context_management", "works", [{"type": "compaction", "compact_threshold": 100000}]),
    _field("store", "works", False, told={"store": False}),
    _field("background", "works", True, told={"background": True}),
    _field("stream", "works", True),
    _field("generate", "works", False, "of Codex: nothing is asked, and the response can be continued", told={"output": []}),
    _field("stream_options", "works", {"include_obfuscation": False}),
    Case(
        "field",
        "stream_options.include_obfuscation",
        "ignored",
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "deltas are not padded",
        "stream_options.include_obfuscation",
    ),
    _field("metadata", "works", {"ticket": "7"}, told={"metadata": {"ticket": "7"}}),
    _field("safety_identifier", "works", "somebody", "kept with the response", told={"safety_identifier": "somebody"}),
    _field("prompt_cache_key", "works", "key", "kept with the response", told={"prompt_cache_key": "key"}),
    _field("user", "works", "somebody", "kept with the response", told={"user": "somebody"}),
    _field("include", "works", ["reasoning.encrypted_content"], "values: see below"),
    Case(
        "field",
        "prompt",
        "works",
        note="the id of a prompt, or the name of an agent, with variables; one that does not exist is 404",
        shown_by="tests/server/test_prompts.py::test_a_response_by_openais_client_has_the_prompt_filled_in",
    ),
    _field("service_tier", "ignored", "priority", "`auto` and `default` are what there is"),
    _field("prompt_cache_options", "ignored", {"mode": "explicit"}),
    _field("prompt_cache_retention", "ignored", "24h"),
    _field("access_programs", "ignored", {"x": 1}),
    _field("image", "ignored", {"x": 1}),
    _field("client_metadata", "ignored", {"session": "1"}, "of Codex; so is any other field that nobody knows"),
    _field("moderation", "refused", {"model": "omni-moderation-latest"}, "nothing is moderated here"),
    _field("temprature", "refused", 0.5, "misspelt, as any field that is almost a known one"),
    _field("conversation_id", "refused", "conv_1", "`conversation`"),
    _field("agent", "refused", "bee", "`model: agent:NAME`, or `prompt`"),
    _field("messages", "refused", [HELLO], "of Chat Completions: `input`"),
    _field("max_tokens", "refused", 100, "of Chat Completions: `max_output_tokens`"),
    _field("response_format", "refused", {"type": "text"}, "of Chat Completions: `text.format`"),
    _field("stop", "refused", ["."], "of Chat Completions"),
)
TOOLS = (
    _tool("function", "works", name="weather", parameters={"type": "object"}),
    _tool("custom", "works", "a grammar is told to the model, and not enforced", name="query"),
    _tool("shell", "works", "`environment: local` at the client; in a container with `--builtin shell`"),
    _tool("local_shell", "works"),
    _tool("apply_patch", "works"),
    _tool(
        "code_interpreter",
        "works",
        "with `--builtin code_interpreter`; else refused",
        "tests/clients/test_builtins.py::test_code_runs_and_keeps_its_variables_along_a_chain",
    ),
    _tool(
        "mcp",
        "works",
        "by streamable HTTP or HTTP+SSE",
        "tests/clients/test_mcp.py::test_the_tools_of_a_server_are_listed_and_called",
    ),
    *[
        _tool(
            name,
            "works",
            "with [a search service](files-and-search.md#web-search); else passed on",
            "tests/search/test_web_search.py::test_the_model_searches_and_what_it_cites_is_annotated",
        )
        for name in ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
    ],
    _tool(
        "file_search",
        "works",
        "over [vector stores](files-and-search.md#file-search) of this server; others are passed on",
        "tests/search/test_file_search.py::test_the_model_searches_and_what_it_cites_is_annotated",
    ),
    _tool("image_generation", "passed on"),
    _tool("computer", "passed on"),
    _tool("computer_use_preview", "passed on", display_height=1, display_width=1, environment="browser"),
    _tool("programmatic_tool_calling", "passed on"),
    _tool("namespace", "works", name="n", description="d", tools=[FUNCTION]),
    _tool("tool_search", "works", "performed by the server, or by the client that says so"),
    Case(
        "tool",
        "websearch",
        "refused",
        {"tools": [{"type": "websearch"}]},
        "misspelt, as any kind that nobody knows",
        "tools[0].type",
    ),
)


def _call(kind: str, **fields: Any) -> Json:
    return {"type": kind, "id": "x_1", "call_id": "call_1", "status": "completed", **fields}


_FUNCTION_PAIR = (_call("function_call", name="weather", arguments="{}"), _call("function_call_output", output="22"))
_CUSTOM_PAIR = (
    {"type": "custom_tool_call", "call_id": "call_1", "name": "query", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "call_1", "output": "y"},
)
_SHELL_PAIR = (
    _call("shell_call", action={"commands": ["ls"]}, environment={"type": "local"}),
    _call("shell_call_output", output=[{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]),
)
_LOCAL_SHELL_PAIR = (
    _call("local_shell_call", action={"type": "exec", "command": ["ls"], "env": {}}),
    {"type": "local_shell_call_output", "id": "call_1", "output": "a"},
)
_PATCH_PAIR = (
    _call("apply_patch_call", operation={"type": "delete_file", "path": "a"}),
    _call("apply_patch_call_output", output="Done."),
)
_COMPUTER_PAIR = (
    _call("computer_call", action={"type": "screenshot"}, pending_safety_checks=[]),
    _call("computer_call_output", output={"type": "computer_screenshot", "image_url": PIXEL}),
)
_SEARCH_PAIR = (
    _call("tool_search_call", arguments={}, execution="client"),
    _call("tool_search_output", tools=[], execution="client"),
)
_PROGRAM_PAIR = (_call("program", code="1", fingerprint="f"), _call("program_output", result="1"))
ITEMS = (
    _item("message", "works", {"type": "message", "role": "developer", "content": "Be brief."}),
    _item("function_call", "works", *_FUNCTION_PAIR),
    _item("function_call_output", "works", *_FUNCTION_PAIR),
    _item("custom_tool_call", "works", *_CUSTOM_PAIR),
    _item("custom_tool_call_output", "works", *_CUSTOM_PAIR),
    _item("shell_call", "works", *_SHELL_PAIR),
    _item("shell_call_output", "works", *_SHELL_PAIR),
    _item("local_shell_call", "works", *_LOCAL_SHELL_PAIR),
    _item("local_shell_call_output", "works", *_LOCAL_SHELL_PAIR),
    _item("apply_patch_call", "works", *_PATCH_PAIR),
    _item("apply_patch_call_output", "works", *_PATCH_PAIR),
    _item(
        "reasoning",
        "works",
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "So."}]},
        note="goes back to the backend that thought it; others are not shown it",
        shown_by="tests/providers/test_responses.py::test_a_sealed_thought_goes_back_whole",
    ),
    _item("item_reference", "works", {"type": "item_reference", "id": "ITEM"}, note="to an item that is stored here"),
    _item(
        "compaction",
        "works",
        note="one that this server has made",
        shown_by="tests/clients/test_openai.py::test_a_long_conversation_is_compacted_and_goes_on",
    ),
    _item(
        "mcp_call",
        "works",
        {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "add", "arguments": "{}", "output": "3"},
    ),
    _item("mcp_list_tools", "works", {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []}),
    _item(
        "mcp_approval_request",
        "works",
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "add", "arguments": "{}"},
    ),
    _item(
        "mcp_approval_response",
        "works",
        note="to a request that waits; it is sent along, referred to, or of the previous response",
        shown_by="tests/clients/test_mcp_approvals.py::test_agents_callback",
    ),
    _item(
        "code_interpreter_call",
        "works",
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "1",
            "container_id": "cntr_1",
            "outputs": [],
            "status": "completed",
        },
    ),
    _item(
        "web_search_call",
        "works",
        note="with [a search service](files-and-search.md#web-search); else passed on",
        shown_by="tests/search/test_web_search.py::test_a_client_that_keeps_the_history_sends_it_back",
    ),
    _item("file_search_call", "works", {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": []}),
    _item(
        "image_generation_call", "passed on", {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": ""}
    ),
    _item("computer_call", "passed on", *_COMPUTER_PAIR),
    _item("computer_call_output", "passed on", *_COMPUTER_PAIR),
    _item("tool_search_call", "works", *_SEARCH_PAIR),
    _item("tool_search_output", "works", *_SEARCH_PAIR),
    _item("program", "passed on", *_PROGRAM_PAIR),
    _item("program_output", "passed on", *_PROGRAM_PAIR),
    _item("additional_tools", "works", {"type": "additional_tools", "role": "developer", "tools": []}),
    _item("configuration_update", "passed on", {"type": "configuration_update", "reasoning": {"effort": "low"}}),
    Case(
        "item",
        "compaction_trigger",
        "works",
        {"input": [HELLO, {"type": "compaction_trigger"}]},
        "as the last item",
        told={"status": "completed"},
    ),
)
PARTS = (
    _part("input_text", "works", text="hello"),
    _part("input_image", "works", image_url=PIXEL, detail="auto"),
    _part("input_file", "works", filename="a.txt", file_data="data:text/plain;base64,aGVsbG8="),
    _part("output_text", "works", "assistant", text="Hi.", annotations=[]),
    _part("refusal", "works", "assistant", refusal="No."),
    _part(
        "input_audio",
        "works",
        note="with `chat`, `responses` and `gemini` backends; others: refused",
        input_audio={"data": "UklGRg==", "format": "wav"},
    ),
    _part("input_video", "passed on", video_url="https://example.org/a.mp4"),
)
INCLUDES = (
    _include("reasoning.encrypted_content", "works"),
    _include(
        "message.output_text.logprobs", "works", "with `chat` and `responses` backends; others: refused", sent={"logprobs": True}
    ),
    _include("message.input_image.image_url", "works", "always there"),
    _include("code_interpreter_call.outputs", "works", "always there"),
    _include("file_search_call.results", "works"),
    _include("web_search_call.results", "works"),
    _include("web_search_call.action.sources", "works", "there in any case"),
    _include(
        "computer_call_output.output.image_url",
        "passed on",
        "others: ignored",
        sent={"include": ["computer_call_output.output.image_url"]},
    ),
)
_CALLS_WEATHER: Json = {"says": "call weather", "tools": [FUNCTION]}
_CALLS_QUERY: Json = {"says": "call query", "tools": [{"type": "custom", "name": "query"}]}
_CALLS_SHELL: Json = {"says": "call shell", "tools": [{"type": "shell"}]}
_LISTED = "tests/clients/test_mcp.py::test_a_stream_tells_of_the_list_and_the_call"
_CODE = "tests/clients/test_builtins.py::test_a_stream_tells_of_the_code_and_shows_the_image"
EVENTS = (
    *[
        _event(f"response.{name}")
        for name in (
            "created",
            "in_progress",
            "completed",
            "output_item.added",
            "output_item.done",
            "content_part.added",
            "content_part.done",
            "output_text.delta",
            "output_text.done",
        )
    ],
    _event("response.queued", background=True),
    _event("response.incomplete", says="cut"),
    _event("response.failed", says="fail"),
    _event("error", says="fail", note="before `response.failed`; `Mainspring-Error-Event: off` leaves it out"),
    _event("response.reasoning_text.delta", says="think"),
    _event("response.reasoning_text.done", says="think"),
    _event("response.refusal.delta", says="refuse"),
    _event("response.refusal.done", says="refuse"),
    _event("response.output_text.annotation.added", says="cite"),
    _event("response.function_call_arguments.delta", **_CALLS_WEATHER),
    _event("response.function_call_arguments.done", **_CALLS_WEATHER),
    _event("response.custom_tool_call_input.delta", **_CALLS_QUERY),
    _event("response.custom_tool_call_input.done", **_CALLS_QUERY),
    _event("response.shell_call_command.added", **_CALLS_SHELL),
    _event("response.shell_call_command.delta", **_CALLS_SHELL),
    _event("response.shell_call_command.done", **_CALLS_SHELL),
    _event("response.mcp_call.in_progress", says="call clock", note="also for the server's own tools"),
    _event("response.mcp_call.completed", says="call clock"),
    _event("response.mcp_call.failed", says="call broken"),
    _event("response.mcp_call_arguments.delta", says="call clock"),
    _event("response.mcp_call_arguments.done", says="call clock"),
    _event("response.mcp_list_tools.in_progress", shown_by=_LISTED),
    _event("response.mcp_list_tools.completed", shown_by=_LISTED),
    _event(
        "response.mcp_list_tools.failed",
        shown_by="tests/clients/test_mcp.py::test_a_server_that_is_down_costs_only_its_own_tools",
    ),
    *[
        _event(f"response.code_interpreter_call{name}", shown_by=_CODE)
        for name in (".in_progress", ".interpreting", ".completed", "_code.delta", "_code.done")
    ],
    *[
        _event(
            f"response.reasoning_summary_{name}",
            note="when the backend sends summaries",
            shown_by="tests/server/test_wire.py::test_many_parts_annotations_summaries_and_unknown_items_are_streamed_in_order",
        )
        for name in ("part.added", "part.done", "text.delta", "text.done")
    ],
    *[
        _event(f"response.file_search_call.{name}", shown_by="tests/search/test_file_search.py::test_events_come_in_their_order")
        for name in ("in_progress", "searching", "completed")
    ],
    *[
        _event(f"response.web_search_call.{name}", shown_by="tests/search/test_web_search.py::test_events_come_in_their_order")
        for name in ("in_progress", "searching", "completed")
    ],
    *[
        _event(name, "not sent")
        for name in (
            "response.audio.delta",
            "response.audio.done",
            "response.audio.transcript.delta",
            "response.audio.transcript.done",
            "response.compaction.compacting",
            "response.image_generation_call.in_progress",
            "response.image_generation_call.generating",
            "response.image_generation_call.partial_image",
            "response.image_generation_call.completed",
            "response.shell_call_output_content.delta",
            "response.shell_call_output_content.done",
        )
    ],
)

CASES: tuple[Case, ...] = (*FIELDS, *TOOLS, *ITEMS, *PARTS, *INCLUDES, *EVENTS)

CLIENTS: tuple[tuple[str, str], ...] = (
    ("openai (Python)", "tests/clients/test_openai.py"),
    ("openai (Python), streams", "tests/clients/test_openai_streams.py"),
    ("openai (Python), WebSocket", "tests/clients/test_sockets.py"),
    ("openai and the AI SDK (Node)", "tests/clients/test_node.py"),
    ("openai-agents", "tests/clients/test_agents.py"),
    ("openai-agents (Python and Node) and the AI SDK, approvals", "tests/clients/test_mcp_approvals.py"),
    ("Codex", "tests/clients/test_codex.py"),
    ("langchain-openai", "tests/clients/test_langchain.py"),
    ("pydantic-ai", "tests/clients/test_pydantic_ai.py"),
    ("openai, anthropic, LangChain and the AI SDK through [other doors](doors.md)", "tests/clients/test_doors.py"),
    ("litellm, smolagents, llm, llama-index, aider and Claude Code through them", "tests/clients/run_programs.py"),
    ("curl", "tests/clients/test_curl.py"),
    ("the compliance suite of Open Responses", "tests/clients/test_conformance.py"),
    ("the conformance suite of MCP, for [what asks servers](mcp.md)", "tests/mcp/test_conformance.py"),
    ("the conformance suite of MCP, for [`/mcp`](mcp.md#mainspring-as-a-server)", "tests/mcp_server/test_conformance.py"),
    ("the conformance suite of MCP, for the task server", "tests/tasks/test_conformance.py"),
    ("the MCP SDK (Python), at `/mcp` and on standard input", "tests/mcp_server/test_calls.py"),
    ("the MCP SDK (TypeScript), at `/mcp`", "tests/mcp_server/test_node.py"),
    ("the MCP inspector", "tests/clients/run_programs.py"),
)
