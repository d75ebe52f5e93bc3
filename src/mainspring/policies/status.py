"""Is the tool still in use?"""

from collections.abc import Callable

from mainspring.errors import NotFound
from mainspring.loop.run import Call, Run
from mainspring.policies.declared import served
from mainspring.ports import Allow, Deny, Verdict


class ToolStatus:
    """Denies tools that the registry has blocked, and takes note of deprecated ones. `status` is the registry's; it raises
    `NotFound` for what it does not keep."""

    name = "tool_status"
    never_waits = True

    def __init__(self, status: Callable[[str], str]) -> None:
        self._status = status

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := served(call, run)) is None:
            return Allow()
        try:
            status = self._status(tool.name)
        except NotFound:
            return Allow()
        if status in ("active", "deprecated"):
            return Allow() if status == "active" else Allow(f"The tool `{tool.name}` is deprecated; look for another one.")
        return Deny(f"The registry has the tool `{tool.name}` as {status}: it is not to be used. Use another one.")
