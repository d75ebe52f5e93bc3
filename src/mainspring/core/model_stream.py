"""How the events of a turn get from a provider to whoever reads them: one by one, or past all that is between the two.

A stream is an async generator, and what reads it may send a `TakeEvent` into it (`asend`). A provider that gets one may call it
with events in the moment they arrive, from wherever that is, in place of yielding them, until it returns False: that event is
yielded, too. What wraps a provider passes on what it is sent if it does not look at events behind the first. One that does not,
and one that knows nothing of this, yields every event.
"""

from collections.abc import AsyncGenerator, Callable

from mainspring.core.events import ModelEvent

TakeEvent = Callable[[ModelEvent], bool]
"""Takes an event and returns True, or has it yielded. It does not raise."""
ModelStream = AsyncGenerator[ModelEvent, TakeEvent | None]
