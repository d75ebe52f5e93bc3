"""How long calls wait for a person."""

from msgspec.structs import replace

from mainspring.core.spec import RunSpec
from mainspring.ports import OrderContext, OrderStep


class ApprovalDeadlineStep(OrderStep):
    """Bounds how long the calls of a run wait for a person, by the operator's limit or the order's own if that is shorter."""

    name = "approval deadline"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        seconds = min(order.limits.approval_seconds or self._seconds, self._seconds)
        return replace(order, limits=replace(order.limits, approval_seconds=seconds))
