"""Animals whose calls have slips: in the name, in the arguments, or in how often they come."""

from typing import ClassVar

from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import CET, UTC, Animal, call

from mainspring.core.items import Json

FINISH = sse(chunk(finish="tool_calls")) + DONE
QUOTE = '<|\\"|>'


def name_tool(body: Json) -> str:
    """The first tool that is offered."""
    return str(body["tools"][0]["function"]["name"])


class ArgumentsEscaped(Animal):
    """Quirk 12: all of the arguments is written as within a string; supposed, without a source."""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", UTC.replace('"', '\\"'))


class ArgumentsAsEmptyList(Animal):
    """Quirk 11: no arguments are an empty list (servers in PHP); supposed, without a source."""

    number = 11
    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return call("a", "[]", name="now")


class ValueBesideItsType(Animal):
    """Quirk 82: a value stands beside its type, as a schema has it (Llama 3.2 on Ollama); supposed, without a source."""

    number = 82

    def first(self, body: Json) -> bytes:
        key = next(iter(body["tools"][0]["function"]["parameters"]["properties"]), "zone")
        return call("a", f'{{"{key}": ', '{"type": "string", ', '"value": "UTC"}}')


class CallNamedInEveryPiece(Animal):
    """Quirk 109: each piece of a call has an id of its own, and the name; supposed, without a source."""

    number = 109

    def first(self, body: Json) -> bytes:
        pieces = [
            call_piece(0, id=f"c{place}", name="get_time", arguments=UTC[place : place + 4]) for place in range(0, len(UTC), 4)
        ]
        return sse(*map(chunk, pieces)) + FINISH


class ArgumentsAsInput(Animal):
    """Quirk 110: a call has its name and `input` in place of a function, as Anthropic writes it; supposed, without a source."""

    number = 110

    def first(self, body: Json) -> bytes:
        made = {"index": 0, "id": "a", "type": "tool_use", "name": "get_time", "input": {"zone": "UTC"}}
        return sse(chunk({"tool_calls": [made]})) + FINISH


class NameBehindTag(Animal):
    """Quirk 14: the tag of a call is before the tool's name; supposed, without a source."""

    number = 14

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name="<tool_call>get_time")


class NameInOtherCase(Animal):
    """Quirk 72: the tool's name is in other case; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name=name_tool(body).title())


class NameInCamelCase(Animal):
    """Quirk 72: the tool's name is written as in another language; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name=name_tool(body).title().replace("_", ""))


class NameWithHyphens(Animal):
    """Quirk 72: hyphens stand for underscores; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name=name_tool(body).replace("_", "-"))


class NameWithParentheses(Animal):
    """Quirk 72: the name is written as a call; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name=f"{name_tool(body)}()")


class NameInPiecesAndCase(Animal):
    """Quirk 72: the name comes in pieces and in other case; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        begin, _, rest = name_tool(body).upper().partition("_")
        names = [call_piece(0, id="a", name=f"{begin}_"), call_piece(0, name=rest)]
        return sse(*map(chunk, names), chunk(call_piece(0, arguments=UTC))) + FINISH


class NameWithNamespaceAndCase(Animal):
    """Quirk 72: the name has a namespace and is in other case; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name=f"functions.{name_tool(body).upper()}")


class ArgumentsInList(Animal):
    """Quirk 73: the arguments are in a list; supposed, without a source."""

    number = 73

    def first(self, body: Json) -> bytes:
        return call("a", f"[{UTC}]")


class ArgumentsWithinArguments(Animal):
    """Quirk 73: the arguments are in an object that has them as `arguments`; supposed, without a source."""

    number = 73

    def first(self, body: Json) -> bytes:
        return call("a", '{"argu', 'ments": ', UTC, "}")


class ArgumentsWithinCall(Animal):
    """Quirk 73: the whole call stands where its arguments should; supposed, without a source."""

    number = 73

    def first(self, body: Json) -> bytes:
        return call("a", '{"name": "get_time", "arguments": ', UTC, "}")


class ArgumentsWithinName(Animal):
    """Quirk 73: the arguments are in an object under the tool's name; supposed, without a source."""

    number = 73

    def first(self, body: Json) -> bytes:
        return call("a", '{"get_time": ', UTC, "}")


class ArgumentsWithinText(Animal):
    """Quirk 73: the arguments are text under `parameters`; supposed, without a source."""

    number = 73

    def first(self, body: Json) -> bytes:
        return call("a", '{"parameters": "{\\"zone\\": \\"UTC\\"}"}')


class ArgumentsEmptyFirst(Animal):
    """Quirk 74: `{}` comes before the arguments (proxies to Anthropic).
    https://github.com/anthropics/anthropic-sdk-typescript/blob/main/src/lib/MessageStream.ts"""

    number = 74

    def first(self, body: Json) -> bytes:
        begun = call_piece(0, id="a", name="get_time", arguments="{}")
        return sse(chunk(begun), *[chunk(call_piece(0, arguments=piece)) for piece in ('{"zone"', ': "UTC"}')]) + FINISH


class ArgumentsWithComma(Animal):
    """Quirk 12: a comma too many in the arguments; supposed, without a source."""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": ', '"UTC",', "}")


class ArgumentsWithoutBrace(Animal):
    """Quirk 12: the last brace of the arguments is missing (SGLang). https://github.com/sgl-project/sglang/issues/19345"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": ', '"UTC"')


class ArgumentsWithBraces(Animal):
    """Quirk 12: the arguments have a brace too many; supposed, without a source."""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", UTC, "}")


class ArgumentsWithQuoteTokens(Animal):
    """Quirk 75: values are within Gemma's tokens for quotes (vLLM). https://github.com/vllm-project/vllm/issues/39468"""

    number = 75

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": "', f"{QUOTE}UTC", f'{QUOTE}"', "}")


class ArgumentsInQuoteTokens(Animal):
    """Quirk 75: Gemma's tokens stand for the quotes (vLLM). https://github.com/vllm-project/vllm/issues/39468"""

    number = 75

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": <|"|>', 'UTC<|"|>', "}")


class CallAgainUnderAnotherId(Animal):
    """Quirk 76: the last chunk has the call once more, under another id; supposed, without a source."""

    number = 76

    def first(self, body: Json) -> bytes:
        again = chunk(call_piece(0, id="b", name="get_time", arguments=UTC), finish="tool_calls")
        return sse(chunk(call_piece(0, id="a", name="get_time", arguments=UTC)), again) + DONE


class CallAgainWithoutId(Animal):
    """Quirk 76: the last chunk has the call once more, without an id; supposed, without a source."""

    number = 76

    def first(self, body: Json) -> bytes:
        again = chunk(call_piece(0, name="get_time", arguments=UTC), finish="tool_calls")
        return sse(chunk(call_piece(0, id="a", name="get_time", arguments=UTC)), again) + DONE


class CallAgainInPieces(Animal):
    """Quirk 76: the call comes once more in pieces, under another id; supposed, without a source."""

    number = 76

    def first(self, body: Json) -> bytes:
        pieces = [call_piece(0, id=id, name="get_time", arguments="") for id in ("a", "b")]
        told = [call_piece(0, arguments=piece) for piece in ('{"zone"', ': "UTC"}')]
        return sse(*[chunk(piece) for begun in pieces for piece in (begun, *told)]) + FINISH


class CallAgainInOtherSpaces(Animal):
    """Quirk 76: the last chunk has the call once more, written without spaces; supposed, without a source."""

    number = 76

    def first(self, body: Json) -> bytes:
        again = chunk(call_piece(0, id="a", name="get_time", arguments=UTC.replace(" ", "")), finish="tool_calls")
        return sse(chunk(call_piece(0, id="a", name="get_time", arguments=UTC)), again) + DONE


class CallsAgainUnderOtherIds(Animal):
    """Quirk 76: two calls with one index, and the later once more under another id; supposed, without a source."""

    number = 76
    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        made = [call_piece(0, id=id, name="get_time", arguments=zone) for id, zone in (("a", UTC), ("b", CET), ("c", CET))]
        return sse(*map(chunk, made)) + FINISH


class CallAgainAtAnotherPlace(Animal):
    """Quirk 76: a call comes again whole, under its id and another index; supposed, without a source."""

    number = 76

    def first(self, body: Json) -> bytes:
        made = [chunk(call_piece(index, id="a", name=name_tool(body), arguments=UTC)) for index in (0, 1)]
        return sse(*made, chunk(finish="tool_calls")) + DONE
