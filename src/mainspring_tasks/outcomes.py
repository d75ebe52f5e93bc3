"""How a decision came out: one of thirteen categories, and none besides."""

from collections.abc import Collection
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """Listed by precedence: where several apply, the first one counts."""

    OUT_OF_SCOPE = "REFUSAL:OUT_OF_SCOPE"
    MISSING_PERMISSION = "REFUSAL:MISSING_PERMISSION"
    RATE_LIMITED = "REFUSAL:RATE_LIMITED"
    UNCLEAR_INTENT = "AMBIGUITY:UNCLEAR_INTENT"
    MULTIPLE_MATCHES = "AMBIGUITY:MULTIPLE_MATCHES"
    MISSING_CONTEXT = "AMBIGUITY:MISSING_CONTEXT"
    USER_INPUT = "ERROR:USER_INPUT"
    INTENT_CLASSIFICATION = "ERROR:INTENT_CLASSIFICATION"
    RESPONSE_GENERATION = "ERROR:RESPONSE_GENERATION"
    TOOL_INVOCATION = "ERROR:TOOL_INVOCATION"
    CLARIFICATION_ANSWERED = "SUCCESS:CLARIFICATION_ANSWERED"
    TASK_COMPLETED = "SUCCESS:TASK_COMPLETED"
    RESPONSE_GIVEN = "SUCCESS:RESPONSE_GIVEN"


_PRECEDENCE: Final = tuple(Outcome)


def choose_outcome(found: Collection[Outcome]) -> Outcome:
    """The one that counts; `RESPONSE_GIVEN` if none applies."""
    return next((outcome for outcome in _PRECEDENCE if outcome in found), Outcome.RESPONSE_GIVEN)


def parse_outcome(text: str) -> Outcome:
    """The category of this name, letter by letter. Raises `ValueError` that lists all of them."""
    try:
        return Outcome(text)
    except ValueError:
        raise ValueError(f"outcome_category must be one of {', '.join(_PRECEDENCE)}, not `{text:.80}`") from None
