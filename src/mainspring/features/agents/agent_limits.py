"""The limits of an agent's run: those of the preset, then of the server, then of its definition, then of the request."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import asdict, replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.core.operator_limits import LIMIT_EXCEEDED, OperatorLimits
from mainspring.core.spec import PRESETS, Limits, pick_least
from mainspring.features.agents.agent_definition import AgentDefinition
from mainspring.features.agents.agent_result import LIMIT_NAMES, ToolLoopConfig

WIDEST: Final = 5
SETTABLE: Final = (*LIMIT_NAMES, "concurrency")


def apply_limits(
    limits: Limits,
    definition: AgentDefinition,
    config: ToolLoopConfig | None,
    operator: OperatorLimits,
    *,
    max_seconds: float | None,
    is_parallel: bool,
) -> Limits:
    """An order's limits as those of an agent; `is_parallel` says that agents it calls may work at the same time. Raises
    `InvalidRequest` for what goes beyond the server's bounds, or the time of the definition."""
    own, base = definition.constraints, operator.apply(PRESETS["iterative"].limits)
    asked: Json = {} if config is None else config.limits
    operator.refuse({**asked, "max_seconds": max_seconds}, LIMIT_NAMES)
    said = _refuse_own(definition, operator)
    _check_request(definition, asked, max_seconds)
    limits = replace(limits, max_seconds=pick_least(limits.max_seconds, base.max_seconds, own.timeout_seconds, max_seconds))
    if config is None:
        # Only a model call that failed leaves room for another turn.
        turns = pick_least(1 + own.max_retries, operator.most.get("max_turns"))
        return replace(limits, max_turns=turns, max_errors_in_row=None)
    told = {name: value for name, value in asdict(base).items() if name in SETTABLE}
    wide = WIDEST if is_parallel else None
    return replace(limits, **{**told, **said, **asked}, max_repeats=config.max_repeats, agent_concurrency=wide)


def find_excess(definitions: Iterable[AgentDefinition], operator: OperatorLimits) -> list[str]:
    """What definitions ask for that this server refuses, so that these agents cannot run."""
    told = []
    for definition in definitions:
        try:
            _refuse_own(definition, operator)
        except InvalidRequest as error:
            told.append(error.message)
    return told


def _refuse_own(definition: AgentDefinition, operator: OperatorLimits) -> Json:
    """The limits that the definition names. Raises `InvalidRequest` for one beyond the server's bounds."""
    own = {name: value for name, value in asdict(definition.constraints).items() if name in SETTABLE and value is not None}
    operator.refuse(own, {name: f"constraints.{name}" for name in own}, f" of agent `{definition.name}`")
    return own


def _check_request(definition: AgentDefinition, asked: Json, max_seconds: float | None) -> None:
    own, name = definition.constraints, definition.name
    if max_seconds is not None and max_seconds > own.timeout_seconds:
        told = f"agent `{name}` has {own.timeout_seconds:g} seconds; ask for less, or raise `timeout_seconds` in its definition"
        raise InvalidRequest(f"max_seconds is {max_seconds:g}, and {told}", param="max_seconds", code=LIMIT_EXCEEDED)
    if asked.get("concurrency", 1) > 1 and not own.parallel_allowed:
        told = f"the definition of agent `{name}` says `parallel_allowed: false`; leave `concurrency` out"
        raise InvalidRequest(told, param="concurrency", code=LIMIT_EXCEEDED)
