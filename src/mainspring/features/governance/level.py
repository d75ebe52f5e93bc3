"""How much may the agent do without a person? By what its tools do, not by what they are called.

| level | read | read and network | anything else |
|---|---|---|---|
| 0, read-only | allowed | denied, unless `network_reads` | denied |
| 1, supervised | allowed | allowed | asked about |
| 2, standard; 3, full | allowed | allowed | allowed |

A tool that declares `read` and `network` fetches; one that declares `network` alone acts on others. Supervised leaves a call
whose command is judged on its own to the policy `commands`: what such a call does is what its command does. No level lifts
another policy.
"""

from mainspring.core.autonomy import Autonomy, Level
from mainspring.core.items import Effect
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_effects, read_texts

_ORDER: tuple[Effect, ...] = ("read", "write", "execute", "network", "destructive")


class AutonomyLevel:
    """Allows, asks or denies by the level. `commands_judged` promises that the policy `commands` is asked as well.

    With `logs_only`, nobody is asked: the verdict says what a person would have been.
    """

    name = "autonomy_level"
    never_waits = True

    def __init__(
        self,
        level: Level,
        *,
        network_reads: bool = False,
        commands_judged: bool = False,
        logs_only: bool = False,
    ) -> None:
        self._level = Autonomy.parse(level)
        self._read_only: frozenset[Effect] = frozenset(("read", "network") if network_reads else ("read",))
        self._commands_judged, self._logs_only = commands_judged, logs_only

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool, level = find_served_tool(call, run), self._level
        if tool is None or level >= Autonomy.STANDARD:
            return Allow()
        try:
            arguments = parsed_arguments(call.item.arguments)
            effects, commands = read_effects(tool, arguments), read_texts(tool, arguments, "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        does = ", ".join([effect for effect in _ORDER if effect in effects])
        if level is Autonomy.SUPERVISED:
            if _is_reading(effects, frozenset(("read", "network"))) or (commands and self._commands_judged):
                return Allow()
            said = f"The autonomy level `supervised` asks before `{tool.name}`, which may {_verbs(does)}."
            return Allow(said) if self._logs_only else Ask(said)
        if _is_reading(effects, self._read_only):
            return Allow()
        return Deny(f"The autonomy level `read-only` does not allow `{tool.name}`, which may {_verbs(does)}; only read.")


def _is_reading(effects: frozenset[Effect], allowed: frozenset[Effect]) -> bool:
    return "read" in effects and effects <= allowed


def _verbs(effects: str) -> str:
    return effects.replace("network", "use the network").replace("destructive", "destroy")
