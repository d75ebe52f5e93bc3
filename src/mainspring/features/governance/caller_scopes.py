"""May this caller use the tool?"""

from mainspring.core.items import ServerTool
from mainspring.core.run import Call, Run
from mainspring.features.governance.declared import other_names, served
from mainspring.ports import Allow, Deny, Verdict

EXECUTE = "tools:execute"


class CallerScopes:
    """Denies calls that run here unless the caller has the scope `tools:execute`, or `tools:execute:NAME` for this tool. For one
    of the operator's MCP servers, NAME is what the model calls it, or `server__tool`."""

    name = "caller_scopes"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        scopes, tool = run.spec.caller.scopes, served(call, run)
        if scopes is None or tool is None:
            return Allow()
        # A stranger's server may call itself and its tools anything.
        is_own = isinstance(tool.server, ServerTool) and not tool.server.at
        names = (tool.name, *(other_names(tool)[1:] if is_own else ()))
        if not {"*", EXECUTE, *[f"{EXECUTE}:{name}" for name in names]}.isdisjoint(scopes):
            return Allow()
        return Deny(f"The caller has neither the scope `{EXECUTE}` nor `{EXECUTE}:{tool.name}`; go on without `{tool.name}`.")
