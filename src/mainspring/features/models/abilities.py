"""What a model cannot do: a step that refuses orders by what its profile says, which the doctor has found out."""

from typing import Final

from msgspec import Struct

from mainspring.core.errors import ModelNotFound, ModelUnable
from mainspring.core.spec import RunSpec
from mainspring.ports import KnownProfile, OrderContext, OrderStep, Provider
from mainspring.providers.wrapper import explain_profiles


class Ability(Struct, frozen=True):
    """Something that a model must be able to do for some orders: by which question the doctor finds it out, and which fields of
    the profile say that it cannot."""

    question: str
    fields: tuple[str, ...]
    told: str


CALLS: Final = Ability("calls a tool", ("calls", "tools"), "call tools")
SCHEMAS: Final = Ability("keeps to a schema", ("keeps_schemas",), "keep to a schema")
ENDING: Final = Ability("ends", ("ends",), "end its answers")
ABILITIES: Final = (CALLS, SCHEMAS, ENDING)


class AbilityStep(OrderStep):
    """Refuses an order that needs what no model of its name can do. Raises `ModelUnable`."""

    name = "abilities"
    runs_in_place = True

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if needs := _list_needs(order):
            try:
                known = await explain_profiles(self._provider, order.model)
            except ModelNotFound:  # which is for whoever asks it to say
                return order
            for need in needs:
                if known and (causes := [_find_cause(each, need) for each in known]) and all(causes):
                    raise ModelUnable(_explain(order, need, known[0], causes[0] or ""))
        return order


def _list_needs(order: RunSpec) -> list[Ability]:
    if order.step_call is not None or order.goal != "answer":
        return []
    is_decision = order.preset == "decision"
    has_tools = bool(order.tools) and order.tool_choice.mode != "none" and bool(order.agent or is_decision)
    has_schema = ((order.sampling.text or {}).get("format") or {}).get("type") == "json_schema"
    return [*([CALLS] if has_tools else []), *([SCHEMAS] if has_schema else []), *([ENDING] if is_decision else [])]


def _find_cause(known: KnownProfile, need: Ability) -> str | None:
    """Why the model cannot do it, None if it may be able to. What was found out or set outweighs what is shipped."""
    for field in need.fields:
        fact = known.facts.get(field)
        if fact is not None:
            return None if fact.value else fact.evidence
    return None


def _explain(order: RunSpec, need: Ability, known: KnownProfile, cause: str) -> str:
    who = f"agent `{order.agent}`" if order.agent else "the task agent" if order.preset == "decision" else "`text.format`"
    ways = [
        "take another model (`mainspring models pull` fetches one, `mainspring models` lists those that you have)",
        f"examine it again with `mainspring doctor --model {order.model} --learn`",
        f'set `{need.fields[0]} = true` in `[providers.NAME.profiles."{known.model}"]` to try it all the same',
    ]
    return f"model `{order.model}` cannot {need.told} ({cause}), and {who} needs that; {'; or '.join(ways)}"
