"""What governance costs: CPU per judged call with every policy and a budget of two layers on, beside the same call without.

    python bench/governance.py [--calls N]

Calls go through the real gate; the difference is what governance adds, and should stay under 150 us. A shell line that takes
the parser costs a process when it is first seen: that is shown apart. Names of hosts are looked up in memory. CPU time of this
process, best of several interleaved rounds.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from msgspec.structs import replace

from mainspring.core.events import Recorded, RunStarted
from mainspring.core.history import History
from mainspring.core.items import FunctionCall, ToolDefinition, ToolKind, encode, user
from mainspring.core.run import Call, Run, open_run
from mainspring.core.spec import Caller, Price, spec_for
from mainspring.engine.gate import Gate
from mainspring.engine.guard import Guard
from mainspring.engine.policy_order import PolicySlots, order_policies
from mainspring.features.budgets.budget import LEVELS, AutonomyLimits, Network
from mainspring.features.budgets.budget_policy import BudgetPolicy, apply_budget
from mainspring.features.governance.limit_policies import LevelPolicy, RatePolicy
from mainspring.features.governance.rule_policy import RulePolicy, Rules
from mainspring.features.governance.scope_policies import CommandPolicy, DomainPolicy, PathPolicy
from mainspring.features.governance.tool_policies import ToolStatus, fill_standard_slots
from mainspring.features.skills.skill_scope import SkillScopePolicy
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.shell_reader import ShellReader

LIMIT = 150.0
ROUNDS = 5
TOOLS = (
    ToolDefinition("notes", kind="builtin", effects=("read",)),
    ToolDefinition("shell", kind="builtin", effects=("execute",), purposes={"command": "command"}),
    ToolDefinition("file_ops", kind="builtin", operations={"write": ("read",)}, purposes={"path": "path"}),
    ToolDefinition("web_fetch", kind="builtin", effects=("read", "network"), purposes={"url": "url"}),
)
CALLS = {
    "no arguments": ("notes", {}),
    "plain command": ("shell", {"command": "git log --oneline -5"}),
    "parsed command, known": ("shell", {"command": "cat notes.txt | grep -c 'a b' && ls *.py > out.txt"}),
    "path": ("file_ops", {"operation": "write", "path": "src/deep/main.py", "content": "x"}),
    "path, 100 KB content": ("file_ops", {"operation": "write", "path": "src/deep/main.py", "content": "x" * 100_000}),
    "URL": ("web_fetch", {"url": "https://docs.example/page"}),
}


class Hands:
    kind: ToolKind = "builtin"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        raise NotImplementedError


async def lookup(host: str, port: int) -> Sequence[str]:
    return ["93.184.216.34"]


def every_policy(root: str) -> PolicySlots:
    rules = {"*": "allow", "file_ops:delete": "deny", "secret_*": "deny", "shell": "allow", "file_*:chmod": "ask"}
    Path(root, "src", "deep").mkdir(parents=True)
    return {
        "rules": (RulePolicy(Rules.of(rules)),),  # type: ignore[arg-type]
        "status": (ToolStatus(lambda name: "active"),),
        "skill scope": (SkillScopePolicy(dict),),
        "rate": (RatePolicy(10**9, 10**9),),
        "level": (LevelPolicy("supervised", commands_judged=True),),
        "commands": (CommandPolicy(("ls", "cat", "grep", "git"), ("rm", "curl", "git push")),),
        "paths": (PathPolicy([root], denied=[".env", "**/*.pem", "secrets/**"]),),
        "domains": (DomainPolicy(AddressGuard(lookup=lookup).check, denied=["evil.example"]),),
        "budget": (BudgetPolicy(),),
    }


def a_run() -> Run:
    spec = spec_for("responses", id="r", model="m", input=(user("go"),), tools=TOOLS, caller=Caller("ada", ("tools:execute",)))
    network = Network(enabled=True, allowed_domains=("docs.example",))
    limits = AutonomyLimits(max_tokens=10**9, max_cost=100.0, max_lines_changed=10**9)
    budget = replace(LEVELS[2], network=network, limits=limits, prices={"*": Price(1, 5)}, overlays=(LEVELS[3],))
    return open_run(Recorded(0, 0.0, RunStarted(apply_budget(spec, budget))), History())


async def cost(gate: Gate, call: Call, run: Run, calls: int) -> float:
    """CPU microseconds per judgement."""
    began = time.process_time()
    for _ in range(calls):
        judged = await gate.judge(call, run)
        assert judged.verdict == "allow", judged
    return (time.process_time() - began) / calls * 1e6


async def parser_cost(lines: int) -> tuple[float, float]:
    """Milliseconds per line that the parser reads: as time, and as CPU of the parser's process."""
    reader = ShellReader()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for number in range(lines):
        assert (await reader.read(f"cat {number}.txt | grep -c 'a b'")).commands
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (time.perf_counter() - began) / lines * 1e3, cpu / lines * 1e3


async def main(calls: int) -> None:
    run, guard, hands = a_run(), Guard(), [Hands()]
    with tempfile.TemporaryDirectory() as root:
        bare = Gate(order_policies(fill_standard_slots(hands)), guard)
        governed = Gate(order_policies(fill_standard_slots(hands), every_policy(root)), guard)
        print(f"{'CPU us per call':24} {'without':>8} {'with all':>9} {'added':>7}   limit {LIMIT:g}")
        for name, (tool, arguments) in CALLS.items():
            call = Call(FunctionCall("call_1", tool, encode(arguments).decode()), 0)
            costs = [(await cost(bare, call, run, calls), await cost(governed, call, run, calls)) for _ in range(ROUNDS)]
            without, all_on = min(costs)[0], min(both for _, both in costs)
            print(
                f"{name:24} {without:8.1f} {all_on:9.1f} {all_on - without:7.1f}   {'ok' if all_on - without < LIMIT else 'OVER'}"
            )
    seconds, cpu = await parser_cost(100)
    print(f"\nparser, per new line: {seconds:.1f} ms, of which {cpu:.1f} ms CPU in its process")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    asyncio.run(main(parse_options(parser).calls))
