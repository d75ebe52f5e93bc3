"""A clock that jumps instead of waiting."""

import asyncio
import selectors


class JumpingLoop(asyncio.SelectorEventLoop):
    """Whenever nothing is left to do but to wait, the time has come. Without I/O, a test takes no time and always the same."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self._loop.now += timeout
        return super().select(0)


JUMPING: tuple[str, dict[str, object]] = ("asyncio", {"loop_factory": JumpingLoop})
