"""Counters and histograms of the runs that ended here, each run counted once, in the text format of Prometheus."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mainspring.core.redact import redact_text
from mainspring.features.traces.trace_record import UNKNOWN, TraceAction, TraceRecord, TraceStep

SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MOST_NAMES: Final = 100
LONGEST_NAME: Final = 64
OTHER: Final = "_other"

Labels = tuple[str, ...]
Samples = list[tuple[Labels, list[float]]]
"""What a family has counted, by label values: numbers that can be added to those of another process."""


class LabelNames:
    """Names that clients choose, such as models: the first hundred stand for themselves, further ones for `_other`.

    Without that limit, a client could create any number of labels. `reserved` names come on top.
    """

    def __init__(self, *reserved: str) -> None:
        self._reserved = frozenset(reserved)
        self._known: set[str] = set()

    def register(self, name: str) -> str:
        if name not in self._reserved and len(self._known) < MOST_NAMES and len(name) <= LONGEST_NAME:
            self._known.add(name)
        return self.find_label(name)

    def find_label(self, name: str) -> str:
        """The label of a name, without registering a new one."""
        return name if self.has_label(name) else OTHER

    def has_label(self, name: str) -> bool:
        """Whether the name stands for itself."""
        return name in self._known or name in self._reserved


class Counter:
    """Counts by label values."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self.help, self._labels = name, help, labels
        self._counts: dict[Labels, float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        self._counts[values] = self._counts.get(values, 0) + by

    def export(self) -> Samples:
        return [(values, [count]) for values, count in self._counts.items()]

    def merge(self, samples: Samples) -> None:
        """Adds what was counted elsewhere."""
        for values, (count,) in samples:
            self.add(*values, by=count)

    def lines(self) -> Iterator[str]:
        for values, count in self._counts.items():
            yield f"{self.name}{_render_labels(zip(self._labels, values, strict=True))} {_number(count)}"


class Gauge(Counter):
    """A value that goes up and down."""

    kind = "gauge"

    def set(self, level: float) -> None:
        self._counts[()] = level


class Histogram:
    """The distribution of observed values, by label values; `bounds` are inclusive upper bounds."""

    kind = "histogram"

    def __init__(self, name: str, help: str, *labels: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self.name, self.help, self._labels, self._bounds = name, help, labels, bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *values: str) -> None:
        if (counts := self._counts.get(values)) is None:
            counts = self._counts[values] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + value

    def export(self) -> Samples:
        return [(values, [*counts, self._sums[values]]) for values, counts in self._counts.items()]

    def merge(self, samples: Samples) -> None:
        """Adds what was observed elsewhere."""
        for values, (*counts, total) in samples:
            known = self._counts.get(values) or [0] * len(counts)
            self._counts[values] = [before + int(count) for before, count in zip(known, counts, strict=True)]
            self._sums[values] = self._sums.get(values, 0.0) + total

    def lines(self) -> Iterator[str]:
        bounds = [*[_number(bound) for bound in self._bounds], "+Inf"]
        for values, counts in self._counts.items():
            labels, total = tuple(zip(self._labels, values, strict=True)), 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_render_labels((*labels, ('le', bound)))} {total}"
            yield f"{self.name}_sum{_render_labels(labels)} {_number(self._sums[values])}"
            yield f"{self.name}_count{_render_labels(labels)} {total}"


def render_exposition(families: Iterable[Counter | Histogram]) -> str:
    """The text that a scraper reads: help and type of every family, then its samples."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *family.lines()]
    return "\n".join([*lines, ""])


def _render_labels(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels])
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Metrics:
    """Counters and histograms over traces. Labels from outside are limited by `LabelNames`."""

    def __init__(self, model: str = "", *, by_tenant: bool = False) -> None:
        """`model` is the default model of runs. With `by_tenant`, runs and tokens are counted for each tenant, by a label."""
        self._models, self._tools, self._policies = LabelNames(model), LabelNames(), LabelNames()
        self._tenants, self.by_tenant = LabelNames(""), by_tenant
        whose = ("tenant",) if by_tenant else ()
        self._runs = Counter("mainspring_runs_total", "Runs that ended.", "preset", "status", "reason", *whose)
        self._turns = Counter("mainspring_turns_total", "Turns of a model.", "model", "status")
        self._tokens = Counter("mainspring_tokens_total", "Tokens, as the backend counted them.", "model", "direction", *whose)
        self._calls = Counter("mainspring_tool_calls_total", "Calls of tools.", "tool", "outcome")
        self._verdicts = Counter("mainspring_verdicts_total", "What was decided about calls.", "policy", "verdict")
        self._failures = Counter("mainspring_failures_total", "Failures, resolved ones too.", "code", "category", "severity")
        self._run_seconds = Histogram("mainspring_run_duration_seconds", "From a run's start to its end.", "preset")
        self._turn_seconds = Histogram("mainspring_turn_duration_seconds", "From a question to the answer's end.", "model")
        self._first_token = Histogram("mainspring_time_to_first_token_seconds", "From a question to its first token.", "model")
        self._call_seconds = Histogram("mainspring_tool_duration_seconds", "From a call's start to its end.", "tool")
        self._triggers = Counter("mainspring_triggers_total", "What schedules and webhooks did.", "kind", "outcome")
        self._deliveries = Counter("mainspring_webhook_deliveries_total", "Attempts to deliver events.", "outcome")
        self._audits = Counter("mainspring_audit_checks_total", "Daily verifications of the audit.", "outcome")
        self._families: tuple[Counter | Histogram, ...] = (
            self._runs, self._turns, self._tokens, self._calls, self._verdicts, self._failures,
            self._run_seconds, self._turn_seconds, self._first_token, self._call_seconds,
            self._triggers, self._deliveries, self._audits,
        )  # fmt: skip
        self._live = Gauge("mainspring_live_runs", "Runs that are under way here.")
        self._store_up = Gauge("mainspring_store_up", "1 if the store can be used, else 0.")

    def add(self, trace: TraceRecord, tenant: str = "") -> None:
        """Counts a run that has ended."""
        outcome, preset = trace.outcome, trace.context.preset
        whose = (self._tenants.register(tenant),) if self.by_tenant else ()
        self._runs.add(preset, outcome.run_status, outcome.reason.value if outcome.reason is not None else "", *whose)
        if trace.duration_ms is not None:
            self._run_seconds.observe(trace.duration_ms / 1000, preset)
        model = choose_model_label(trace, self._models)
        for step in trace.execution:
            self._add_step(step, model, whose)
        for failure in trace.failures:
            self._failures.add(failure.code, failure.category, failure.severity)

    def count_trigger(self, kind: str, outcome: str) -> None:
        self._triggers.add(kind, outcome)

    def count_delivery(self, outcome: str) -> None:
        self._deliveries.add(outcome)

    def count_audit(self, outcome: str) -> None:
        self._audits.add(outcome)

    def text(self, *, live: int, is_store_up: bool) -> str:
        """The metrics as text for a scraper."""
        self._live.set(live)
        self._store_up.set(int(is_store_up))
        return render_exposition((*self._families, self._live, self._store_up))

    def export(self) -> dict[str, Samples]:
        """All that was counted, by family."""
        return {family.name: family.export() for family in self._families}

    def merge(self, exported: Mapping[str, Samples]) -> None:
        """Adds what was counted elsewhere."""
        for family in self._families:
            family.merge(exported.get(family.name, []))

    def _add_step(self, step: TraceStep, model: str, whose: Labels) -> None:
        if step.kind == "turn":
            self._turns.add(model, step.status)
            if step.model_at is not None:
                self._turn_seconds.observe(step.model_at - step.started_at, model)
            if step.first_token_at is not None:
                self._first_token.observe(step.first_token_at - step.started_at, model)
        if step.usage is not None and step.kind != "step":
            self._tokens.add(model, "input", *whose, by=step.usage.input_tokens)
            self._tokens.add(model, "output", *whose, by=step.usage.output_tokens)
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
    """The label of the run's model. A model that has never answered gets no label of its own."""
    if names.has_label(trace.context.model):
        return trace.context.model
    has_answered = any(step.status == "completed" for step in trace.execution)
    model = redact_text(trace.context.model)
    return names.register(model) if has_answered else names.find_label(model)


def _outcome(action: TraceAction) -> str:
    """The result of a call; of one that was not performed, why not."""
    match action.verdict:
        case "deny":
            return "denied"
        case "client" | "ask":
            return "handed_over" if action.verdict == "client" else "asked"
        case _:
            return action.status
