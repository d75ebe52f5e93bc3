"""The reply while it is being written, for whoever waits: whole sentences that nothing can take back any more.

What was done is known at the end only, and a reply that disagrees with it is not shown. But talk changes nothing: the answer to a
greeting, a question, or a list that was only looked at. It is told sentence by sentence, each held to what the whole will be held
to. The first that does not pass, and all that follows it, waits for the end.
"""

import re
from typing import Final

from mainspring.core.events import CallJudged, Event, ItemDone, TextDelta, ToolEnded, TurnStarted
from mainspring.core.items import FunctionCall
from mainspring.core.run import Run
from mainspring_tasks.answer_format import read_partial_reply
from mainspring_tasks.projection import CLAIM, TALK, hide_ids
from mainspring_tasks.words import describe_progress

_INTENT: Final = re.compile(r'"intent"\s*:\s*"(\w+)"')
_ENDS: Final = re.compile(r"[.!?:][\"')\]]{0,2}\s+|\n")
_WRITTEN_END: Final = re.compile(r"[.!?:][\\\"')\]]{0,4}\s|\\n")
# A sentence of the instructions that long, word for word, is no coincidence.
_TELLING_CHARS: Final = 25
_READS: Final = "list_tasks"


class ReplyListener:
    """Is told what is being done about a message, in a few words each time, and what of the reply may be read already."""

    def progress(self, told: str) -> None: ...

    def says(self, text: str) -> None: ...


class Speech:
    """Listens to a run for somebody who waits for its reply."""

    def __init__(self, listener: ReplyListener) -> None:
        self._listener = listener
        self._text = self._told = ""
        self._may_tell = True

    def add(self, event: Event, run: Run) -> None:
        match event:
            case TurnStarted():
                self._text = ""
            case ItemDone(FunctionCall(name=name)):
                self._listener.progress(describe_progress(name))
                self._may_tell = self._may_tell and name == _READS and not self._told
            case CallJudged(verdict=verdict):
                self._may_tell = self._may_tell and verdict == "allow"
            case ToolEnded(is_error=True):
                self._may_tell = False
            case TextDelta(delta=delta) if self._may_tell:
                self._text += delta
                # Only the end of a sentence brings more to tell, and it may have come in two pieces.
                if _WRITTEN_END.search(self._text, max(len(self._text) - len(delta) - 6, 0)):
                    self._tell(run)

    def _tell(self, run: Run) -> None:
        intent = _INTENT.search(self._text)
        if intent is None or intent[1] not in TALK:
            return
        reply = read_partial_reply(self._text) or ""
        whole = reply[: max([end.end() for end in _ENDS.finditer(reply)], default=0)]
        if not all(self._passes(sentence, run) for sentence in _ENDS.split(whole)):
            self._may_tell = False
            return
        told = hide_ids(whole, run)
        if told.startswith(self._told) and told != self._told:
            self._listener.says(told[len(self._told) :])
            self._told = told

    def _passes(self, sentence: str, run: Run) -> bool:
        words = sentence.strip(" -*#")
        recites = len(words) >= _TELLING_CHARS and words in (run.spec.instructions or "")
        return not recites and CLAIM.search(words) is None
