"""What happens before a turn whose request is too long: the model sums up what is old, or the run fails and says why."""

from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.core.actions import Compact, Finish
from mainspring.core.allowance import estimate_input, room
from mainspring.core.compaction import SUMMARIZE, is_compaction
from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.items import Item, Message, user
from mainspring.core.model_request import ModelRequest, request_for
from mainspring.core.run import OVERFLOW, Run
from mainspring.core.spec import ToolChoice
from mainspring.core.tokens import estimate, tokens_of
from mainspring.core.truncation import groups


def before_turn(run: Run) -> Compact | Finish | None:
    """What must happen before the model is asked for its next turn, if anything."""
    if exceeds_allowance(run):
        return Finish("incomplete", run.closing or Reason.BUDGET, None if run.turns else _too_dear(run))
    window = run.spec.window
    if run.spec.goal == "compaction":
        is_done = any(is_compaction(entry.item) for entry in run.transcript[run.base :])
        return Finish("completed", Reason.FINAL_ANSWER) if is_done else Compact(0)
    if window.compact_threshold is None and window.context_tokens is None:
        return None
    request = request_for(run)
    size = estimate(request.items, request.instructions, request.tools)
    threshold = window.compact_threshold if run.sums_up else None
    if threshold is not None and size > threshold and not _is_fresh(run):
        keeps = len(latest(request.items, threshold // 2))
        if tokens_of(_replaceable(request.items, keeps)) > threshold // 4:
            return Compact(keeps)
    if window.context_tokens is not None and size > window.context_tokens and window.truncation == "disabled":
        sizes = f"the request has about {size} tokens and the model takes {window.context_tokens}"
        advice = 'shorten or compact the conversation, or send `truncation: "auto"`'
        return Finish("failed", Reason.PROVIDER_ERROR, ErrorInfo(OVERFLOW, f"{sizes}; {advice}"))
    return None


def exceeds_allowance(run: Run) -> bool:
    """Whether there is not enough left to ask the model once more."""
    if run.spec.allowance is None:
        return False
    left = room(run, request_for(run).items)
    return left is not None and left < 1


def _too_dear(run: Run) -> ErrorInfo:
    asked = estimate_input(run, request_for(run).items)
    advice = "which is more than the budget of this run leaves; send less, or raise the budget"
    return ErrorInfo("budget_exceeded", f"the request has about {asked} tokens, {advice}")


def summary_request(run: Run) -> ModelRequest:
    """What the model is asked to sum up: all that it would see in its next turn. The tools stay declared, since what was said
    with them is unreadable to some backends otherwise, and caches keep what they have."""
    request = request_for(run)
    items, choice = (*request.items, user(SUMMARIZE)), ToolChoice("none")
    return replace(request, items=items, tool_choice=choice, text=None, top_logprobs=None, stop=())


def latest(items: Sequence[Item], room: int) -> Sequence[Item]:
    """The end that is worth keeping word for word: what was said to the model last, or its last calls if they fit in `room`."""
    start = len(items)
    while start and isinstance(said := items[start - 1], Message) and said.role != "assistant":
        start -= 1
    if start < len(items):
        return items[start:]
    *_, last = [(), *groups(items)]
    return last if tokens_of(last) <= room else ()


def _replaceable(items: Sequence[Item], keeps: int) -> list[Item]:
    older = items[: len(items) - keeps]
    return [item for item in older if not (isinstance(item, Message) and item.role in ("system", "developer"))]


def _is_fresh(run: Run) -> bool:
    """Whether the model has not spoken since the last compaction: another one would win nothing."""
    last = next((entry.item for entry in reversed(run.transcript) if not entry.hidden), None)
    return last is not None and is_compaction(last)
