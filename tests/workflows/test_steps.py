"""Each kind of step, carried out for real: commands in the sandbox, requests to a server, groups, and the joints between."""

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.agents.world import written as agent
from tests.kit.waiting import PATIENCE
from tests.workflows.world import LOCAL, ended, engine_for, failure, tallying

from mainspring.app.engine import Engine
from mainspring.core.errors import InvalidInputs, NotFound
from mainspring.core.items import Usage
from mainspring.core.spec import Caller
from mainspring.features.approvals.pending import Approvals
from mainspring.features.budgets.budget import AutonomyBudget, AutonomyLimits, Network
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import AccessList, GovernanceSettings
from mainspring.features.traces.spans import build_spans
from mainspring.features.workflows.workflow_definition import Execution
from mainspring.features.workflows.workflow_run import StepCompleted, StepRetrying, StepStarted, WorkflowRun
from mainspring.ports import Allow, Deny
from mainspring.tools.addresses import AddressGuard

REQUESTS = """
name: requests
inputs: {base: {type: string, required: true}}
steps:
  - id: get
    action: http-request
    url: "{{ inputs.base }}/get"
    headers: {X-Kind: "{{ 1 + 1 }}"}
    outputs: {seen: "{{ output.body.seen }}", kind: "{{ output.headers['content-type'] }}"}
  - id: post
    action: http-request
    method: POST
    url: "{{ inputs.base }}/post"
    body: {seen: "{{ steps.get.outputs.seen }}"}
  - {id: put, action: http-request, method: PUT, url: "{{ inputs.base }}/put", body: plain text, depends_on: [post]}
  - {id: head, action: http-request, method: HEAD, url: "{{ inputs.base }}/head", depends_on: [put]}
outputs:
  status: "{{ steps.post.output.status }}"
"""


async def carried_out(tmp_path: Path, text: str, inputs: dict[str, Any] | None = None, **options: Any) -> WorkflowRun:
    async with engine_for(tmp_path, text, **options) as engine:
        return await engine.workflows.run(text.partition("name:")[2].split()[0], inputs)


async def test_requests_send_what_expressions_say_and_their_answers_can_be_read(tmp_path: Path) -> None:
    with tallying() as tally:
        run = await carried_out(tmp_path, REQUESTS, {"base": tally.url})
    assert (run.status, run.outputs, run.error) == ("success", {"status": 200}, None)
    assert tally.arrivals == ["GET /get", "POST /post", "PUT /put", "HEAD /head"]
    assert tally.bodies == ["", '{"seen":1}', "plain text", ""]
    assert [headers.get("x-kind") for headers in tally.headers] == ["2", None, None, None]
    assert [headers.get("content-type") for headers in tally.headers] == [
        None, "application/json", "text/plain; charset=utf-8", None,
    ]  # fmt: skip
    assert run.steps["get"].outputs == {"seen": 1, "kind": "application/json"}
    assert run.steps["post"].output["body"] == {"path": "/post", "seen": 1}
    # Only what changes something is told apart from its repetition.
    keys = [headers.get("idempotency-key") for headers in tally.headers]
    assert (keys[0], keys[3]) == (None, None)
    assert keys[1]
    assert keys[2]
    assert keys[1] != keys[2]


def one(step: str, name: str = "one") -> str:
    return f"name: {name}\ninputs: {{base: {{}}}}\nsteps:\n  - {step}\n"


@pytest.mark.slow
async def test_a_request_is_tried_again_as_often_as_its_step_says_under_one_key(tmp_path: Path) -> None:
    step = "{id: s, action: http-request, method: POST, url: '{{ inputs.base }}/x', retry: {max_attempts: 3, delay: 1}}"
    with tallying() as tally:
        tally.answers["/x"] = (503, 500, 200)
        async with engine_for(tmp_path, one(step)) as engine:
            handle = await engine.workflows.start("one", {"base": tally.url})
            events = [record.event async for record in handle.events()]
    assert handle.run.status == "success"
    assert [event.attempt for event in events if isinstance(event, StepStarted)] == [1, 2, 3]
    retries = [event for event in events if isinstance(event, StepRetrying)]
    assert [(event.attempt, event.delay, "answered 50" in event.error) for event in retries] == [(2, 1.0, True), (3, 1.0, True)]
    assert len({headers["idempotency-key"] for headers in tally.headers}) == 1
    assert tally.counted == {"/x": 1}


async def test_a_step_that_fails_to_the_last_attempt_fails_the_workflow(tmp_path: Path) -> None:
    step = "{id: s, action: http-request, url: '{{ inputs.base }}/x', retry: {max_attempts: 2, delay: 1}}"
    with tallying() as tally:
        tally.answers["/x"] = (404,)
        run = await carried_out(tmp_path, one(step), {"base": tally.url})
    assert run.status == "failed"
    assert tally.arrivals == ["GET /x", "GET /x"]
    assert "answered 404" in failure(run, "s")
    assert run.error is not None
    assert run.error.startswith("step `s` failed: GET http://127.0.0.1")


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with tallying() as tally:
        tally.answers["/x"] = (302,)
        run = await carried_out(tmp_path, one("{id: s, action: http-request, url: '{{ inputs.base }}/x'}"), {"base": tally.url})
    assert run.steps["s"].output["status"] == 302
    assert run.steps["s"].output["headers"]["location"] == "/elsewhere"
    assert tally.arrivals == ["GET /x"]


async def test_private_addresses_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    with tallying() as tally:
        step = one("{id: s, action: http-request, url: '{{ inputs.base }}/x'}")
        for base in (tally.url, tally.url.replace(LOCAL, "localhost"), tally.url.replace(LOCAL, "[::ffff:127.0.0.1]")):
            run = await carried_out(tmp_path, step, {"base": base}, allow=())
            assert "not public" in failure(run, "s")
        assert "not a web address" in failure(await carried_out(tmp_path, step, {"base": "file:///etc/passwd"}), "s")
        assert tally.arrivals == []


async def test_requests_are_judged_by_the_rules_for_domains(tmp_path: Path) -> None:
    with tallying() as tally:
        policies = build_policies(GovernanceSettings(domains=AccessList(allowed=("example.com",))), AddressGuard((LOCAL,)))
        step = one("{id: s, action: http-request, url: '{{ inputs.base }}/x'}")
        run = await carried_out(tmp_path, step, {"base": tally.url}, policies=policies)
        assert "The rule `domains` denies this call" in failure(run, "s")
        assert tally.arrivals == []


COMMANDS = """
name: commands
inputs: {who: {type: string}, list: {type: array, default: [1]}}
steps:
  - id: write
    action: run-command
    inputs: {who: "{{ inputs.who }}", list: "{{ inputs.list }}"}
    command: |
      echo "to $who: $list" | tee note
      mkdir -p sub && echo deep > sub/f
  - {id: read, action: run-command, command: cat note, depends_on: [write]}
  - {id: below, action: run-command, command: cat f, working_dir: sub, depends_on: [write]}
outputs: {text: "{{ steps.read.output.text }}", deep: "{{ steps.below.output.text }}"}
"""
HOSTILE = 'x\'; rm -rf /; echo "$(id)" `id` \n $who'


async def test_commands_share_a_workspace_and_no_value_becomes_a_command(tmp_path: Path) -> None:
    run = await carried_out(tmp_path, COMMANDS, {"who": HOSTILE}, builtins=["shell"])
    assert run.outputs == {"text": f"to {HOSTILE}: [1]", "deep": "deep"}


async def test_a_command_that_fails_fails_its_step_with_what_it_said(tmp_path: Path) -> None:
    run = await carried_out(tmp_path, one("{id: s, action: run-command, command: 'echo oh no >&2; exit 3'}"), builtins=["shell"])
    assert "oh no" in failure(run, "s")
    assert "[exit code 3]" in failure(run, "s")
    faked = await carried_out(
        tmp_path, one("{id: s, action: run-command, command: 'echo \"[exit code 0]\"; exit 1'}"), builtins=["shell"]
    )
    assert faked.status == "failed"


async def test_without_a_shell_there_are_no_commands(tmp_path: Path) -> None:
    run = await carried_out(tmp_path, one("{id: s, action: run-command, command: ls}"))
    assert "needs the tool `shell`" in failure(run, "s")
    assert "--builtin shell" in failure(run, "s")


async def test_a_command_is_judged_by_the_rules_that_a_model_s_command_is_judged_by(tmp_path: Path) -> None:
    policies = build_policies(GovernanceSettings(commands=AccessList(allowed=("echo",), denied=("curl",))), AddressGuard())
    text = """
name: judged
execution: {continue_on_error: true}
steps:
  - {id: fine, action: run-command, command: 'echo "$word"', inputs: {word: "curl; ls"}}
  - {id: denied, action: run-command, command: "echo a; curl example.com"}
outputs: {said: "{{ steps.fine.output.text }}"}
"""
    async with engine_for(tmp_path, text, builtins=["shell"], policies=policies, audit=True) as engine:
        run = await engine.workflows.run("judged")
        audited = b"".join([link.note.body for link in await engine.store.audit()])
    assert ended(run) == {"fine": "success", "denied": "failed"}
    assert run.status == "partial"
    assert "`curl`" in failure(run, "denied")
    assert run.steps["fine"].output["text"] == "curl; ls"
    assert run.steps["denied"].run_id.encode() in audited, "a refused command is in the audit like any other call"


async def test_a_command_that_needs_approval_waits_for_a_person(tmp_path: Path) -> None:
    policies = build_policies(GovernanceSettings(commands=AccessList(allowed=("echo",))), AddressGuard())
    text = "name: asks\nsteps: [{id: s, action: run-command, command: 'touch f && ls'}]"
    async with engine_for(tmp_path, text, builtins=["shell"], policies=policies, database=tmp_path / "db") as engine:
        for approve, status in ((True, "success"), (False, "failed")):
            handle = await engine.workflows.start("asks")
            waiting = await asked(engine)
            await Approvals(engine.core).answer(waiting, approve=approve, reason="not today")
            run = await handle.wait()
            assert run.status == status
    assert "A person refused this call: not today" in failure(run, "s")


async def asked(engine: Engine) -> str:
    """The id of the approval that is asked for, once it is: the answer of a run that sets no event when it ends."""
    with anyio.fail_after(PATIENCE):
        while not (waiting := (await Approvals(engine.core).list(state="pending")).approvals):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return waiting[0].id


async def test_the_scopes_of_the_caller_hold_for_the_calls_of_steps(tmp_path: Path) -> None:
    async with engine_for(tmp_path, one("{id: s, action: run-command, command: ls}"), builtins=["shell"]) as engine:
        handle = await engine.workflows.start("one", caller=Caller("key:1", ("tools:execute:other",)))
        run = await handle.wait()
        allowed = await (await engine.workflows.start("one", caller=Caller("key:1", ("tools:execute:shell",)))).wait()
    assert "tools:execute" in failure(run, "s")
    assert allowed.status == "success"


async def test_no_model_is_offered_the_tool_of_requests_and_none_speaks_for_a_step(tmp_path: Path) -> None:
    async with engine_for(tmp_path, one("{id: s, action: wait, seconds: 0}")) as engine:
        assert [tool.name for tool in engine.definitions] == []
        run = await engine.run("Hello", model="mainspring/step")
    assert run.status == "failed"
    assert run.error is not None
    assert "for the steps of workflows" in run.error.message


VALIDATIONS = """
name: validations
inputs: {value: {}}
execution: {continue_on_error: true}
steps:
  - {id: schema, action: validate, value: "{{ inputs.value }}", schema: {type: object, properties: {a: {type: integer}}}}
  - {id: test, action: validate, expression: "inputs.value.a > 1", message: too small}
  - {id: both, action: validate, value: "{{ inputs.value.a }}", schema: {type: integer}, expression: "inputs.value.a == 2"}
"""


async def test_validate_takes_a_schema_an_expression_or_both(tmp_path: Path) -> None:
    good = await carried_out(tmp_path, VALIDATIONS, {"value": {"a": 2}})
    assert good.status == "success"
    assert good.steps["both"].output == 2
    bad = await carried_out(tmp_path, VALIDATIONS, {"value": {"a": 0.5}})
    assert bad.status == "failed"
    assert "a: 0.5 is not of type" in failure(bad, "schema")
    assert failure(bad, "test") == "too small: `inputs.value.a > 1` does not hold"
    assert "is not of type" in failure(bad, "both")
    assert "does not hold" in failure(bad, "both")


GROUPS = """
name: groups
inputs: {n: {type: integer}}
steps:
  - id: which
    action: conditional
    if: inputs.n > 1
    then:
      - {id: many, action: transform, value: "{{ inputs.n }} things"}
      - {id: loud, action: transform, value: "{{ steps.many.output | upper }}"}
    else:
      - {id: few, action: transform, value: one thing}
  - id: both
    action: parallel-group
    steps:
      - {id: left, action: transform, value: 1}
      - {id: right, action: transform, value: [2]}
  - {id: odd, action: transform, value: 1, condition: "inputs.n % 2 == 1"}
  - {id: after, action: transform, value: "{{ steps.odd.status }} {{ steps.odd.output }}"}
outputs: {branch: "{{ steps.which.output.branch }}", both: "{{ steps.both.output }}", after: "{{ steps.after.output }}"}
"""


@pytest.mark.parametrize(
    ("n", "branch", "taken", "after"),
    [(2, "then", {"many", "loud"}, "skipped None"), (1, "else", {"few"}, "success 1")],
)
async def test_groups_and_conditions(tmp_path: Path, n: int, branch: str, taken: set[str], after: str) -> None:
    run = await carried_out(tmp_path, GROUPS, {"n": n})
    assert run.status == "success"
    assert run.outputs == {"branch": branch, "both": {"left": 1, "right": [2]}, "after": after}
    states = ended(run)
    assert {id for id in ("many", "loud", "few") if states[id] == "success"} == taken
    assert all(states[id] == "skipped" for id in {"many", "loud", "few"} - taken)
    assert states["odd"] == ("success" if n % 2 else "skipped")


async def test_what_is_inside_of_a_group_that_is_skipped_is_skipped_with_it(tmp_path: Path) -> None:
    text = """
name: unopened
steps:
  - {id: group, action: parallel-group, condition: false, steps: [{id: inside, action: transform, value: 1}]}
  - {id: after, action: transform, value: "{{ steps.inside.output is none }} {{ steps.inside.status }}"}
"""
    run = await carried_out(tmp_path, text)
    assert run.steps["after"].output == "True skipped"
    assert ended(run) == {"group": "skipped", "inside": "skipped", "after": "success"}


async def test_a_group_in_which_a_step_fails_has_failed(tmp_path: Path) -> None:
    text = """
name: inside
steps:
  - id: group
    action: parallel-group
    steps: [{id: bad, action: transform, value: "{{ 1 / 0 }}"}, {id: good, action: transform, value: 1}]
  - {id: later, action: transform, value: 1, depends_on: [group]}
"""
    run = await carried_out(tmp_path, text)
    assert run.status == "failed"
    assert "division by zero" in failure(run, "bad")
    assert failure(run, "group") == "step `bad` inside it failed"
    assert ended(run)["later"] == "skipped"


WAITS = """
name: waits
execution: {mode: parallel, continue_on_error: true}
steps:
  - {id: short, action: wait, seconds: 0.01}
  - {id: until, action: wait, until: "1 == 1"}
  - {id: never, action: wait, until: "1 == 2", every: 0.1, max_seconds: 0.2}
"""


async def test_wait_takes_its_time_or_waits_for_a_condition(tmp_path: Path) -> None:
    run = await carried_out(tmp_path, WAITS)
    assert ended(run) == {"short": "success", "until": "success", "never": "failed"}
    assert run.steps["short"].output["seconds"] >= 0.01
    assert failure(run, "never") == "`1 == 2` did not hold within 0.2 s"


OUTER = """
name: outer
inputs: {n: {type: integer}}
steps:
  - {id: first, action: sub-workflow, workflow: inner, inputs: {n: "{{ inputs.n }}"}}
  - {id: second, action: sub-workflow, workflow: inner, inputs: {n: "{{ steps.first.output.twice }}"}}
outputs: {four: "{{ steps.second.output.twice }}"}
"""
INNER = """
name: inner
inputs: {n: {type: integer, required: true}}
steps: [{id: double, action: transform, value: "{{ inputs.n * 2 }}"}]
outputs: {twice: "{{ steps.double.output }}"}
"""


async def test_sub_workflows_have_inputs_outputs_and_names_of_their_own(tmp_path: Path) -> None:
    async with engine_for(tmp_path, OUTER, INNER) as engine:
        run = await engine.workflows.run("outer", {"n": 5})
        wrong = await engine.workflows.run("outer", {})
    assert run.outputs == {"four": 20}
    assert list(run.steps) == ["first", "first/double", "second", "second/double"]
    assert wrong.status == "failed"
    assert "`n` must be of type integer" in failure(wrong, "first")


async def test_inputs_that_do_not_fit_start_nothing(tmp_path: Path) -> None:
    async with engine_for(tmp_path, INNER) as engine:
        with pytest.raises(InvalidInputs, match=r"`n` \(integer\) is missing"):
            await engine.workflows.start("inner")
        with pytest.raises(NotFound, match="there is no workflow `iner`; did you mean `inner`"):
            await engine.workflows.start("iner")
        assert (await engine.workflows.list()).runs == ()


async def test_a_dry_run_does_nothing_and_says_what_would_be_done(tmp_path: Path) -> None:
    class Watching:
        name = "watching"
        calls: list[str] = []  # noqa: RUF012

        async def judge(self, call: object, run: object) -> Allow | Deny:
            self.calls.append("judged")
            return Allow()

    text = REQUESTS + "execution: {dry_run: false}\n"
    with tallying() as tally:
        async with engine_for(tmp_path, text, COMMANDS, builtins=["shell"], policies=[Watching()]) as engine:
            run = await engine.workflows.run("requests", {"base": tally.url}, dry_run=True)
            await engine.workflows.run("commands", {"who": "me"}, dry_run=True)
            assert (await engine.store.list()).runs == ()
        assert tally.arrivals == []
    assert run.status == "skipped"
    assert set(ended(run).values()) == {"skipped"}
    assert run.steps["post"].error == f"dry run: would send POST {tally.url}/post"
    assert Watching.calls == []


@pytest.mark.slow
async def test_a_step_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    held = threading.Event()
    step = "{id: s, action: http-request, url: '{{ inputs.base }}/x', timeout: 10}"
    with tallying() as tally:
        tally.on_arrival = lambda path: held.wait(60)
        try:
            async with engine_for(tmp_path, one(step)) as engine:
                run = await engine.workflows.run("one", {"base": tally.url})
                behind = (await engine.attach(run.steps["s"].run_id)).run
        finally:
            held.set()
    assert failure(run, "s") == "it exceeded its timeout of 10 s"
    assert behind.status == "cancelled", "what the step had begun is stopped with it"


async def test_an_effect_is_not_repeated_for_outputs_that_cannot_be_had(tmp_path: Path) -> None:
    step = """{id: s, action: http-request, method: POST, url: "{{ inputs.base }}/x", retry: {max_attempts: 3},
      outputs: {n: "{{ output.body.nope }}"}}"""
    with tallying() as tally:
        run = await carried_out(tmp_path, one(step), {"base": tally.url})
    assert tally.arrivals == ["POST /x"]
    assert "it was done, but its outputs cannot be evaluated" in failure(run, "s")


SENDING = """
name: sending
inputs: {base: {}, path: {default: x}}
execution: {dry_run: true}
steps:
  - {id: send, action: http-request, method: POST, url: "{{ inputs.base }}/{{ inputs.path }}"}
"""
AROUND = """
name: around
inputs: {base: {}}
steps:
  - {id: inner, action: sub-workflow, workflow: sending, inputs: {base: "{{ inputs.base }}"}}
  - {id: later, action: transform, value: "{{ steps.inner.status }}"}
"""


async def test_a_dry_run_inside_of_a_workflow_does_nothing_either(tmp_path: Path) -> None:
    with tallying() as tally:
        async with engine_for(tmp_path, SENDING, AROUND) as engine:
            run = await engine.workflows.run("around", {"base": tally.url})
    assert (tally.arrivals, run.status) == ([], "success")
    assert run.steps["inner/send"].error == f"dry run: would send POST {tally.url}/x"


async def test_a_workflow_inside_of_another_has_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = "name: inner\nexecution: {timeout: 60}\nsteps: [{id: slow, action: wait, seconds: 300}]"
    outer = "name: outer\nsteps: [{id: s, action: sub-workflow, workflow: inner}]"
    async with engine_for(tmp_path, inner, outer) as engine:
        known = dict(engine.workflows.folders.definitions)
        # A file cannot ask for less than a minute.
        known["inner"] = replace(known["inner"], execution=Execution(timeout=0.1))
        monkeypatch.setattr(engine.workflows.folders, "closure", lambda name: known)
        run = await engine.workflows.run("outer")
    assert failure(run, "s") == "workflow `inner` exceeded its timeout of 0.1 s"
    assert ended(run) == {"s": "failed", "s/slow": "failed"}


REHEARSED = """
name: rehearsed
inputs: {who: {}, base: {default: "http://x"}, n: {default: 1}}
steps:
  - {id: ask, action: invoke-agent, agent: "{{ inputs.who }}", inputs: {task: go}}
  - {id: chosen, action: invoke-agent, agent: "{{ steps.ask.output.next }}"}
  - {id: never, action: parallel-group, condition: inputs.n > 1, steps: [{id: in-never, action: wait, seconds: 1}]}
  - id: either
    action: conditional
    if: inputs.n == 1
    then: [{id: yes-1, action: transform, value: 1}]
    else: [{id: no-1, action: transform, value: 1}]
  - {id: sub, action: sub-workflow, workflow: sending, inputs: {base: "{{ inputs.base }}"}}
  - {id: unknown, action: sub-workflow, workflow: sending, inputs: {base: "{{ steps.ask.output.base }}"}}
"""


async def test_a_dry_run_evaluates_what_it_can_and_looks_into_everything(tmp_path: Path) -> None:
    agent(tmp_path / "agents", "clerk")
    async with engine_for(tmp_path, REHEARSED, SENDING, agents=[tmp_path / "agents"]) as engine:
        run = await engine.workflows.run("rehearsed", {"who": "clerk"}, dry_run=True)
    assert run.status == "skipped"
    assert {key: (state.error or "").removeprefix("dry run: ") for key, state in run.steps.items()} == {
        "ask": "would invoke agent `clerk`",
        "chosen": "would invoke agent `{{ steps.ask.output.next }}`",
        "never": "its condition does not hold",
        "in-never": "its condition does not hold",
        "either": "would carry out the conditional",
        "yes-1": "would carry out the transform",
        "no-1": "the branch `else` is not taken",
        "sub": "would carry out workflow `sending`",
        "sub/send": "would send POST http://x/x",
        "unknown": "would carry out workflow `sending`",
        "unknown/send": "would send POST {{ inputs.base }}/{{ inputs.path }}",
    }


async def test_a_dry_run_finds_every_mistake_that_can_be_found(tmp_path: Path) -> None:
    text = """
name: wrong
inputs: {who: {}}
steps:
  - {id: ask, action: invoke-agent, agent: "{{ inputs.who }}"}
  - {id: sum, action: transform, value: "{{ inputs.who + 1 }}"}
  - {id: sub, action: sub-workflow, workflow: sending, inputs: {bse: 1}}
"""
    async with engine_for(tmp_path, text, SENDING) as engine:
        run = await engine.workflows.run("wrong", {"who": "nobody"}, dry_run=True)
    assert run.status == "failed"
    assert "there is no agent `nobody`; known: none" in failure(run, "ask")
    assert "cannot be evaluated" in failure(run, "sum")
    assert "there is no input `bse`; did you mean `base`?" in failure(run, "sub")


async def test_no_model_is_accounted_for_what_a_step_does(tmp_path: Path) -> None:
    """Neither in the response, nor in trace, spans and metrics, nor against a budget of tokens."""
    limits, network = AutonomyLimits(max_tokens=1, max_iterations=1), Network(enabled=True)
    budget = AutonomyBudget("small", state="active", in_scope=("x",), limits=limits, network=network)
    with tallying() as tally:
        step = "{id: s, action: http-request, url: '{{ inputs.base }}/x'}"
        async with engine_for(tmp_path, one(step), budget=budget) as engine:
            run = await engine.workflows.run("one", {"base": tally.url})
            assert run.status == "success", run.error
            behind = (await engine.attach(run.steps["s"].run_id)).run
            trace, metrics = await engine.trace(behind.spec.id), engine.metrics.text(live=0, is_store_up=True)
    assert (behind.usage, trace.usage, trace.turns) == (Usage(), Usage(), ())
    assert [span.name for span in build_spans(trace, "scripted")] == ["invoke_agent", "execute_tool http_request"]
    assert "mainspring_turns_total{" not in metrics
    assert "mainspring_tokens_total{" not in metrics
    assert 'mainspring_tool_calls_total{tool="http_request",outcome="success"} 1' in metrics


async def test_a_wait_can_look_at_steps_that_are_under_way(tmp_path: Path) -> None:
    """The request is held until the wait, which waits for that request to begin, is over."""
    over = threading.Event()
    text = """
name: looking
inputs: {base: {}}
steps:
  - {id: held, action: http-request, url: "{{ inputs.base }}/held"}
  - {id: until, action: wait, until: "steps.held.status == 'running' and steps.late.status == 'pending'", every: 0.1}
  - {id: late, action: transform, value: 1, depends_on: [held]}
"""
    with tallying() as tally:
        tally.on_arrival = lambda path: over.wait(30)
        async with engine_for(tmp_path, text) as engine:
            handle = await engine.workflows.start("looking", {"base": tally.url})
            async for record in handle.events():
                if isinstance(record.event, StepCompleted) and record.event.step == "until":
                    over.set()
    assert ended(handle.run) == {"held": "success", "until": "success", "late": "success"}


async def test_the_span_of_the_caller_is_that_of_every_run_behind_a_step(tmp_path: Path) -> None:
    agent(tmp_path / "agents", "clerk")
    text = """
name: traced
inputs: {base: {}}
steps:
  - {id: send, action: http-request, url: "{{ inputs.base }}/x"}
  - {id: ask, action: invoke-agent, agent: clerk, inputs: {task: go}}
"""
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with tallying() as tally:
        async with engine_for(tmp_path, text, agents=[tmp_path / "agents"]) as engine:
            handle = await engine.workflows.start("traced", {"base": tally.url}, traceparent=parent)
            run = await handle.wait()
            found = [(await engine.attach(run.steps[id].run_id)).run.spec.traceparent for id in ("send", "ask")]
    assert found == [parent, parent]


async def test_what_no_variable_can_hold_is_told_in_words(tmp_path: Path) -> None:
    step = "{id: s, action: run-command, command: ls, inputs: {x: '{{ inputs.base }}'}}"
    run = await carried_out(tmp_path, one(step), {"base": "a\0b"}, builtins=["shell"])
    assert failure(run, "s") == "the input `x` has a NUL character, which no variable of the shell can hold"


async def test_the_scheme_of_an_address_may_be_in_capitals(tmp_path: Path) -> None:
    with tallying() as tally:
        step = "{id: s, action: http-request, url: '{{ inputs.base }}/x'}"
        run = await carried_out(tmp_path, one(step), {"base": tally.url.replace("http", "HTTP")})
    assert (run.status, tally.arrivals) == ("success", ["GET /x"])


async def test_what_a_command_prints_is_not_mistaken_for_how_it_ended(tmp_path: Path) -> None:
    """The exit code is data: a command that prints what looks like one neither fails nor succeeds by it."""
    steps = "{id: s, action: run-command, command: \"printf '[exit code 3]'\"}"
    async with engine_for(tmp_path, one(steps), builtins=("shell",)) as engine:
        run = await engine.workflows.run("one")
    assert run.steps["s"].output == {"exit_code": 0, "text": "[exit code 3]"}
