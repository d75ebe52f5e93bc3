"""Asks the user to sign in before a call that needs it: a question like any other that waits for a person, with a link."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mainspring.core.items import ServerTool
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Verdict
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import is_sign_in

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import SignIns

SIGN_IN_POLICY: Final = "sign_in"
SIGN_IN_PATH: Final = "/sign-in/mcp"


class SignInPolicy:
    """Asks about calls of servers that each user signs in to. It comes behind all that may deny, or ask for something else."""

    name = SIGN_IN_POLICY

    def __init__(self, servers: Sequence[ServerSpec], sign_ins: "SignIns") -> None:
        self._servers = {spec.label: spec for spec in servers if spec.is_personal}
        self._sign_ins = sign_ins

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        server = None if tool is None or tool.kind != "mcp" else tool.server
        if not isinstance(server, ServerTool) or server.at or server.label not in self._servers:
            return Allow()
        spec = self._servers[server.label]
        account = self._sign_ins.find_account(spec, run.spec.tenant, run.spec.user)
        wanted = "" if is_sign_in(spec, server.name) else server.name
        if await self._sign_ins.is_signed_in(spec, account, wanted):
            return Allow()
        path = f"{SIGN_IN_PATH}/{await self._sign_ins.make_link(account)}"
        if self._sign_ins.public_url:
            return Ask(f"Sign in to `{spec.label}`: {self._sign_ins.public_url}{path}")
        return Ask(f"Sign in to `{spec.label}`: open {path} of this server, or run `mainspring mcp sign-in {spec.label}`")
