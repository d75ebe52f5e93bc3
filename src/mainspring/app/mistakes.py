"""What is wrong with the values of settings that are right in form: all of it at once, each by file and line.

Building an engine stops at the first mistake. Only then are all values tried out here, so that a start without mistakes costs
nothing.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mainspring.app.build import check_working_dir
from mainspring.app.settings import Settings, build_part, list_part_tables, tell_mistakes
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Place
from mainspring.features.budgets.plan import build_plan
from mainspring.features.governance.rule_policy import Rules
from mainspring.features.memory.memory import build_memory
from mainspring.features.models.backends import list_configured, make_provider
from mainspring.storage.choose_files import choose_files
from mainspring.storage.location import parse_location
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.functions import load_functions
from mainspring.tools.registry import Registry
from mainspring.tools.scope import normalize_domain


@contextmanager
def explain_refusals(settings: Settings, file: Path | None, given: Container[object] = ()) -> Iterator[None]:
    """Has a refusal of these settings tell everything that is wrong with them. `file` is where they are from, but for those that
    were `given` as options: what is wrong with one of these is told alone."""
    try:
        yield
    except InvalidRequest as error:
        found = dict([(error.message, (error.param,))] if error.param else []) | dict(find_mistakes(settings))
        if error.message not in found or found[error.message][0] in given:
            raise
        raise InvalidRequest(tell_mistakes(found.items(), settings, file), param=error.param) from error


def find_mistakes(settings: Settings) -> Iterator[tuple[str, Place]]:
    """What is wrong with each value, and where it is."""
    for place, check in _list_checks(settings):
        try:
            check()
        except (InvalidRequest, ValueError) as error:
            yield str(error), place


def _list_checks(settings: Settings) -> Iterator[tuple[Place, Callable[[], object]]]:
    yield ("database",), partial(parse_location, settings.database)
    if settings.files is not None:
        yield ("files",), partial(choose_files, settings.files)
    for index, reference in enumerate(settings.tools):
        yield ("tools", index), partial(load_functions, reference)
    for index, name in enumerate(settings.builtins):
        yield ("builtins", index), partial(BuiltinTools, (name,))
    yield ("working_dir",), partial(check_working_dir, settings)
    if settings.tool_definitions is not None:
        yield ("tool_definitions",), partial(Registry().load_definitions, Path(settings.tool_definitions))
    for pattern, choice in settings.governance.rules.items():
        yield ("governance", "rules", pattern), partial(Rules.of, {pattern: choice})
    if (domains := settings.governance.domains) is not None:
        for key, entries in (("allowed", domains.allowed), ("denied", domains.denied)):
            for index, entry in enumerate(entries):
                yield ("governance", "domains", key, index), partial(normalize_domain, entry)
    for name, found in list_configured(settings.providers).items():
        yield ("providers", name), partial(make_provider, name, found.backend)
    if settings.memory.enabled:
        yield ("memory",), partial(build_memory, None, settings.memory)
    yield ("budget",), partial(build_plan, settings.budget)
    for part, table in list_part_tables(settings):
        yield (part.table_name,), partial(build_part, part, table)
