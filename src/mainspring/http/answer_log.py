"""The server-sent events of an API whose answers are one message."""

from abc import abstractmethod

from mainspring.core.events import (
    Delta,
    ItemDone,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from mainspring.core.items import Item, Message
from mainspring.core.response import Response, response
from mainspring.core.run import Run
from mainspring.http.faults import Fault
from mainspring.http.frame_log import D, FrameLog
from mainspring.http.plain_answers import list_messages
from mainspring.http.run_replies import find_failure


class AnswerLog(FrameLog[D]):
    """The events of an API whose answers are one message: words and thoughts as they come, or, if it `_waits` with its words,
    those at the end."""

    def reset(self) -> None:
        super().reset()
        self._waits = False

    def add(self, record: Recorded, run: Run) -> None:
        match record.event:
            case TextDelta() | RefusalDelta() | ReasoningDelta() as event:
                self._tell_delta(event)
            case ItemDone(item) if not (self._waits and isinstance(item, Message)):
                self._finish(item)
            case RunStarted():
                self._begin(run)
            case TurnStarted():
                self._tell_server_calls(run)
            case RunEnded():
                self._end(run)
            case _:
                pass
        self.ends.append(self._dropped + len(self.frames))

    def add_delta(self, record: Recorded) -> bool:
        self._tell_delta(record.event)  # type: ignore[arg-type]
        self.ends.append(self._dropped + len(self.frames))
        return True

    @abstractmethod
    def _begin(self, run: Run) -> None:
        """Begins the message."""

    @abstractmethod
    def _tell_delta(self, event: Delta) -> None:
        """Tells a piece of what is said or thought."""

    @abstractmethod
    def _finish(self, item: Item) -> None:
        """Tells what of an item came without deltas."""

    @abstractmethod
    def _tell_server_calls(self, run: Run) -> None:
        """Tells what the server's tools have done since this was last told, if the client wants to know."""

    @abstractmethod
    def _fail(self, failure: Fault) -> None:
        """Says why there is no message."""

    @abstractmethod
    def _complete(self, told: Response) -> None:
        """Ends the message, all words of which have been told."""

    def _end(self, run: Run) -> None:
        if (failure := find_failure(run)) is not None:
            self._fail(failure)
            return
        self._tell_server_calls(run)
        told = response(run)
        for message in list_messages(told) if self._waits else ():
            self._finish(message)
        self._complete(told)
