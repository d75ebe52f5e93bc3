"""The exception tree: whose fault it is, what clients are told, and whether to try again."""

import inspect

import pytest

from mainspring.core import errors
from mainspring.core.errors import MainspringError

# class, its parent, code, HTTP status, retryable
TREE = [
    ("MainspringError", "Exception", "server_error", 500, False),
    ("CallerError", "MainspringError", "invalid_request_error", 400, False),
    ("InvalidRequest", "CallerError", "invalid_request_error", 400, False),
    ("InvalidInputs", "InvalidRequest", "invalid_inputs", 422, False),
    ("NotAdmitted", "InvalidRequest", "invalid_request_error", 400, False),
    ("PreviousNotFound", "InvalidRequest", "previous_response_not_found", 400, False),
    ("AlreadyInConversation", "InvalidRequest", "item_already_in_conversation", 400, False),
    ("ModelUnable", "InvalidRequest", "model_unable", 400, False),
    ("NotFound", "CallerError", "not_found", 404, False),
    ("MemoryLimit", "CallerError", "memory_limit", 429, True),
    ("HistoryTooLarge", "MemoryLimit", "history_too_large", 413, False),
    ("PeerError", "MainspringError", "server_error", 502, False),
    ("ProviderError", "PeerError", "server_error", 502, False),
    ("RateLimited", "ProviderError", "rate_limit_exceeded", 429, True),
    ("ContextOverflow", "ProviderError", "context_length_exceeded", 400, False),
    ("Refused", "ProviderError", "invalid_prompt", 400, False),
    ("ModelNotFound", "Refused", "model_not_found", 404, False),
    ("Misconfigured", "ProviderError", "provider_misconfigured", 502, False),
    ("Unauthorized", "ProviderError", "provider_unauthorized", 502, False),
    ("Unavailable", "ProviderError", "provider_unavailable", 503, True),
    ("AskPerson", "PeerError", "server_error", 502, False),
    ("BadOutput", "ProviderError", "provider_bad_output", 502, True),
    ("EmptyAnswer", "BadOutput", "provider_bad_output", 502, True),
    ("UnreadCall", "BadOutput", "provider_bad_output", 502, True),
    ("TooManyItems", "BadOutput", "provider_too_many_items", 502, False),
    ("ToolUnavailable", "PeerError", "tool_unavailable", 502, True),
    ("SignInNeeded", "ToolUnavailable", "sign_in_needed", 502, False),
    ("ToolTimeout", "ToolUnavailable", "tool_unavailable", 502, True),
    ("ToolRateLimited", "ToolUnavailable", "rate_limit_exceeded", 429, True),
    ("RunFailed", "PeerError", "run_failed", 502, False),
    ("DelegateToClient", "PeerError", "server_error", 502, False),
    ("OrderStepTimeout", "OurError", "order_step_timeout", 503, True),
    ("OurError", "MainspringError", "server_error", 500, False),
    ("StoreDoubt", "StoreError", "store_error", 500, False),
    ("Malformed", "OurError", "malformed_log", 500, False),
    ("StoreError", "OurError", "store_error", 500, False),
    ("FilesUnavailable", "OurError", "files_unavailable", 503, True),
    ("Superseded", "OurError", "superseded", 409, False),
    ("DocumentBusy", "OurError", "document_busy", 409, True),
    ("SandboxError", "OurError", "sandbox_error", 500, False),
    ("SandboxFull", "SandboxError", "container_limit", 429, True),
    ("ResumeLimit", "OurError", "resume_limit", 500, False),
    ("SandboxBusy", "SandboxError", "container_busy", 409, True),
    ("NoWorker", "OurError", "no_worker", 503, True),
    ("DispatcherUnavailable", "OurError", "dispatcher_unavailable", 503, True),
    ("Interrupted", "OurError", "interrupted", 503, True),
]


def exceptions() -> dict[str, type[MainspringError]]:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return {kind.__name__: kind for kind in classes if issubclass(kind, MainspringError)}


def test_tree_is_exactly_this() -> None:
    found = [(name, kind.__mro__[1].__name__, kind.code, kind.status, kind.retryable) for name, kind in exceptions().items()]
    assert sorted(found) == sorted(TREE)


@pytest.mark.parametrize("name", [row[0] for row in TREE])
def test_every_error_is_drawn_in_the_tree_on_top(name: str) -> None:
    assert errors.__doc__ is not None
    assert name in errors.__doc__


@pytest.mark.parametrize("kind", exceptions().values(), ids=lambda kind: str(kind.__name__))
def test_error_carries_its_message(kind: type[MainspringError]) -> None:
    error = kind("what happened")
    assert "what happened" in error.message
    assert str(error) == error.message


def test_error_may_name_the_field_at_fault_and_the_time_to_wait() -> None:
    assert errors.InvalidRequest("no").param is None
    assert errors.InvalidRequest("no", param="model").param == "model"
    assert errors.RateLimited("slow down", retry_after=2.5).retry_after == 2.5
    assert errors.RateLimited("slow down").retry_after is None
    assert errors.Unavailable("down", retry_after=2.5).retry_after == 2.5


def test_error_says_whether_the_backend_was_asked_at_all() -> None:
    assert errors.Unavailable("down").was_asked
    assert not errors.Unavailable("left alone", was_asked=False).was_asked
