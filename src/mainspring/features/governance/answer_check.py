"""Is the answer what was ordered?"""

from collections.abc import Callable, Sequence

import msgspec

from mainspring.core.items import Json, ToolDefinition
from mainspring.core.run import Run

Validate = Callable[[ToolDefinition, Json], Sequence[str]]


class FormedAnswer:
    """Finds fault with an answer that is not in the form that `text.format` asks for: JSON, and fitting its schema.

    Backends are told of the form, but few can be held to it. `strict: false` asks for the effort alone, and gets it.
    """

    name = "text_format"

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    def flaw(self, run: Run) -> str | None:
        match (run.spec.sampling.text or {}).get("format"):
            case {"type": "json_object"}:
                schema: Json = {"type": "object"}
            case {"type": "json_schema", "schema": dict(schema), **rest} if rest.get("strict") is not False:
                pass
            case _:
                return None
        try:
            answer = msgspec.json.decode(run.text)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the answer is not the JSON that `text.format` asks for: {error}"
        problems = self._validate(ToolDefinition("text.format", parameters=schema), answer)
        return f"the answer does not fit the schema of `text.format`: {'; '.join(problems)}" if problems else None
