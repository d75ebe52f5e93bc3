"""Writes docs/compatibility.md from the rows that the tests try out.

python -m scripts.compatibility
"""

from pathlib import Path

from tests.compatibility.cases import CASES, CLIENTS, VERDICTS, Case

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"
HEAD = """# Compatibility

What becomes of everything that a request to `POST /v1/responses` can hold, and which events its stream has. Each row is tried out
by a test at a real server, and a test compares the names with OpenAI's Python SDK. This page is generated from
`tests/compatibility/cases.py`.

| verdict | what it means |
|---|---|
"""
TITLES = {
    "field": "Fields of a request",
    "tool": "Kinds of tools",
    "item": "Kinds of items in `input`",
    "content part": "Content parts",
    "include value": "Values of `include`",
    "event": "Events of a stream",
}
SCENARIOS = """
Of the conformance suite of MCP each scenario, of every revision and extension, is run, or stands in these files with the reason
why it does not apply."""


def write_page() -> str:
    lines = [HEAD.rstrip("\n"), *[f"| {verdict} | {meaning} |" for verdict, meaning in VERDICTS.items()]]
    for kind, title in TITLES.items():
        lines += ["", f"## {title}", "", f"| {kind} | verdict | |", "|---|---|---|"]
        lines += [_write_row(case) for case in CASES if case.kind == kind]
    lines += ["", "## Clients", "", "| client, unmodified | tests |", "|---|---|"]
    lines += [f"| {client} | `{file}` |" for client, file in CLIENTS]
    lines.append(SCENARIOS)
    return "\n".join(lines) + "\n"


def _write_row(case: Case) -> str:
    return f"| `{case.name}` | {case.verdict} | {case.note} |"


if __name__ == "__main__":
    PAGE.write_text(write_page())
