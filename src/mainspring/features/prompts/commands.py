"""`mainspring prompts`: texts with variables that requests name, in versions."""

from math import inf
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from mainspring.cli import options
from mainspring.cli.database import open_database
from mainspring.cli.output import clean, say_more, write_lines, write_text
from mainspring.cli.tenant_choice import choose_tenants, write_of_tenants
from mainspring.core.items import Json
from mainspring.features.prompts.prompts import Prompt, PromptContent, StoredPrompts
from mainspring.features.prompts.routes import PromptObject, render_prompt

app = typer.Typer()

PromptId = Annotated[str, typer.Argument(metavar="PROMPT_ID", help="Prompt, as `list` names it.")]


class PromptOptions(Struct, frozen=True):
    """What the options say of a prompt."""

    instructions: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions; `{{ name }}` stands for a variable.")
    ] = None
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="First message, with variables as well.")] = None
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model where a request names none.")] = None
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")] = None

    def list_given(self) -> Json:
        return {name: value for name, value in asdict(self).items() if value is not None}


@app.command("list")
async def list_prompts(
    database: options.Database,
    tenant: options.Tenant = "",
    all_tenants: options.AllTenants = False,
    limit: options.Limit = 20,
    json: options.AsJson = False,
) -> None:
    """Lists the prompts, newest first, each in the version that is used."""
    async with open_database(database) as engine:
        tenants, prompts = await choose_tenants(engine.store, tenant, all_tenants=all_tenants), StoredPrompts(engine.store)
        pages = {each: await prompts.list(each, None, limit, newest_first=True, most_bytes=inf) for each in tenants}
    found = {each: [render_prompt(prompt) for prompt in page.prompts] for each, page in pages.items()}
    titles, none = (
        ("prompt", "version", "variables", "description"),
        "there are no prompts; make one with `mainspring prompts create`",
    )
    write_of_tenants(found, titles, _cells, as_json=json, named=all_tenants, none=none)
    if any(page.has_more for page in pages.values()) and not json:
        say_more(limit)


@app.command()
async def show(
    prompt_id: PromptId,
    database: options.Database,
    version: Annotated[str | None, typer.Option(metavar="N", help="Version. Default: the one that is used.")] = None,
    tenant: options.Tenant = "",
    json: options.AsJson = False,
) -> None:
    """Shows a prompt."""
    async with open_database(database) as engine:
        prompt = await StoredPrompts(engine.store).get(tenant, prompt_id, version)
    _write(prompt, as_json=json)


@app.command()
@options.expand_groups
async def create(
    database: options.Database,
    given: PromptOptions = PromptOptions(),  # noqa: B008 (frozen)
    tenant: options.Tenant = "",
    json: options.AsJson = False,
) -> None:
    """
    Creates a prompt.

    Examples:

        mainspring prompts create --instructions "You write for {{ reader }}." --prompt "Summarise: {{ text }}"
    """
    content = PromptContent(**given.list_given())
    async with open_database(database) as engine:
        made = await StoredPrompts(engine.store).create(tenant, content)
    _write(made, as_json=json)


@app.command()
@options.expand_groups
async def update(
    prompt_id: PromptId,
    database: options.Database,
    given: PromptOptions = PromptOptions(),  # noqa: B008 (frozen)
    tenant: options.Tenant = "",
    json: options.AsJson = False,
) -> None:
    """Adds a version to a prompt; what is not named stays as it is."""
    async with open_database(database) as engine:
        made = await StoredPrompts(engine.store).add_version(tenant, prompt_id, given.list_given())
    _write(made, as_json=json)


@app.command()
async def use(
    prompt_id: PromptId,
    version: Annotated[str, typer.Argument(metavar="N", help="The version, such as 2.")],
    database: options.Database,
    tenant: options.Tenant = "",
) -> None:
    """Has a version be used where a request names none."""
    async with open_database(database) as engine:
        await StoredPrompts(engine.store).choose(tenant, prompt_id, version)
    print(f"{prompt_id} is used in version {version}")


@app.command()
async def delete(prompt_id: PromptId, database: options.Database, tenant: options.Tenant = "") -> None:
    """Deletes a prompt with all its versions."""
    async with open_database(database) as engine:
        await StoredPrompts(engine.store).remove(tenant, prompt_id)
    print(f"{prompt_id} is deleted")


def _cells(prompt: PromptObject) -> tuple[str, ...]:
    return prompt.id, prompt.version, ", ".join(prompt.variables) or "-", clean(" ".join(prompt.description.split()))


def _write(prompt: Prompt, *, as_json: bool) -> None:
    shown = render_prompt(prompt)
    if as_json:
        write_lines([shown])
        return
    lines = [f"{shown.id}  version {shown.version}", *[f"> {name}" for name in shown.variables]]
    write_text("\n".join([*lines, *[text for text in (shown.instructions, shown.prompt) if text]]))
