"""May this caller use the tool?"""

from mainspring.loop.run import Call, Run
from mainspring.policies.declared import served
from mainspring.ports import Allow, Deny, Verdict

EXECUTE = "tools:execute"


class CallerScopes:
    """Denies calls that run here unless the caller has the scope `tools:execute`, or `tools:execute:NAME` for this tool."""

    name = "caller_scopes"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        scopes, tool = run.spec.caller.scopes, served(call, run)
        if scopes is None or tool is None or not {"*", EXECUTE, f"{EXECUTE}:{tool.name}"}.isdisjoint(scopes):
            return Allow()
        return Deny(f"The caller has neither the scope `{EXECUTE}` nor `{EXECUTE}:{tool.name}`; go on without `{tool.name}`.")
