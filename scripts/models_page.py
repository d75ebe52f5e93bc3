"""Writes the tables of docs/models.md from the data that the adapters work by.

python -m scripts.models_page
"""

from pathlib import Path

import msgspec
from msgspec.structs import asdict

from mainspring.definitions.json_schema import read_field_docs
from mainspring.features.models.quirks import QUIRKS
from mainspring.providers.anthropic import provider as anthropic
from mainspring.providers.bedrock import request as bedrock
from mainspring.providers.chat import refusals as chat
from mainspring.providers.gemini import provider as gemini
from mainspring.providers.ollama import provider as ollama
from mainspring.providers.profiles import NEUTRAL, ModelProfile, list_values, load_shipped
from mainspring.providers.responses import provider as responses

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
# What is learned from answers, not from refusals.
SHOWN = {
    "stream_tools": "an empty answer whose calls come unstreamed",
    "thinking": "a tag that closes reasoning that none has opened",
    "window": "usage that fills a context",
    "format_told": "words where JSON was asked for",
    "calls": "`mainspring doctor`",
    "keeps_schemas": "`mainspring doctor`",
    "ends": "`mainspring doctor`",
}


def write_page(page: str) -> str:
    """The page with its tables as they should be."""
    for name, rows in {"habits": list_habits(), "fields": list_fields(), "shipped": list_shipped()}.items():
        table = "".join([f"| {' | '.join([cell.replace('|', chr(92) + '|') for cell in row])} |\n" for row in rows])
        head, mark, rest = page.partition(f"<!-- {name} -->\n")
        page = f"{head}{mark}{table}{rest[rest.index('<!-- end -->') :]}"
    return page


def list_habits() -> list[tuple[str, ...]]:
    return [("habit", "what a backend does", "what is done about it"), ("---",) * 3, *QUIRKS]


def list_fields() -> list[tuple[str, ...]]:
    docs, neutral = read_field_docs(ModelProfile), asdict(NEUTRAL)
    refused = {rule.field for kind in (chat, responses, anthropic, gemini, ollama, bedrock) for rule in kind.REFUSALS}
    rows = []
    for field in ModelProfile.__struct_fields__:
        values = "a number" if neutral[field] is None else ", ".join(map(_code, list_values(field)))
        learned = ", or ".join([*(["a refusal"] if field in refused else []), *([SHOWN[field]] if field in SHOWN else [])])
        rows.append((_quote(field), _code(neutral[field]), values, docs[field], learned))
    return [("field", "neutral", "values", "what it says", "learned from"), ("---",) * 5, *rows]


def list_shipped() -> list[tuple[str, ...]]:
    rows = []
    for entry in load_shipped():
        told = [f"server `{entry.server.pattern}`"] if entry.server else []
        told += [f"model `{entry.model.pattern}`"] if entry.model else []
        values = ", ".join([f"{_quote(field)} = {_code(fact.value)}" for field, fact in entry.facts.items()])
        rows.append((", ".join(told), values, f"[{entry.why}]({entry.link})"))
    return [("for", "fields", "why"), ("---",) * 3, *rows]


def _quote(text: str) -> str:
    return f"`{text}`"


def _code(value: object) -> str:
    return "unknown" if value is None else f"`{msgspec.json.encode(value).decode()}`"


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text()))
