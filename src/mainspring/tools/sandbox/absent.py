"""The sandbox where none holds: it can be asked like any other, and refuses everything with the reason."""

from contextlib import AbstractAsyncContextManager

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.sandbox_port import DEFAULT, Lease, SandboxHealth, SandboxSpec


class AbsentSandbox:
    """See `port.Sandbox`. `reason` is what `probe.open_sandbox` raised."""

    def __init__(self, reason: SandboxError) -> None:
        self.reason = reason

    def acquire(self, spec: SandboxSpec = DEFAULT) -> AbstractAsyncContextManager[Lease]:
        """Raises `SandboxError`, always."""
        raise SandboxError(self.reason.message)

    async def health(self) -> SandboxHealth:
        return SandboxHealth(
            backend="none",
            version="",
            totals="none",
            isolates=(),
            languages={},
            uid=-1,
            is_ok=False,
            refused=(self.reason.message,),
        )
