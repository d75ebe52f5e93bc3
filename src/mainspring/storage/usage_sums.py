"""Lines of runs and their sums, for a store that has no database to make them."""

from collections.abc import Iterable
from datetime import UTC, datetime

from mainspring.ports import RunSummary, Segment, StoredRun, UsageGroup, UsageSum
from mainspring.storage.segment import summarize_opening


def summarize_run(number: int, run: StoredRun, segment: Segment) -> RunSummary:
    """The line of a run that begins with this segment."""
    told, known = summarize_opening(segment), (run.created_at, run.model, run.tenant, run.parent)
    return RunSummary(number, run.id, run.status, *known, None, told.agent, told.caller, told.prompt)


def add_usage(by: UsageGroup, runs: Iterable[RunSummary]) -> list[UsageSum]:
    """What the runs have used, by group and model."""
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        groups.setdefault((_find_group(by, run), run.model), []).append(run)
    return [_add(group, model, found) for (group, model), found in sorted(groups.items())]


def _find_group(by: UsageGroup, run: RunSummary) -> str:
    match by:
        case "day":
            return datetime.fromtimestamp(run.created_at, UTC).strftime("%Y-%m-%d")
        case "model":
            return run.model
        case "agent":
            return run.agent
        case "caller":
            return run.caller
        case "tenant":
            return run.tenant


def _add(group: str, model: str, runs: list[RunSummary]) -> UsageSum:
    seconds = [run.ended_at - run.created_at for run in runs if run.ended_at is not None]
    failed = len([run for run in runs if run.status == "failed"])
    tokens = (sum([run.input_tokens for run in runs]), sum([run.output_tokens for run in runs]))
    return UsageSum(group, model, len(runs), failed, len(seconds), sum(seconds), *tokens)
