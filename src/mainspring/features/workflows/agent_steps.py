"""Steps in which a model chooses an agent (`route`), one takes over from another (`handoff`), or several talk (`group-chat`).

Whatever is asked or said is a run of the engine of its own. The ids of the runs of a step follow from each other, so a step that
is resumed goes through what was said without asking again, and goes on with what was not.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from mainspring.core.items import Json, to_json, user
from mainspring.core.spec import RunSpec, spec_for
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_result import has_answered, read_last_words, read_result
from mainspring.features.agents.agent_runtime import AgentRuntime, make_failure
from mainspring.features.workflows.dry_run import find_unknown_agent
from mainspring.features.workflows.expressions import resolve_values
from mainspring.features.workflows.step_work import StepError, StepWork, derive_next_id
from mainspring.features.workflows.workflow_definition import GroupChat, Handoff, Route

MENTION: Final = re.compile(r"@([a-z][a-z0-9-]{1,63})")

MOST_SAID: Final = 8 << 20
"""How many characters may be said in a talk."""
MENTION_CHARS: Final = 65_536
"""Where in a message names are looked for."""

RunOrder = Callable[[StepWork, Callable[[], Awaitable[RunSpec]]], Awaitable[Handle]]


class AgentSteps:
    """Performs these steps. `run` waits for the run of a `StepWork`, which it starts, follows or resumes."""

    def __init__(self, agents: AgentRuntime, run: RunOrder) -> None:
        self._agents, self._run = agents, run

    async def route(self, step: Route, work: StepWork) -> Json:
        """The agent that a model chooses for the task, the first if it names none of them."""
        task, model, names = await resolve_values((step.task, step.model, step.agents), work.names, work.order.tenant)
        self._check(names)
        chosen = await self._choose(_write(task), names, model, work)
        return {"agent": chosen or names[0], "is_fallback": chosen is None}

    async def hand_off(self, step: Handoff, work: StepWork) -> Json:
        """What the agent gives that takes over. It is told what is handed over, and nothing else of what was said before."""
        values = (step.agent, step.source, step.objective, step.context, step.data, step.model)
        agent, source, objective, context, data, model = await resolve_values(values, work.names, work.order.tenant)
        self._check([agent])
        ledger = {"source": source, "target": agent, "objective": objective, "context": context, "data": data}
        told = {name: value for name, value in ledger.items() if value not in ("", {}, None)}
        handle = await self._ask(agent, f"You take over a task. This is all that is handed to you:\n{to_json(told)}", model, work)
        return read_result(handle.run).output

    async def chat(self, step: GroupChat, work: StepWork) -> Json:
        """What was said, in rounds of one agent each, until one ends the talk or the rounds are over."""
        task, model, names = await resolve_values((step.task, step.model, step.agents), work.names, work.order.tenant)
        self._check(names)
        names = tuple(dict.fromkeys(names))  # two expressions may give one agent, and those behind it would never speak
        said: list[Json] = []
        is_over, size = False, 0
        while len(said) < step.max_rounds and not is_over:
            recent = "\n\n".join([f"{each['agent']}: {each['text']}" for each in said[-step.history :]])
            topic = f"{_write(task)}\n\n# Said so far\n{recent or 'Nothing yet.'}"
            speaker, work = await self._find_speaker(step, topic, names, said, model, work)
            others = ", ".join([name for name in names if name != speaker]) or "nobody else"
            asked = (
                f"You are `{speaker}` in a talk with {others}. Say what you have to add, as yourself only. Name others as @NAME "
                f"to have them speak. When the task is done, end with the word {step.end_word}.\n\n"
                f"# The task\n{topic}"
            )
            text = read_last_words((await self._ask(speaker, asked, model, work)).run)
            work = replace(work, run_id=derive_next_id(work.run_id))
            is_over = step.end_word in text
            said.append({"agent": speaker, "text": text.replace(step.end_word, "").strip()})
            if (size := size + len(text)) > MOST_SAID:
                raise StepError(
                    f"more than {MOST_SAID:,} characters were said in this talk; have agents say less", may_repeat=False
                )
        return {"messages": said, "rounds": len(said), "is_finished": is_over, "text": said[-1]["text"]}

    def _check(self, names: Sequence[str]) -> None:
        """Raises `StepError` for an agent that is not there."""
        for name in names:
            if (why := find_unknown_agent(name, tuple(self._agents.registry.definitions))) is not None:
                raise StepError(why, may_repeat=False)

    async def _find_speaker(
        self, step: GroupChat, topic: str, names: Sequence[str], said: Sequence[Json], model: str | None, work: StepWork
    ) -> tuple[str, StepWork]:
        """Who speaks next, and the work that is left for it: a model that is asked takes a run."""
        last = said[-1]["agent"] if said else None
        following = names[(names.index(last) + 1) % len(names)] if last is not None else names[0]
        match step.speaker:
            case "random":
                return Random(f"{work.run_id}").choice(names), work  # the same after a crash
            case "mention":
                named = MENTION.findall(said[-1]["text"][:MENTION_CHARS]) if said else []
                return next((name for name in named if name in names and name != last), following), work
            case "auto" if len(names) > 1:
                chosen = await self._choose(f"Who speaks next?\n\n{topic}", names, model, work)
                return chosen or following, replace(work, run_id=derive_next_id(work.run_id))
            case _:
                return following, work

    async def _choose(self, task: str, names: Sequence[str], model: str | None, work: StepWork) -> str | None:
        """The agent that a model names, None if it names none of these."""
        known, engine = self._agents.registry.definitions, self._agents.engine
        listed = "\n".join([f"- {name}: {known[name].description or known[name].role}" for name in names])
        asked = (
            f"Choose who is best for this. Answer with one name of the list and nothing else.\n\n{listed}\n\n# The task\n{task}"
        )

        async def make_spec() -> RunSpec:
            return spec_for("responses", model=model or engine.model, input=(user(asked),), **_describe(work))

        handle = await self._run(work, make_spec)
        if not has_answered(handle.run):
            raise make_failure(handle.run)
        answer = handle.run.text
        places = {name: found.start() for name in names if (found := re.search(rf"(?<![\w-]){name}(?![\w-])", answer))}
        return min(places, key=lambda name: places[name]) if places else None

    async def _ask(self, agent: str, text: str, model: str | None, work: StepWork) -> Handle:
        """The run in which an agent is told this. Raises `RunFailed` if it gave no answer."""

        async def make_spec() -> RunSpec:
            engine = self._agents.engine
            spec = spec_for(
                "iterative",
                model=model or engine.model,
                input=(user(text),),
                context_tokens=engine.context_tokens,
                **_describe(work),
            )
            return await self._agents.select_agent(spec, agent, None, names_no_model=model is None)

        handle = await self._run(work, make_spec)
        if not has_answered(handle.run):
            raise make_failure(handle.run)
        return handle


def _describe(work: StepWork) -> Json:
    """The fields of an order that say whose it is."""
    order = work.order
    return {
        "id": work.run_id,
        "tenant": order.tenant,
        "caller": order.caller,
        "background": True,
        "metadata": work.metadata,
        "traceparent": order.traceparent,
    }


def _write(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
