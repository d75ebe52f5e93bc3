"""What all runs come to: counters and histograms of the runs that ended here, each counted once, from its trace."""

from mainspring.features.traces.prometheus import Counter, Gauge, Histogram, LabelNames, render_exposition
from mainspring.features.traces.trace_record import UNKNOWN, TraceAction, TraceRecord, TraceStep


class Metrics:
    """Adds traces up. Labels are few: names that come from outside are kept apart only up to a number of them."""

    def __init__(self, model: str = "") -> None:
        """`model` is the one that runs have unless they name another."""
        self._models, self._tools, self._policies = LabelNames(model), LabelNames(), LabelNames()
        self._runs = Counter("mainspring_runs_total", "Runs that ended.", "preset", "status", "reason")
        self._turns = Counter("mainspring_turns_total", "Turns of a model.", "model", "status")
        self._tokens = Counter("mainspring_tokens_total", "Tokens, as the backend counted them.", "model", "direction")
        self._calls = Counter("mainspring_tool_calls_total", "Calls of tools.", "tool", "outcome")
        self._verdicts = Counter("mainspring_verdicts_total", "What was decided about calls.", "policy", "verdict")
        self._failures = Counter("mainspring_failures_total", "Failures, resolved ones too.", "code", "category", "severity")
        self._run_seconds = Histogram("mainspring_run_duration_seconds", "From a run's start to its end.", "preset")
        self._turn_seconds = Histogram("mainspring_turn_duration_seconds", "From a question to the answer's end.", "model")
        self._first_token = Histogram("mainspring_time_to_first_token_seconds", "From a question to its first token.", "model")
        self._call_seconds = Histogram("mainspring_tool_duration_seconds", "From a call's start to its end.", "tool")
        self._live = Gauge("mainspring_live_runs", "Runs that are under way here.")
        self._store_up = Gauge("mainspring_store_up", "1 if the store can be used, else 0.")

    def add(self, trace: TraceRecord) -> None:
        """Counts a run that has ended."""
        outcome, preset = trace.outcome, trace.context.role
        self._runs.add(preset, outcome.run_status, outcome.reason.value if outcome.reason is not None else "")
        if trace.duration_ms is not None:
            self._run_seconds.observe(trace.duration_ms / 1000, preset)
        model = choose_model_label(trace, self._models)
        for step in trace.execution:
            self._add_step(step, model)
        for failure in trace.failures:
            self._failures.add(failure.code, failure.category, failure.severity)

    def text(self, *, live: int, is_store_up: bool) -> str:
        """All of it, for a scraper."""
        self._live.set(live)
        self._store_up.set(int(is_store_up))
        families = (
            self._runs, self._turns, self._tokens, self._calls, self._verdicts, self._failures,
            self._run_seconds, self._turn_seconds, self._first_token, self._call_seconds, self._live, self._store_up,
        )  # fmt: skip
        return render_exposition(families)

    def _add_step(self, step: TraceStep, model: str) -> None:
        if step.kind == "turn":
            self._turns.add(model, step.status)
            if step.model_at is not None:
                self._turn_seconds.observe(step.model_at - step.started_at, model)
            if step.first_token_at is not None:
                self._first_token.observe(step.first_token_at - step.started_at, model)
        if step.usage is not None and step.kind != "step":
            self._tokens.add(model, "input", by=step.usage.input_tokens)
            self._tokens.add(model, "output", by=step.usage.output_tokens)
        for action in step.actions:
            self._add_action(action)

    def _add_action(self, action: TraceAction) -> None:
        tool = self._tools.register(action.tool) if action.kind is not None else UNKNOWN
        self._calls.add(tool, _outcome(action))
        if action.verdict is not None:
            self._verdicts.add(self._policies.register(action.policy), action.verdict)
        if action.started_at is not None and action.completed_at is not None:
            self._call_seconds.observe(action.completed_at - action.started_at, tool)


def choose_model_label(trace: TraceRecord, names: LabelNames) -> str:
    """The run's model, among the names that are told apart. One that has never answered does not become one of them."""
    has_answered = any(step.status == "completed" for step in trace.execution)
    return names.register(trace.context.model) if has_answered else names.find_label(trace.context.model)


def _outcome(action: TraceAction) -> str:
    """How a call ended; of one that was not performed, why not."""
    match action.verdict:
        case "deny":
            return "denied"
        case "client" | "ask":
            return "handed_over" if action.verdict == "client" else "asked"
        case _:
            return action.status
