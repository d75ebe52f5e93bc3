"""Ways in which backends refuse what others take, word by word as they were seen, and what they take instead."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from msgspec import Struct
from tests.zoo.animal import assistants, call_ids, mentions, outputs
from tests.zoo.requests import HISTORY, SCHEMA

from mainspring.core.items import Json

FORMAT = {"format": {"type": "json_schema", "name": "time", "schema": SCHEMA}}
JSON = '{"hour": 12}'
WORD = {"type": "object", "properties": {"word": {"type": "string", "minLength": 1}}, "required": ["word"]}
LENGTH: dict[str, Any] = {"tools": [{"type": "function", "name": "look_up", "parameters": WORD, "strict": False}]}
SYSTEM: dict[str, Any] = {"instructions": "Be brief."}
PARTS: dict[str, Any] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": word} for word in ("What time", "is it?")]}]
}
MINIMAL: dict[str, Any] = {"reasoning": {"effort": "minimal"}}
LARGE: dict[str, Any] = {"max_output_tokens": 100_000}


class Phrase(Struct, frozen=True):
    """`words` are said of a request for which `is_wrong` holds."""

    words: str
    is_wrong: Callable[[Json], bool]
    request: dict[str, Any] = {}
    status: int = 400
    answer: str = "It is noon."


def speaks_twice(body: Json) -> bool:
    roles = [message["role"] for message in body["messages"]]
    return "system" in roles or any(first == second == "user" for first, second in pairwise(roles))


def interrupts(body: Json) -> bool:
    roles = [message["role"] for message in body["messages"]]
    return any(pair == ("tool", "user") for pair in pairwise(roles))


def lacks_content(body: Json) -> bool:
    return any("content" not in message or not isinstance(message["content"], str) for message in assistants(body))


def is_blank(body: Json) -> bool:
    return any(not message.get("content") for message in body["messages"])


def lacks_words(body: Json) -> bool:
    return any(not message.get("content") for message in assistants(body))


def writes_arguments(body: Json) -> bool:
    return any(isinstance(made["function"]["arguments"], str) for each in assistants(body) for made in each.get("tool_calls", ()))


def lacks_description(body: Json) -> bool:
    return any(not tool["function"].get("description") for tool in body["tools"])


def has_parts(body: Json) -> bool:
    return any(isinstance(message["content"], list) for message in body["messages"])


def asks_minimal(body: Json) -> bool:
    return body.get("reasoning_effort") == "minimal"


def says_length(body: Json) -> bool:
    return mentions(body["tools"], "minLength")


PHRASES = {
    "OpenAI on the least effort": Phrase("Unsupported value: 'minimal' is not supported with the 'o3' model. Supported values"
        " are: 'low', 'medium', and 'high'.", asks_minimal, MINIMAL),
    "pydantic on the least effort": Phrase("[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': \"Input should"
        " be 'low', 'medium' or 'high'\", 'input': 'minimal'}]", asks_minimal, MINIMAL),
    "no true": Phrase("stream must be false", lambda body: body["stream"]),
    "tools in streams": Phrase("stream=true cannot be used with tools", lambda body: body["stream"]),
    "Go on a forced call": Phrase("json: cannot unmarshal object into Go struct field ChatCompletionRequest.tool_choice of type"
        " string", lambda body: isinstance(body.get("tool_choice"), dict),
        {"tool_choice": {"type": "function", "name": "get_time"}}),
    "a forced call without a grammar": Phrase("tool_choice='required' requires a grammar backend",
        lambda body: body.get("tool_choice") == "required", {"tool_choice": "required"}, status=500),
    "the assistant first": Phrase('messages: first message must use the "user" role',
        lambda body: body["messages"][0]["role"] == "assistant",
        {"input": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "What time is it?"}]}),
    "both samplings": Phrase("The model does not allow both temperature and top_p to be specified",
        lambda body: {"temperature", "top_p"} <= body.keys(), {"temperature": 0.5, "top_p": 0.9}),
    "a strict format": Phrase("strict is not supported", lambda body: mentions(body, '"strict"'),
        {"text": {"format": {**FORMAT["format"], "strict": True}}}, answer=JSON),
    "Gemma's template": Phrase("Conversation roles must alternate user/assistant/user/assistant/...", speaks_twice, SYSTEM),
    "a template without system": Phrase("System role not supported", speaks_twice, SYSTEM, status=500),
    "two users in a row": Phrase(
        "After the optional system message, conversation roles must alternate", speaks_twice,
        {"input": [{"role": "user", "content": "Hello."}, {"role": "user", "content": "What time is it?"}]},
    ),
    "Ollama on null": Phrase("invalid message content type: <nil>", lacks_content, {"input": HISTORY}),
    "LM Studio on null": Phrase(
        "Invalid 'content': 'content' objects must have a 'type' field that is either 'text' or 'image_url'.", lacks_content,
        {"input": HISTORY},
    ),
    "pydantic on null": Phrase("messages.1.content: Input should be a valid string", lacks_content, {"input": HISTORY}, 422),
    "content left out": Phrase(
        "messages.1.content: cannot be empty", lambda body: any(not said.get("content", "-") for said in assistants(body)),
        {"input": HISTORY},
    ),
    "no role for outputs": Phrase("messages[2].role: unknown variant `tool`, expected one of `system`, `user`, `assistant`",
        lambda body: bool(outputs(body)), {"input": HISTORY}, status=422),
    "Mistral's order": Phrase(
        "Unexpected role 'user' after role 'tool'", interrupts, {"input": [*HISTORY[:3], {"role": "user", "content": "And?"}]}
    ),
    "auto only": Phrase("Only tool_choice 'auto' is supported: tool_choice must be auto", lambda body: "tool_choice" in body,
        {"tool_choice": {"type": "function", "name": "get_time"}}),
    "no schema": Phrase("This model does not support response format `json_schema`.", lambda body: "response_format" in body,
        {"text": FORMAT}, answer=JSON),
    "DeepSeek on schemas": Phrase("This response_format type is unavailable now", lambda body: "response_format" in body,
        {"text": FORMAT}, answer=JSON),
    "a schema's word": Phrase(
        "Unknown name \"minLength\" at 'tools[0].function_declarations[0].parameters': Cannot find field.", says_length, LENGTH
    ),
    "a grammar that fails": Phrase("failed to parse grammar", says_length, LENGTH, status=500),
    # As Groq, Mistral, Bedrock, pydantic, OpenRouter and https://github.com/QwenLM/Qwen/issues/1298 say that there are no tools.
    **{
        words: Phrase(words, lambda body: "tools" in body, status=status)
        for words, status in (
            ("`tool calling` is not supported with this model", 400),
            ("Function calling is not enabled for this model", 400),
            ("This model doesn't support tool use.", 400),
            ("body.tools: Extra inputs are not permitted", 422),
            ("No endpoints found that support tool use.", 404),
            ("Unsupported param: tools", 500),
        )
    },
    # As Kimi and gateways to Claude refuse a temperature.
    **{
        words: Phrase(words, lambda body: "temperature" in body, {"temperature": 0.2})
        for words in (
            "invalid temperature: only 1 is allowed for this model",
            "`temperature` is deprecated for this model.",
            "`temperature` may only be set to 1 when thinking is enabled.",
            "temperature must be 1.0 when thinking is enabled",
            "Sampling knob `temperature` is locked for reasoning models.",
        )
    },
    "one of two": Phrase("`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        lambda body: "temperature" in body and "top_p" in body, {"temperature": 0.2, "top_p": 0.9}),
    "efforts of Groq": Phrase("`reasoning_effort` must be one of `none` or `default`", lambda body: "reasoning_effort" in body,
        {"reasoning": {"effort": "low"}}),
    "Ollama on effort": Phrase('think value "low" is not supported for this model', lambda body: "reasoning_effort" in body,
        {"reasoning": {"effort": "low"}}),
    "two roles": Phrase("Only user and assistant roles are supported!", speaks_twice, SYSTEM),
    "no such role": Phrase("messages[0].role: invalid role: 'system'. Must be one of 'user', 'assistant'", speaks_twice, SYSTEM),
    "Go on null": Phrase("json: cannot unmarshal null into Go struct field Message.messages.content of type string",
        lacks_content, {"input": HISTORY}),
    "Python on null": Phrase('can only concatenate str (not "NoneType") to str', lacks_content, {"input": HISTORY}, 500),
    "Moonshot on nothing": Phrase("the message at position 1 with role 'assistant' must not be empty", lacks_content,
        {"input": HISTORY}),
    # Templates of Qwen3-Coder in llama.cpp and LM Studio, which take arguments for an object.
    "a template on arguments": Phrase("Can only get item pairs from a mapping.", lambda body: bool(outputs(body)),
        {"input": HISTORY}, 500),
    "another template on arguments": Phrase('Error rendering prompt with jinja template: "Unknown StringValue filter: items".',
        lambda body: bool(outputs(body)), {"input": HISTORY}),
    "words or calls": Phrase("Assistant message must have either content or tool_calls, but not both.",
        lambda body: bool(outputs(body)), {"input": HISTORY}),
    "Bedrock on choices": Phrase("This model doesn't support the toolConfig.toolChoice.any field. Remove it and try again.",
        lambda body: "tool_choice" in body, {"tool_choice": "required"}),
    "Claude on choices": Phrase("Thinking may not be enabled when tool_choice forces tool use.",
        lambda body: "tool_choice" in body, {"tool_choice": "required"}),
    "an old Mistral on choices": Phrase("tool_choice: value is not a valid enumeration member; permitted: 'auto', 'none', 'any'",
        lambda body: "tool_choice" in body, {"tool_choice": "required"}, 422),
    "llama.cpp on schemas": Phrase("Cannot use custom grammar constraints with tools.",
        lambda body: "response_format" in body and "tools" in body, {"text": FORMAT}, 500, JSON),
    "DeepSeek on choices": Phrase("Thinking mode does not support this tool_choice", lambda body: "tool_choice" in body,
        {"tool_choice": "required"}),
    "LM Studio on choices": Phrase("Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
        lambda body: "tool_choice" in body, {"tool_choice": {"type": "function", "name": "get_time"}}),
    "Azure on schemas": Phrase("Invalid value: 'json_schema'. Supported values are: 'json_object' and 'text'.",
        lambda body: "response_format" in body, {"text": FORMAT}, answer=JSON),
    "Together on schemas": Phrase("json_schema decoding is not enabled for this model", lambda body: "response_format" in body,
        {"text": FORMAT}, answer=JSON),
    "Gemini on schemas": Phrase("Function calling with a response mime type: 'application/json' is unsupported",
        lambda body: "response_format" in body and "tools" in body, {"text": FORMAT}, answer=JSON),
    "the user first": Phrase("The first message must be from the user", lambda body: body["messages"][0]["role"] != "user",
        {"input": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "What time is it?"}]}),
    "GLM on null": Phrase("messages 参数非法。请检查文档。", lacks_content, {"input": HISTORY}),
    "Gemini on no parameters": Phrase(
        "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be non-empty for OBJECT type",
        lambda body: any(tool["function"].get("parameters", {"properties": 1}).get("properties") == {} for tool in body["tools"]),
    ),
    "a flag of llama.cpp's": Phrase("tools param requires --jinja flag", lambda body: "tools" in body, status=500),
    "pydantic on choices": Phrase("body.tool_choice: Input should be 'none' or 'auto'", lambda body: "tool_choice" in body,
        {"tool_choice": "required"}, 422),
    "Gemma at Google": Phrase("Developer instruction is not enabled for models/gemma-3-27b-it", speaks_twice, SYSTEM),
    # A bound on the output that is too large, as OpenAI, Claude and DeepSeek put it.
    **{
        words: Phrase(words, lambda body: body["max_tokens"] > 8192, LARGE)
        for words in (
            "max_tokens is too large: 100000. This model supports at most 8192 completion tokens, whereas you provided 100000.",
            "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for this model",
            "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
            "max_tokens exceeds the model's output limit of 8192",
        )
    },
    "no description": Phrase("tools.2.function.description: Field required", lacks_description, LENGTH, 422),
    "an empty description": Phrase("Invalid 'tools[2].function.description': empty string.", lacks_description, LENGTH),
    "pydantic on parts": Phrase("messages.0.content: Input should be a valid string", has_parts, PARTS, 422),
    "Rust on parts": Phrase("messages[0].content: invalid type: sequence, expected a string", has_parts, PARTS, 422),
    "a template on parts": Phrase('can only concatenate str (not "list") to str', has_parts, PARTS, 500),
    "Fireworks on tools": Phrase("Extra inputs are not permitted, field: 'tools', value: [...]", lambda body: "tools" in body,
        status=422),
    "pydantic on a temperature": Phrase("temperature: Extra inputs are not permitted", lambda body: "temperature" in body,
        {"temperature": 0.2}, 422),
    "another limit": Phrase("This deployment wants max_completion_tokens rather than max_tokens.",
        lambda body: "max_tokens" in body, {"max_output_tokens": 500}),
    "an effort that is fixed": Phrase("Thinking level is not adjustable for this model (reasoning_effort)",
        lambda body: "reasoning_effort" in body, {"reasoning": {"effort": "low"}}),
    "one choice": Phrase("Only tool_choice auto is implemented in this build", lambda body: "tool_choice" in body,
        {"tool_choice": "required"}),
    "one system message": Phrase("Only a single system turn is accepted",
        lambda body: sum(each["role"] == "system" for each in body["messages"]) > 1,
        {"instructions": "Be kind.", "input": [{"role": "developer", "content": "Short."}, {"role": "user", "content": "Hi."}]}),
    # A bound that does not fit the context beside the prompt, as vLLM, SGLang and TGI put it.
    **{
        words: Phrase(words, lambda body: body.get("max_tokens", 0) > 8192, LARGE)
        for words in (
            "'max_tokens' or 'max_completion_tokens' is too large: 100000. This model's maximum context length is 8192 tokens and"
            " your request has 120 input tokens (100000 > 8192 - 120).",
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 100120"
            " tokens: 120 tokens from the input messages and 100000 tokens for the completion.",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 120 `inputs` tokens and 100000"
            " `max_new_tokens`",
            "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the"
            " `context_window` for this model",
        )
    },
    # As lmdeploy, SiliconFlow, NIM, Azure and others say that there are no tools.
    **{
        words: Phrase(words, lambda body: "tools" in body, status=status)
        for words, status in (
            ("Please launch the api_server with --tool-call-parser if you want to use tool.", 400),
            ("Function call is not supported for this model.", 400),
            ("Tool use has not been enabled, because it is unsupported by this model.", 400),
            ("Unrecognized request argument supplied: tools", 400),
            ("Tools not implemented", 501),
            ("The model does not have the capability: function_calling", 400),
        )
    },
    # As Cerebras, KoboldCpp, llama.cpp and OpenAI refuse streams.
    **{
        words: Phrase(words, lambda body: bool(body["stream"]))
        for words in (
            "Tool calls are not supported in streaming mode",
            "Cannot use tools with stream",
            "Your organization must be verified to stream this model. Please click on Verify Organization.",
        )
    },
    "a choice in Rust": Phrase("tool_choice: unknown variant `required`, expected `auto` or `none` at line 1 column 700",
        lambda body: "tool_choice" in body, {"tool_choice": "required"}, 422),
    "OpenRouter on choices": Phrase("No endpoints found that support the provided 'tool_choice' value.",
        lambda body: "tool_choice" in body, {"tool_choice": "required"}, 404),
    "a choice in Chinese": Phrase("tool_choice 仅支持 auto", lambda body: "tool_choice" in body, {"tool_choice": "required"}),
    "Ollama on thinking": Phrase('"nobody" does not support thinking', lambda body: "reasoning_effort" in body,
        {"reasoning": {"effort": "low"}}),
    "xAI on efforts": Phrase("Model nobody does not support parameter reasoningEffort.", lambda body: "reasoning_effort" in body,
        {"reasoning": {"effort": "low"}}),
    "Bedrock on systems": Phrase("This model doesn't support system messages. Try again without a system message.", speaks_twice,
        SYSTEM),
    "MiniMax on systems": Phrase("invalid params, invalid chat setting (2013)",
        lambda body: sum(each["role"] == "system" for each in body["messages"]) > 1,
        {"instructions": "Be kind.", "input": [{"role": "developer", "content": "Short."}, {"role": "user", "content": "Hi."}]}),
    "Moonshot on schemas": Phrase("tools.function.parameters is not a valid moonshot flavored json schema, details: <At path"
        " 'properties.word': minLength is out of place>", says_length, LENGTH),
    "Anthropic on schemas": Phrase("tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
        says_length, LENGTH),
    "xgrammar on schemas": Phrase("The provided JSON schema contains features not supported by xgrammar.", says_length, LENGTH),
    # As Cerebras, TGI, Cohere, Gemma at Google, lmdeploy, DashScope and Gemini refuse formats.
    **{
        words: Phrase(words, lambda body: "response_format" in body and "tools" in body, {"text": FORMAT}, answer=JSON)
        for words in (
            '"tools" is incompatible with "response_format"',
            "Tool error: Grammar and tools are mutually exclusive",
            "invalid request: cannot specify both tools and response_format with type json_object",
            "JSON mode is not enabled for models/gemma-3-27b-it",
            "guided decoding is not supported by this engine",
            "Json mode response is not supported when enable_thinking is true",
            "The specified schema produces a constraint that has too many states for serving.",
        )
    },
    # As OpenAI, DeepSeek and DashScope want it.
    **{
        words: Phrase(words, lambda body: not mentions(body["messages"], "JSON"), {"text": {"format": {"type": "json_object"}}},
            answer=JSON)
        for words in (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
        )
    },
    # As GLM and gateways refuse without a word of what they mind.
    **{
        words: Phrase(words, lambda body: "stream_options" in body, status=status)
        for words, status in (("API 调用参数有误,请检查文档。", 400), ("Bad Request", 400), ("Unprocessable Entity", 422))
    },
    "an unknown limit": Phrase("Unrecognized request argument supplied: max_tokens", lambda body: "max_tokens" in body,
        {"max_output_tokens": 500}),
}  # fmt: skip

# What is refused only once a tool has run; the words of servers, templates and validators.
AFTER_A_CALL = {
    "llama.cpp on null": Phrase("Value is not callable: null at row 1, column 72", lacks_content, status=500),
    "llama.cpp on content": Phrase("Failed to parse messages: Expected 'content' to be a string or an array", lacks_content,
        status=500),
    "Gemini on blanks": Phrase("* GenerateContentRequest.contents[1].parts: contents.parts must not be empty.", is_blank),
    "Moonshot on blanks": Phrase("the message at position 1 with role 'assistant' must not be empty", lacks_words),
    "a template on ids": Phrase("Tool call IDs should be alphanumeric strings with length 9!",
        lambda body: any(len(id) != 9 for id in call_ids(body))),
    "Ollama on arguments": Phrase("json: cannot unmarshal string into Go struct field"
        " ToolCallFunction.messages.tool_calls.function.arguments of type api.ToolCallFunctionArguments", writes_arguments),
    "serde on blanks": Phrase("messages[1]: missing field `content` at line 1 column 300", lacks_content, status=422),
    "pydantic on blanks": Phrase("messages.1.content: Field required", lacks_content, status=422),
    "a schema on blanks": Phrase("'content' is a required property - 'messages.1'", is_blank),
    "pydantic on roles": Phrase("body.messages.2.role: Input should be 'system', 'user' or 'assistant'",
        lambda body: bool(outputs(body)), status=422),
    "Gemma's template on outputs": Phrase("Conversation roles must alternate user/assistant/user/assistant/...",
        lambda body: bool(outputs(body))),
    "a template on outputs": Phrase("After the optional system message, conversation roles must alternate user/assistant",
        lambda body: bool(outputs(body)), status=500),
    "lists for outputs": Phrase("messages[3].content: Input should be a valid list",
        lambda body: any(isinstance(output["content"], str) for output in outputs(body))),
    "pydantic on arguments": Phrase("body.messages.1.tool_calls.0.function.arguments: Input should be a valid dictionary",
        writes_arguments, status=422),
    "Go on arguments": Phrase("json: cannot unmarshal string into Go struct field ChatRequest.messages.tool_calls.function"
        ".arguments of type map[string]interface {}", writes_arguments),
    "the user last": Phrase("Expected last role to be User for serving but got tool",
        lambda body: body["messages"][-1]["role"] == "tool"),
    "Qwen's template": Phrase("No user query found in messages.",
        lambda body: body["messages"][-1]["role"] == "tool", status=500),
}  # fmt: skip
# What is the caller's to mend.
FAULTS = (
    "temperature must be between 0 and 1",
    "temperature must be 1.5 or less",
    "Invalid schema for response_format 'time': schema must be a JSON Schema of 'type: \"object\"'",
    "Invalid schema for response_format 'time': In context=('properties', 'x'), 'allOf' is not permitted.",
    "The content of this request violates our policy; please consider alternatives",
    "max_tokens is too large: 500. This model supports at most 100 completion tokens",
    "tools[0].function.name: String should match pattern '^[a-z]+$'",
)
