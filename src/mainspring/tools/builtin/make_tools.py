"""Makes the built-in tools. Brings along what only they need, so it is imported when one is asked for."""

from collections.abc import Awaitable, Callable

from mainspring.ports import FileStorage, Sandbox
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.container_tools import CodeInterpreter, Shell
from mainspring.tools.builtin.containers import Containers
from mainspring.tools.builtin.file_ops import FileOps
from mainspring.tools.builtin.shared_containers import SharedContainers
from mainspring.tools.builtin.web_fetch import WebFetch
from mainspring.tools.contract import Tool


def make_containers(sandbox: Sandbox, files: FileStorage | None) -> Containers:
    """With `files`, containers are kept there and in a store."""
    return Containers(sandbox) if files is None else SharedContainers(sandbox, files)


def make_tools(
    containers: Containers,
    guard: AddressGuard,
    path_flaw: Callable[[str], str | None] | None,
    url_flaw: Callable[[str], Awaitable[str | None]] | None,
) -> dict[str, Tool]:
    """The tools by name, but for the browser."""
    return {
        "shell": Shell(containers),
        "code_interpreter": CodeInterpreter(containers),
        "file_ops": FileOps(flaw=path_flaw),
        "web_fetch": WebFetch(guard, flaw=url_flaw),
    }
