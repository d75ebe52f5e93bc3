"""`mainspring policy`: what the settings would say to calls, before a model makes them."""

from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.context import EngineOptions, build_engine
from mainspring.cli.exit import FAILURE
from mainspring.cli.options import AsJson, Config
from mainspring.cli.output import say, write_lines, write_table
from mainspring.definitions.reader import read_file
from mainspring.features.governance.policy_test import PolicyTests, judge_case, list_rows

app = typer.Typer()


@app.command("test")
async def judge_calls(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Calls and their expected verdicts, as YAML.")],
    config: Config = None,
    json: AsJson = False,
) -> int:
    """Judges calls by the settings and compares the verdicts with the expected ones. Performs nothing.

    The exit code is 1 if a verdict differs. The file holds a list `calls`, each with `tool`, `arguments`, `expect` (allow, ask,
    deny) and, if it matters, the `rule` that decides, the `caller` with its scopes, and the `effects` and `purposes` of a tool
    that is not built in.
    """
    table, options = read_file(file, PolicyTests), EngineOptions(kind="trial", config=config)
    findings = [await judge_case(build_engine(options).engine, case) for case in table.calls]
    if json:
        write_lines([{"fits": finding.fits, "judged": finding.judged} for finding in findings])
    else:
        write_table([("call", "", "made", "expected", "judged", "because"), *list_rows(findings)])
    wrong = len([finding for finding in findings if not finding.fits])
    say(f"{len(findings)} calls, {wrong} judged otherwise than expected")
    return FAILURE if wrong else 0


@app.command()
def show(config: Config = None, json: AsJson = False) -> None:
    """Lists the policies in force, in the order they are asked; the first that does not allow a call decides."""
    trial = build_engine(EngineOptions(kind="trial", config=config))
    told = {policy.name: (type(policy).__doc__ or "").split("\n\n")[0] for policy in trial.engine.policies}
    rows = [(name, " ".join(does.split())) for name, does in told.items()]
    if json:
        write_lines([{"policy": name, "does": does} for name, does in rows])
    else:
        write_table([("policy", "what it does"), *rows])
    for doubt in trial.find_doubts():
        say(f"mind: {doubt}")
