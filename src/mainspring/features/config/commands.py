"""`mainspring config`: the settings in force, their reference page, and their JSON Schema."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(name="config", help="Shows the settings in force, and what can be set.")


Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings. Default: mainspring.toml, if there is one.")]


@app.command()
def show(config: Config = None) -> int:
    """Prints the settings in force as TOML: defaults, then the file, then the environment. Secrets are hidden."""
    from mainspring.app.settings import load
    from mainspring.features.config.settings_page import render_settings

    print(render_settings(load({}, file=config)), end="")
    return 0


@app.command()
def docs() -> int:
    """Prints the reference page of all settings, in Markdown."""
    from mainspring.app.settings import Settings
    from mainspring.features.config.settings_page import render_page

    print(render_page(Settings), end="")
    return 0


@app.command()
def schema(
    kind: Annotated[Literal["settings"], typer.Argument(metavar="[settings]", help="The kind of file.")] = "settings",
) -> int:
    """Prints the JSON Schema of a file, for editors."""
    import msgspec

    from mainspring.app.settings import Settings
    from mainspring.definitions.json_schema import build_schema

    schema = build_schema(Settings, "Settings of Mainspring")
    print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return 0
