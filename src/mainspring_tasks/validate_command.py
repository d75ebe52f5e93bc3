"""`mainspring decisions validate`: an agent of its own decides about every message of a file."""

from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from mainspring.cli.follow import launch
from mainspring.cli.plain import clean
from mainspring.core.errors import NotFound
from mainspring.features.runs.run_command import Setup
from mainspring_tasks.decision_engine import LLMAgentEngine, Made
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import DecisionContext
from mainspring_tasks.entries import compared
from mainspring_tasks.task_tools import LocalTasks
from mainspring_tasks.validation import Fixture, ValidationReport, load_fixtures, run_validation


def validated(path: Path, setup: Setup, log: Path, baseline: str | None) -> int:
    """Prints what came of each fixture; exit code 1 if one was not decided as expected, or the baseline has drifted."""
    fixtures = load_fixtures(path)
    engine = setup.engine(None)

    async def live() -> int:
        with TemporaryDirectory(prefix="mainspring-") as folder:
            tasks, logs = LocalTasks(f"{folder}/tasks.db"), DecisionLogs(Path(folder, "decisions.db"))

            async def decide(fixture: Fixture) -> Made:
                # Everybody is a person of their own, so that no fixture finds what another has left.
                for task in reversed(fixture.tasks):
                    await tasks.call(fixture.test_id, "add_task", {"description": task})
                return await agent.decide(DecisionContext(fixture.test_id, fixture.input, fixture.test_id))

            try:
                async with engine, LLMAgentEngine(engine, tasks, logs) as agent:
                    report = await run_validation(fixtures, decide)
                if baseline is not None:
                    report = replace(report, drift_detected=await _drifted(baseline, log, logs))
            finally:
                await tasks.close()
                await logs.close()
        return _told(report)

    return launch(live())


async def _drifted(name: str, log: Path, logs: DecisionLogs) -> bool:
    kept = DecisionLogs(log, retention_seconds=None)
    try:
        known = {found.name: found for found in await kept.baselines()}
    finally:
        await kept.close()
    if name not in known:
        raise NotFound(f"there is no baseline `{name}` in {log}; known: {', '.join(known) or 'none'}")
    return compared(known[name], await logs.get_metrics_summary()).drift_detected


def _told(report: ValidationReport) -> int:
    for result in report.results:
        print(f"{'ok  ' if result.is_passed else 'FAIL'}  {clean(result.test_id)}  {'; '.join(result.problems)}".rstrip())
    drift = {None: "", True: "; drift from the baseline", False: "; no drift from the baseline"}[report.drift_detected]
    print(f"{report.passed} of {len(report.results)} as expected{drift}")
    return 1 if report.failed or report.drift_detected else 0
