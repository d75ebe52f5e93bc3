"""Is the tool still in use?"""

from collections.abc import Callable

from mainspring.core.errors import NotFound
from mainspring.core.run import Call, Run
from mainspring.features.governance.declared import other_names, served
from mainspring.ports import Allow, Deny, Verdict


class ToolStatus:
    """Denies tools that the registry has blocked, by whichever of their names, and takes note of deprecated ones. `status` and
    `reason` are the registry's; `status` raises `NotFound` for what it does not keep."""

    name = "tool_status"
    never_waits = True

    def __init__(self, status: Callable[[str], str], reason: Callable[[str], str] = lambda name: "") -> None:
        self._status, self._reason = status, reason

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := served(call, run)) is None:
            return Allow()
        note = Allow()
        for name in dict.fromkeys((tool.name, *other_names(tool))):
            try:
                status = self._status(name)
            except NotFound:
                continue
            why = f" ({reason})" if (reason := self._reason(name)) else ""
            if status not in ("active", "deprecated"):
                return Deny(f"The registry has the tool `{name}` as {status}{why}: it is not to be used. Use another one.")
            if status == "deprecated":
                note = Allow(f"The tool `{name}` is deprecated{why}; look for another one.")
        return note
