"""`mainspring config`: the settings in force, what they do to a run, their reference page, and the JSON Schemas of all files."""

from pkgutil import resolve_name
from typing import Annotated

import msgspec
import typer

from mainspring.cli.context import PRODUCT, EngineOptions, build_engine, find_settings_type, load_settings
from mainspring.cli.options import AsJson, Config
from mainspring.cli.output import write_lines
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parsed_file import hint
from mainspring.features.config.settings_page import render_page, render_settings

app = typer.Typer()


@app.command()
def show(config: Config = None) -> None:
    """Prints the settings in force as TOML: defaults, then the file, then the environment. Secrets are hidden."""
    print(render_settings(load_settings(find_settings_type(), config)), end="")


@app.command()
def explain(config: Config = None, json: AsJson = False) -> None:
    """
    Prints what these settings do to a run, each list in its order: the steps that prepare an order, the policies that judge a
    call, and who is told when a run ends.
    """
    engine = build_engine(EngineOptions(kind="steps", config=config)).engine
    found = {
        "steps": ("steps before a run starts", [step.name for step in engine.steps]),
        "policies": ("policies that judge a call", [policy.name for policy in engine.policies]),
        "observers": ("observers of a run's end", [observer.name for observer in engine.observers]),
    }
    if json:
        write_lines([{kind: names for kind, (_, names) in found.items()}])
        return
    for title, names in found.values():
        print(f"{title}:")
        for number, name in enumerate(names, 1):
            print(f"  {number:>2}  {name}")


@app.command()
def docs() -> None:
    """Prints the reference page of all settings, in Markdown."""
    print(render_page(find_settings_type()), end="")


@app.command()
def schema(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="The kind of file: settings, agent, workflow, skill or tool.")
    ] = "settings",
) -> None:
    """Prints the JSON Schema of a file, for editors."""
    files = {file.name: file.schema for part in PRODUCT.get().parts for file in part.files}
    if kind == "settings":
        schema = build_schema(find_settings_type(), "Settings of Mainspring")
    elif kind in files:
        schema = resolve_name(files[kind])()
    else:
        raise InvalidRequest(f"there is no kind of file `{kind}`; {hint(kind, ('settings', *files))}", param="kind")
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
