"""No isolation: programs run on the host, with a clean environment and limits of each process. Only for who asks by name."""

from mainspring.tools.sandbox.backend import Place, bare_launch
from mainspring.tools.sandbox.places import Python
from mainspring.tools.sandbox.processes import Launch
from mainspring.tools.sandbox.workspace_files import Owner


class Unsafe:
    name = "unsafe"
    version = ""
    is_namespaced = False
    isolates: tuple[str, ...] = ()

    def __init__(self, python: Python, owner: Owner) -> None:
        self.python = python
        self.owner = owner

    def launch(self, place: Place, joins: tuple[str, ...], *, network: bool) -> Launch:
        return bare_launch(self.python, self.owner, place, joins)

    def extra(self, *, network: bool) -> bytes:
        return b""
