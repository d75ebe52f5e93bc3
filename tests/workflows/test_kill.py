"""A process killed with SIGKILL in the midst of a workflow, again and again: each step has its effect once."""

import random
import sys
from pathlib import Path

import pytest
from tests.agents.world import written as agent
from tests.kit.processes import Process, start
from tests.workflows.world import tallying, written

from mainspring.features.workflows.workflow_log import RUN, WorkflowJournal, list_unfinished
from mainspring.features.workflows.workflow_run import WorkflowResumed, WorkflowRun
from mainspring.storage.sqlite_runs import SqliteStore

KILLS = 20
WORKER = Path(__file__).with_name("worker.py")


TEN = """
name: ten
inputs: {base: {type: string, required: true}}
execution: {mode: sequential}
steps:
  - {id: one, POST, url: "{{ inputs.base }}/one"}
  - {id: two, action: transform, value: "{{ steps.one.output.status }}"}
  - {id: three, POST, url: "{{ inputs.base }}/three", body: {two: "{{ steps.two.output }}"}}
  - {id: four, action: invoke-agent, agent: noter, inputs: {topic: tides}}
  - {id: talk, action: group-chat, task: Name a ship., agents: [noter, other], speaker: round_robin, max_rounds: 2}
  - id: five
    action: parallel-group
    steps:
      - {id: five-a, POST, url: "{{ inputs.base }}/five-a"}
      - {id: five-b, POST, url: "{{ inputs.base }}/five-b"}
  - id: six
    action: conditional
    if: steps.two.output == 200
    then: [{id: six-then, POST, url: "{{ inputs.base }}/six-then"}]
    else: [{id: six-else, POST, url: "{{ inputs.base }}/six-else"}]
  - {id: seven, action: wait, seconds: 0.01}
  - {id: eight, POST, url: "{{ inputs.base }}/eight"}
  - {id: nine, action: sub-workflow, workflow: inner, inputs: {base: "{{ inputs.base }}"}}
  - {id: ten, action: validate, value: "{{ steps.nine.output.status }}", schema: {const: 200}}
outputs: {status: "{{ steps.nine.output.status }}"}
"""
INNER = """
name: inner
inputs: {base: {type: string}}
steps: [{id: inner, POST, url: "{{ inputs.base }}/inner"}]
outputs: {status: "{{ steps.inner.output.status }}"}
"""
EFFECTS = ["/one", "/three", "/agent", "/five-a", "/five-b", "/six-then", "/eight", "/inner"]


def prepared(folder: Path, repeatable: str) -> None:
    post = f"action: http-request, method: POST, {repeatable}"
    written(folder / "flows", TEN.replace("POST", post), INNER.replace("POST", post))
    for name in ("noter", "other"):
        agent(folder / "agents", name, inputs={"topic": {}}, outputs={"result": {}})


def worker(folder: Path, url: str) -> Process:
    command = [sys.executable, str(WORKER), str(folder), url, "ten"]
    return start(command)


def killed(folder: Path, url: str, lines: int) -> bool:
    """Kills the worker when it has said so many lines; says whether it was still at work."""
    with worker(folder, url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        rest = process.stdout.read()
        if not said[0]:
            raise AssertionError(f"the worker did not start: {process.stderr.read()}")
        return "ended" not in "".join(said) + rest


def finished(folder: Path, url: str) -> None:
    """Lets the last run end in peace."""
    with worker(folder, url) as process:
        out, err = process.communicate(timeout=120)
        assert "ended" in out, err


async def runs(folder: Path) -> list[tuple[WorkflowRun, int]]:
    """Every workflow run of the database, and how often it was taken up."""
    async with SqliteStore(folder / "runs.db") as store:
        assert await list_unfinished(store) == []
        journals = [await WorkflowJournal.read(store, found.id, "") for found in await store.documents(RUN)]
    return [(each.run, sum(isinstance(record.event, WorkflowResumed) for record in each.log)) for each in journals]


@pytest.mark.slow
async def test_a_workflow_killed_at_random_points_ends_with_each_effect_once(tmp_path: Path) -> None:
    prepared(tmp_path, "repeatable: true")
    dice = random.Random(7)
    with tallying() as tally:
        kills = 0
        while kills < KILLS:
            kills += killed(tmp_path, tally.url, dice.randrange(1, 60))
        finished(tmp_path, tally.url)
    ended = await runs(tmp_path)
    assert all(run.status == "success" and run.outputs == {"status": 200} for run, _ in ended), ended
    wanted = {**dict.fromkeys(EFFECTS, len(ended)), "/agent": 3 * len(ended)}  # one alone, and two who talk
    assert tally.counted == wanted, "each effect once for each run, none lost, none twice"
    assert sum(resumed for _, resumed in ended) >= KILLS // 2, "the kills did hit runs under way"


@pytest.mark.slow
async def test_what_may_not_be_repeated_is_never_sent_twice_and_its_unknown_outcome_is_told(tmp_path: Path) -> None:
    prepared(tmp_path, "repeatable: false")
    dice = random.Random(8)
    with tallying() as tally:
        kills = 0
        while kills < KILLS:
            kills += killed(tmp_path, tally.url, dice.randrange(5, 60))
        finished(tmp_path, tally.url)
    ended = await runs(tmp_path)
    posts = [path for path in EFFECTS if path != "/agent"]
    arrived = [arrival.split()[1] for arrival in tally.arrivals]
    for run, _ in ended:
        assert run.status in ("success", "failed")
        if run.status == "failed":
            assert "its outcome is unknown" in (run.error or "") or "inside it" in (run.error or ""), run.error
    whole = sum(run.status == "success" for run, _ in ended)
    for path in posts:
        begun = sum(_was_begun(run, path.strip("/")) for run, _ in ended)
        assert whole <= arrived.count(path) <= begun, f"{path}: no step sent it twice, and none that succeeded did not"


def _was_begun(run: WorkflowRun, id: str) -> bool:
    return any(key.split("/")[-1] == id and state.status != "skipped" for key, state in run.steps.items())
