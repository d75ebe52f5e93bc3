"""`mainspring policy`: what the settings would say to calls, before a model makes them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="policy", help="Shows the policies of the settings, and tries them out on calls.")

Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings. Default: mainspring.toml, if there is one.")]


@app.command("test")
def try_out(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Calls and the verdicts that they should get, as YAML.")],
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print every verdict as a line of JSON.")] = False,
) -> int:
    """Judges calls by the settings and compares the verdicts with those expected; 1 if one differs. Nothing is performed.

    The file holds a list `calls`, each with `tool`, `arguments`, `expect` (allow, ask, deny) and, if it matters, the `rule` that
    decides, the `caller` with its scopes, and the `effects` and `purposes` of a tool that is not built in.
    """
    from mainspring.app.settings import load
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.plain import say
    from mainspring.definitions.reader import read_file
    from mainspring.features.governance.policy_test import Table, Trial, rows

    table, trial = read_file(file, Table), Trial(load({}, file=config))

    async def tried() -> int:
        findings = [await trial.judge(case) for case in table.calls]
        if json:
            write_lines([{"fits": finding.fits, "judged": finding.judged} for finding in findings])
        else:
            write_table([("call", "", "made", "expected", "judged", "because"), *rows(findings)])
        wrong = len([finding for finding in findings if not finding.fits])
        say(f"{len(findings)} calls, {wrong} judged otherwise than expected")
        return 1 if wrong else 0

    return launch(tried())


@app.command()
def show(config: Config = None) -> int:
    """Lists the policies in force, in the order they are asked; the first that does not allow a call decides."""
    from mainspring.app.settings import load
    from mainspring.cli.json_lines import write_table
    from mainspring.cli.plain import say
    from mainspring.features.governance.policy_test import Trial

    trial = Trial(load({}, file=config))
    told = [(policy.name, (type(policy).__doc__ or "").split("\n\n")[0]) for policy in trial.policies()]
    write_table([("policy", "what it does"), *[(name, " ".join(does.split())) for name, does in told]])
    for doubt in trial.doubts():
        say(f"mind: {doubt}")
    return 0
