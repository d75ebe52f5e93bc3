"""`mainspring decisions`: what was decided, why, and whether it is still decided so."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from mainspring_tasks.task_commands import data_folder

if TYPE_CHECKING:
    from mainspring_tasks.decision_log import DecisionLogs, Query

T = TypeVar("T")

app = typer.Typer(name="decisions", help="The log of the task agent: what was decided, why, and whether it is still decided so.")

Log = Annotated[Path | None, typer.Option(metavar="FILE", help="The log. Default: decisions.db in your data folder.")]
Conversation = Annotated[str | None, typer.Option(metavar="ID", help="Of this conversation.")]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Of this user.")]
Outcome = Annotated[str | None, typer.Option(metavar="CATEGORY", help="As ERROR:USER_INPUT, or the first half: ERROR.")]
Since = Annotated[datetime | None, typer.Option(metavar="TIME", help="From then on, in UTC, as in 2026-03-01.")]
Until = Annotated[datetime | None, typer.Option(metavar="TIME", help="Before then.")]


@app.command("list")
def listed(
    log: Log = None,
    conversation: Conversation = None,
    user: User = None,
    outcome: Outcome = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="At most so many.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every decision as a line of JSON.")] = False,
) -> int:
    """Lists decisions, newest first."""
    from mainspring.cli.text import on_one_line
    from mainspring.core.items import encode

    query = _query(conversation, user, outcome, since, until)
    for entry in _asked(log, lambda logs: logs.query_decisions(query, limit=limit)):
        told = f"{entry.created_at:%Y-%m-%d %H:%M}  {entry.decision_id}  {entry.decision_type or 'open':20}  "
        said = f"{entry.outcome_category or '-':30}  {on_one_line(entry.message, 60)}"
        print(encode(entry).decode() if json else told + said)
    return 0


@app.command()
def show(decision_id: Annotated[str, typer.Argument(metavar="DECISION_ID", help="The decision.")], log: Log = None) -> int:
    """Shows a decision with the calls behind it, as JSON."""
    _print(_asked(log, lambda logs: logs.get_decision_trace(decision_id)))
    return 0


@app.command()
def metrics(
    log: Log = None,
    conversation: Conversation = None,
    user: User = None,
    since: Since = None,
    until: Until = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare with it; drift is exit code 1.")] = None,
) -> int:
    """Sums up decisions, as JSON: shares of intents, tools and outcomes, errors, durations."""
    query = _query(conversation, user, None, since, until)
    if baseline is None:
        _print(_asked(log, lambda logs: logs.get_metrics_summary(query)))
        return 0
    found = _asked(log, lambda logs: logs.compare_to_baseline(baseline, query))
    for drift in found.drifts:
        mark = "DRIFT" if drift.is_flagged else "ok"
        print(f"{mark:5}  {drift.kind:6}  {drift.name:20}  {drift.baseline:.2f} -> {drift.current:.2f}  ({drift.change:+.2f})")
    return 1 if found.drift_detected else 0


@app.command()
def baseline(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    log: Log = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it stands for.")] = "",
    since: Since = None,
    until: Until = None,
) -> int:
    """Keeps what decisions are like now, to compare later ones with."""
    query = _query(None, None, None, since, until)
    _print(_asked(log, lambda logs: logs.create_baseline(name, query, description=description)))
    return 0


@app.command()
def export(
    log: Log = None,
    form: Annotated[Literal["json", "jsonl"], typer.Option("--format", metavar="NAME", help="`json` or `jsonl`.")] = "jsonl",
    since: Since = None,
    until: Until = None,
) -> int:
    """Prints all decisions with their calls, oldest first."""
    query = _query(None, None, None, since, until)

    async def printed(logs: "DecisionLogs") -> None:
        async for piece in logs.export_logs(form, query):
            print(piece, end="")

    _asked(log, printed)
    return 0


@app.command()
def validate(
    fixtures: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: what to say, and what is to be decided.")],
    model: Annotated[str | None, typer.Option(envvar="MAINSPRING_MODEL", metavar="NAME", help="As for `run`.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="As for `run`.")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="As for `run`.")] = None,
    log: Log = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare with this baseline of the log.")] = None,
) -> int:
    """Has a model decide about every message of a file, each with an empty list, and says which decisions are as expected."""
    from mainspring.features.runs.run_command import Setup
    from mainspring_tasks.validate_command import validated

    return validated(fixtures, Setup(model, base_url, api_key, ()), _log(log), baseline)


def _log(log: Path | None) -> Path:
    return log or data_folder() / "decisions.db"


def _asked(log: Path | None, question: "Callable[[DecisionLogs], Awaitable[T]]") -> T:
    """The answer of a log that is there. Raises `InvalidRequest` if it is not."""
    import asyncio

    from mainspring.core.errors import InvalidRequest
    from mainspring_tasks.decision_log import DecisionLogs

    path = _log(log)
    if not path.exists():
        raise InvalidRequest(f"there is no decision log `{path}`; name one with --log, or make one with `mainspring chat`")

    async def answered() -> T:
        logs = DecisionLogs(path, retention_seconds=None)
        try:
            return await question(logs)
        finally:
            await logs.close()

    return asyncio.run(answered())


def _query(
    conversation: str | None, user: str | None, outcome: str | None, since: datetime | None, until: datetime | None
) -> "Query":
    from mainspring_tasks.decision_log import Query

    times = [None if time is None else time.replace(tzinfo=time.tzinfo or UTC) for time in (since, until)]
    return Query(conversation, user, since=times[0], until=times[1], outcome=outcome)


def _print(value: object) -> None:
    import msgspec

    from mainspring.core.items import encode

    print(msgspec.json.format(encode(value), indent=2).decode())
