"""`mainspring config`: the settings in force, what they do to a run, their reference page, and their JSON Schema."""

from typing import Annotated, Literal

import msgspec
import typer

from mainspring.cli.context import EngineOptions, build_engine, find_settings_type, load_settings
from mainspring.cli.options import Config
from mainspring.definitions.json_schema import build_schema
from mainspring.features.config.settings_page import render_page, render_settings

app = typer.Typer()


@app.command()
def show(config: Config = None) -> None:
    """Prints the settings in force as TOML: defaults, then the file, then the environment. Secrets are hidden."""
    print(render_settings(load_settings(find_settings_type(), config)), end="")


@app.command()
def explain(config: Config = None) -> None:
    """
    Prints what these settings do to a run, each list in its order: the steps that prepare an order, the policies that judge a
    call, and who is told when a run ends.
    """
    engine = build_engine(EngineOptions(kind="steps", config=config)).engine
    for title, names in (
        ("steps before a run starts", [step.name for step in engine.steps]),
        ("policies that judge a call", [policy.name for policy in engine.policies]),
        ("observers of a run's end", [observer.name for observer in engine.observers]),
    ):
        print(f"{title}:")
        for number, name in enumerate(names, 1):
            print(f"  {number:>2}  {name}")


@app.command()
def docs() -> None:
    """Prints the reference page of all settings, in Markdown."""
    print(render_page(find_settings_type()), end="")


@app.command()
def schema(
    kind: Annotated[Literal["settings"], typer.Argument(metavar="[settings]", help="The kind of file.")] = "settings",
) -> None:
    """Prints the JSON Schema of a file, for editors."""
    schema = build_schema(find_settings_type(), "Settings of Mainspring")
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
