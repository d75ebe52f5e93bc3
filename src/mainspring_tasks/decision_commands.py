"""`mainspring decisions`: what was decided, why, and whether it is still decided so."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import msgspec
import typer
from msgspec.structs import replace

from mainspring.cli.console import fit_line
from mainspring.cli.context import EngineOptions, build_engine
from mainspring.cli.options import AsJson, BackendKey, BaseUrl, Model
from mainspring.cli.output import write_list, write_text
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import encode
from mainspring.parts import Host
from mainspring.storage.location import Location, parse_location
from mainspring_tasks.decision_engine import LLMAgentEngine, RecordedDecision
from mainspring_tasks.decision_log import DecisionLogs, Query
from mainspring_tasks.decision_types import DecisionContext
from mainspring_tasks.log_entries import DecisionLog, compare_shares
from mainspring_tasks.task_commands import data_folder
from mainspring_tasks.task_tools import LocalTasks
from mainspring_tasks.validation import Fixture, ValidationReport, load_fixtures, run_validation

app = typer.Typer()

Log = Annotated[
    Location | None,
    typer.Option(parser=parse_location, metavar="FILE", help="Decision log. Default: decisions.db in your data folder."),
]
Conversation = Annotated[str | None, typer.Option(metavar="ID", help="Only of this conversation.")]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Only of this user.")]
Outcome = Annotated[str | None, typer.Option(metavar="CATEGORY", help="As ERROR:USER_INPUT, or the first half: ERROR.")]
Since = Annotated[datetime | None, typer.Option(metavar="TIME", help="From then on, in UTC, as in 2026-03-01.")]
Until = Annotated[datetime | None, typer.Option(metavar="TIME", help="Before then.")]


@app.command("list")
async def list_decisions(
    log: Log = None,
    conversation: Conversation = None,
    user: User = None,
    outcome: Outcome = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Print at most N.")] = 20,
    json: AsJson = False,
) -> None:
    """Lists decisions, newest first."""
    async with _open_log(log) as logs:
        entries = await logs.query_decisions(_make_query(conversation, user, outcome, since, until), limit=limit)
    titles, none = ("at", "decision", "kind", "outcome", "message"), "there are no such decisions; `mainspring chat` makes them"
    write_list(entries, titles, _make_cells, as_json=json, none=none)


def _make_cells(entry: DecisionLog) -> tuple[str, ...]:
    kind, outcome = entry.decision_type or "open", entry.outcome_category or "-"
    return f"{entry.created_at:%Y-%m-%d %H:%M}", entry.decision_id, kind, outcome, fit_line(entry.message, 60)


@app.command()
async def show(
    decision_id: Annotated[str, typer.Argument(metavar="DECISION_ID", help="The decision, as `list` names it.")], log: Log = None
) -> None:
    """Shows a decision with the calls behind it, as JSON."""
    async with _open_log(log) as logs:
        _print(await logs.get_decision_trace(decision_id))


@app.command()
async def metrics(
    log: Log = None,
    conversation: Conversation = None,
    user: User = None,
    since: Since = None,
    until: Until = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare with it; drift is exit code 1.")] = None,
) -> int:
    """Sums up decisions, as JSON: shares of intents, tools and outcomes, errors, durations."""
    query = _make_query(conversation, user, None, since, until)
    async with _open_log(log) as logs:
        if baseline is None:
            _print(await logs.get_metrics_summary(query))
            return 0
        found = await logs.compare_to_baseline(baseline, query)
    for drift in found.drifts:
        mark = "DRIFT" if drift.is_flagged else "ok"
        print(f"{mark:5}  {drift.kind:6}  {drift.name:20}  {drift.baseline:.2f} -> {drift.current:.2f}  ({drift.change:+.2f})")
    return 1 if found.drift_detected else 0


@app.command()
async def baseline(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the baseline.")],
    log: Log = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it stands for.")] = "",
    since: Since = None,
    until: Until = None,
) -> None:
    """Stores what decisions are like now, to compare later ones with."""
    query = _make_query(None, None, None, since, until)
    async with _open_log(log) as logs:
        _print(await logs.create_baseline(name, query, description=description))


@app.command()
async def export(
    log: Log = None,
    form: Annotated[Literal["json", "jsonl"], typer.Option("--format", metavar="NAME", help="`json` or `jsonl`.")] = "jsonl",
    since: Since = None,
    until: Until = None,
) -> None:
    """Prints all decisions with their calls, oldest first."""
    query = _make_query(None, None, None, since, until)
    async with _open_log(log) as logs:
        async for piece in logs.export_logs(form, query):
            print(piece, end="")


@app.command()
def validate(
    fixtures: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: messages, and the expected decisions.")],
    model: Model = None,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    log: Log = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare with this baseline of the log.")] = None,
) -> Coroutine[object, object, int]:
    """Has a model decide about every message of a file, each with an empty list, and says which decisions are as expected.

    The exit code is 1 if one is not, or if decisions drift from the baseline.
    """
    cases = load_fixtures(fixtures)
    engine = build_engine(EngineOptions(kind="bare", model=model, base_url=base_url, backend_key=backend_key))

    async def live() -> int:
        with TemporaryDirectory(prefix="mainspring-") as folder:
            tasks, logs = LocalTasks(f"{folder}/tasks.db"), DecisionLogs(Path(folder, "decisions.db"))

            async def decide(fixture: Fixture) -> RecordedDecision:
                # Each fixture has a user of its own, so that none finds what another has left.
                for task in reversed(fixture.tasks):
                    await tasks.call(fixture.test_id, "add_task", {"description": task})
                return await agent.decide(DecisionContext(fixture.test_id, fixture.input, fixture.test_id))

            try:
                async with engine.lifespan, LLMAgentEngine(engine.find(Host), tasks, logs) as agent:
                    report = await run_validation(cases, decide)
                if baseline is not None:
                    report = replace(report, drift_detected=await _has_drifted(baseline, _choose_log(log), logs))
            finally:
                await tasks.close()
                await logs.close()
        return _write_report(report)

    return live()


def _choose_log(log: Location | None) -> Location:
    return log or parse_location(data_folder() / "decisions.db")


@asynccontextmanager
async def _open_log(log: Location | None) -> AsyncIterator[DecisionLogs]:
    """Raises `InvalidRequest` if there is no such file."""
    path = _choose_log(log)
    if path.file is not None and not path.file.exists():
        raise InvalidRequest(f"there is no decision log `{path}`; name one with --log, or make one with `mainspring chat`")
    logs = DecisionLogs(path, retention_seconds=None)
    try:
        yield logs
    finally:
        await logs.close()


def _make_query(
    conversation: str | None, user: str | None, outcome: str | None, since: datetime | None, until: datetime | None
) -> Query:
    times = [None if time is None else time.replace(tzinfo=time.tzinfo or UTC) for time in (since, until)]
    return Query(conversation, user, since=times[0], until=times[1], outcome=outcome)


def _print(value: object) -> None:
    print(msgspec.json.format(encode(value), indent=2).decode())


async def _has_drifted(name: str, log: Location, logs: DecisionLogs) -> bool:
    kept = DecisionLogs(log, retention_seconds=None)
    try:
        known = {found.name: found for found in await kept.baselines()}
    finally:
        await kept.close()
    if name not in known:
        raise NotFound(f"there is no baseline `{name}` in {log}; known: {', '.join(known) or 'none'}")
    return compare_shares(known[name], await logs.get_metrics_summary()).drift_detected


def _write_report(report: ValidationReport) -> int:
    for result in report.results:
        write_text(f"{'ok  ' if result.is_passed else 'FAIL'}  {result.test_id}  {'; '.join(result.problems)}".rstrip(), 6)
    drift = {None: "", True: "; drift from the baseline", False: "; no drift from the baseline"}[report.drift_detected]
    print(f"{report.passed} of {len(report.results)} as expected{drift}")
    return 1 if report.failed or report.drift_detected else 0
