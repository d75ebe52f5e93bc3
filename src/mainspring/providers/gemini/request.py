"""What Gemini is asked: a `ModelRequest` as the body of `generateContent`.

Signatures. Gemini signs parts of what it says and wants each signature back on the part it came with; Gemini 3 refuses a call
whose step has none. A signature lives in a reasoning item as `KIND.SIGNATURE`, and the kind says which part it belongs to:
`call` the next call, `thought` the thought itself, `text` the text before it, `blank` an empty text of its own. A step whose
calls were made by another vendor's model gets the signature that Google documents for that.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from mainspring.core import items
from mainspring.core.drafts import words
from mainspring.core.errors import Refused
from mainspring.core.items import Json, Part, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers import transcript
from mainspring.providers.adapted_request import adapt_request
from mainspring.providers.json_text import drop_none, json_text, merge_extra
from mainspring.providers.media import (
    EmbeddedFile,
    guess_mime,
    is_document,
    is_sound_or_film,
    list_readable,
    parse_data_url,
    read_attachment,
)
from mainspring.providers.profiles import NEUTRAL, ModelProfile
from mainspring.providers.transcript import AnsweredCall, InputTurn, ModelTurn

VENDOR: Final = "gemini"
UNSIGNED: Final = "skip_thought_signature_validator"

Thinking = Literal["never", "budget", "level"]


def build_body(request: ModelRequest, profile: ModelProfile = NEUTRAL) -> Json:
    """The request as JSON, as the model takes it. Raises `Refused` for content that this wire format cannot carry."""
    request = adapt_request(request, profile)
    tools = transcript.list_functions(request)
    system, contents = _contents(request, is_apart=not profile.user_after_output)
    schema = clean_schema(wanted) if (wanted := transcript.find_schema(request)) else wanted
    if tools and schema is not None and not _is_modern(request.model):
        # Before Gemini 3, a model that may call tools cannot be held to a format; it can be asked.
        system.append("Answer with JSON only" + (f", by this JSON Schema: {json_text(schema)}" if schema else "."))
        schema = None
    body: Json = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
    if tools:
        body["tools"] = [{"functionDeclarations": [_declaration(tool, profile.schemas) for tool in tools]}]
        if calling := _calling(request.tool_choice, tools, request.model):
            body["toolConfig"] = {"functionCallingConfig": calling}
    options = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "stopSequences": list(request.stop) or None,
        "seed": request.seed,
        "thinkingConfig": _thinking(request.model, request.reasoning),
        "responseMimeType": None if schema is None else "application/json",
        "responseJsonSchema": schema or None,
    }
    if given := drop_none(options):
        body["generationConfig"] = given
    return merge_extra(body, request.extra)


def name_resource(model: str) -> str:
    """The model as the API addresses it. Raises `Refused` for a name that would lead elsewhere."""
    if not _NAME.fullmatch(model):
        raise Refused(f"`{model:.100}` is no name of a Gemini model; write it like `gemini-flash-latest`")
    return model if "/" in model else f"models/{model}"


def find_thinking(model: str) -> Thinking:
    """How the effort of a model's thinking is said to it, if at all: by a number of tokens, or by a level."""
    if _UNTHINKING.search(model):
        return "never"
    return "budget" if "gemini-2.5" in model else "level"


def _is_modern(model: str) -> bool:
    return find_thinking(model) == "level"


def _thinking(model: str, reasoning: Json | None) -> Json | None:
    if reasoning is None or find_thinking(model) == "never":
        return None
    match reasoning.get("effort"):
        case None:
            return {"includeThoughts": True}
        case "none" | "minimal" as effort if _is_modern(model):
            return {"includeThoughts": effort != "none", "thinkingLevel": "MINIMAL" if _MINIMAL.search(model) else "LOW"}
        case "none":
            return {"includeThoughts": False, "thinkingBudget": 128 if "pro" in model else 0}
        case effort if _is_modern(model):
            return {"includeThoughts": True, "thinkingLevel": _LEVELS.get(effort, "HIGH")}
        case effort:
            return {"includeThoughts": True, "thinkingBudget": _BUDGETS.get(effort, 24576)}


def _declaration(tool: ToolDefinition, schemas: str = "full") -> Json:
    declaration: Json = {"name": tool.name}
    if tool.description:
        declaration["description"] = tool.description
    if not tool.parameters:
        return declaration
    schema = clean_schema(tool.parameters)
    if schemas not in ("full", "common"):
        # The older field, which takes no JSON Schema.
        return declaration | ({"parameters": schema} if schema.get("properties") else {})
    return declaration | {"parametersJsonSchema": schema if "$ref" in schema else {"type": "object", **schema}}


def _calling(choice: ToolChoice, tools: Sequence[ToolDefinition], model: str) -> Json:
    """Names can be given only where the model must call something, or where its calls are held to the schemas."""
    wanted = (choice.name,) if choice.name is not None else choice.allowed
    names = None if wanted is None else [tool.name for tool in tools if tool.name in wanted]
    if choice.mode == "none" or names == []:
        return {"mode": "NONE"}
    limited = {} if names is None else {"allowedFunctionNames": names}
    if choice.name is not None or choice.mode == "required":
        return {"mode": "ANY", **limited}
    if (limited or any(tool.strict for tool in tools)) and find_thinking(model) != "never":
        return {"mode": "VALIDATED", **limited}
    return {}


def _contents(request: ModelRequest, *, is_apart: bool) -> tuple[list[str], list[Json]]:
    """What the system says before anyone else does, and the turns of user and model, which alternate and begin and end with
    the user's. Later words of the system stay in their place, as the user's: there is no other role. What the user says behind
    outputs `is_apart` from them in a turn of its own, if it must be."""
    system = [request.instructions] if request.instructions else []
    contents: list[Json] = []
    for turn in transcript.list_turns(request.items):
        match turn:
            case InputTurn("system", parts) if not contents and all(isinstance(part, items.InputText) for part in parts):
                system += [part.text for part in parts if isinstance(part, items.InputText) and part.text]
            case InputTurn(parts=parts):
                said = [part for part in map(_part, parts) if part != {"text": ""}]
                if said and is_apart and contents and "functionResponse" in contents[-1]["parts"][0]:
                    contents.append({"role": "user", "parts": []})
                transcript.append_parts(contents, "user", "parts", said)
            case ModelTurn() if not turn.is_mute:
                transcript.append_parts(contents, "model", "parts", _write_turn(turn, request.model))
                transcript.append_parts(contents, "user", "parts", _responses(turn.calls, request.model))
    if contents and contents[0]["role"] == "model":
        contents.insert(0, {"role": "user", "parts": [{"text": transcript.FILLER}]})
    if not contents or contents[-1]["role"] == "model":
        transcript.append_parts(contents, "user", "parts", [{"text": transcript.FILLER}])
    return system, contents


def _write_turn(turn: ModelTurn, model: str) -> list[Json]:
    parts: list[Json] = []
    awaited = None if find_thinking(model) != "level" else UNSIGNED
    for item in turn.items:
        match item:
            case items.Reasoning():
                kind, signature = _sign(parts, item)
                awaited = signature if kind == "call" else awaited
            case items.Message():
                parts += [{"text": text} for text in map(transcript.get_text, item.content) if text]
            case items.FunctionCall():
                call = {"id": item.call_id, "name": item.name, "args": transcript.parse_call_arguments(item)}
                parts.append({"functionCall": call} | ({"thoughtSignature": awaited} if awaited else {}))
                awaited = None
    return parts


def _sign(parts: list[Json], item: items.Reasoning) -> tuple[str, str]:
    """Adds a thought, and what its signature belongs to if that is no call. What another vendor's model thought is left out."""
    secret = transcript.unseal(VENDOR, item)
    if secret is None:
        return "", ""
    kind, _, signature = secret.partition(".")
    seal = {"thoughtSignature": signature}
    if thought := "".join(words(item)):
        parts.append({"text": thought, "thought": True} | (seal if kind == "thought" else {}))
    texts = [part for part in parts if "text" in part and "thought" not in part]
    if kind == "text" and texts:
        texts[-1] |= seal
    elif kind in ("text", "blank"):
        parts.append({"text": ""} | seal)
    return kind, signature


def _responses(calls: Sequence[AnsweredCall], model: str) -> list[Json]:
    """The outputs, as many as there are calls, then what does not fit into them. Gemini 3 takes files within an output."""
    responses: list[Json] = []
    exhibits: list[Json] = []
    for called in calls:
        call, output = called.call, called.output
        files = [_part(part) for part in list_readable(called.attachments, _can_see_or_hear)]
        inner = [part for part in files if _is_modern(model) and part.get("inlineData", {}).get("mimeType") in _WITHIN]
        outer = [part for part in files if part not in inner]
        response: Json = {"id": call.call_id, "name": call.name, "response": _outcome(output)}
        responses.append({"functionResponse": response | ({"parts": inner} if inner else {})})
        if outer:
            exhibits += [{"text": f"Attached by the output of `{call.name}` ({call.call_id}):"}, *outer]
    return responses + exhibits


def _can_see_or_hear(file: EmbeddedFile) -> bool:
    return is_sound_or_film(file) or is_document(file)


def _outcome(output: items.FunctionCallOutput | None) -> Json:
    """What came of a call: the object that the tool returned, or the text of anything else under a name."""
    if output is None:
        return {"error": transcript.UNANSWERED}
    text = transcript.render_output(output)
    if output.is_error is True:
        return {"error": text}
    with suppress(ValueError, RecursionError):
        return _object.decode(text)
    return {"output": text}


def _part(part: Part) -> Json:
    match part:
        case items.InputImage(image_url=str(url)):
            found = parse_data_url(url)
            return _inline(found.mime, found.data) if found else _at(url, guess_mime(url, "image/jpeg"))
        case items.InputFile(file_url=str(url)):
            return _at(url, guess_mime(url, "application/pdf"))
        case items.InputFile() if file := read_attachment(part):
            text = file.text()
            return _inline(file.mime, file.data) if text is None else {"text": f"{part.filename or 'file'}:\n{text}"}
        case items.Unknown({"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}):
            return _inline(f"audio/{form}", data)
        case items.InputImage() | items.InputFile():
            raise Refused("a file by its id cannot be sent to Gemini; pass its content as a data URL, or its address")
        case _:
            return {"text": transcript.get_text(part)}


def _inline(mime: str, data: str) -> Json:
    return {"inlineData": {"mimeType": mime, "data": data}}


def _at(url: str, mime: str) -> Json:
    return {"fileData": {"mimeType": mime, "fileUri": url}}


def clean_schema(schema: object) -> Json:
    """The schema without the keywords that Gemini does not take. We enforce what they said, not the model."""
    if not isinstance(schema, dict):
        # A schema may be `true` or `false`; Gemini has only objects.
        return {}
    match schema.get("allOf"):
        case [dict(only)]:
            schema = only | {key: value for key, value in schema.items() if key != "allOf"}
    kept = {key: _inner(key, value) for key, value in schema.items() if key in _DEEP}
    if "definitions" in schema:
        kept["$defs"] = _inner("$defs", schema["definitions"])
    if isinstance(reference := schema.get("$ref"), str):
        # Beside a reference, nothing that does not begin with `$` may stand.
        kept = {"$defs": kept["$defs"]} if "$defs" in kept else {}
        return kept | {"$ref": reference.replace("#/definitions/", "#/$defs/", 1)}
    kept |= {key: value for key, value in schema.items() if key in _PLAIN}
    if schema.get("format") in _FORMATS:
        kept["format"] = schema["format"]
    return kept | _enumerate(schema)


def _inner(key: str, value: object) -> object:
    match value:
        case dict() if key in ("properties", "$defs"):
            return {name: clean_schema(part) for name, part in value.items()}
        case list():
            return [clean_schema(part) for part in value]
        case bool() if key == "additionalProperties":
            return value
        case _:
            return clean_schema(value)


def _enumerate(schema: Json) -> Json:
    """The values to choose from, which can only be words and numbers."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or {*map(type, values)} - {str, int, float}:
        return {}
    is_text = "type" not in schema and all(isinstance(value, str) for value in values)
    return {"enum": values} | ({"type": "string"} if is_text else {})


_object: Final = msgspec.json.Decoder(Json)
_NAME: Final = re.compile(r"((models|tunedModels)/)?[\w-][\w.@:-]*")
_UNTHINKING: Final = re.compile(r"gemini-(1|2\.0|pro$|2\.5-flash-image)|gemma")
_MINIMAL: Final = re.compile(r"gemini-3(\.[0-6])?-flash")
_LEVELS: Final = {"low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
_BUDGETS: Final = {"minimal": 512, "low": 2048, "medium": 8192, "high": 24576}
_WITHIN: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
_DEEP: Final = frozenset({"properties", "$defs", "items", "prefixItems", "anyOf", "oneOf", "additionalProperties"})
_PLAIN: Final = frozenset(
    {"type", "description", "required", "minItems", "maxItems", "minimum", "maximum", "propertyOrdering", "$id", "$anchor"}
)
_FORMATS: Final = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double"})
