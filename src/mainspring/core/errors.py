"""Every exception Mainspring raises on purpose.

    MainspringError
    ├── CallerError                 the request is at fault; repeating it will not help
    │   ├── InvalidRequest          400
    │   │   ├── ModelUnable         the model is known to be unable to do what is needed
    │   │   ├── InvalidInputs       422, an agent's inputs do not fit its definition
    │   │   ├── NotAdmitted         no budget for a run of an application
    │   │   ├── PreviousNotFound    the run to continue is unknown
    │   │   └── AlreadyInConversation   an item is to be added twice
    │   ├── MemoryLimit             429, requests and runs under way hold all the memory that they may
    │   │   └── HistoryTooLarge     413, what a run continues is more than that
    │   └── NotFound                404
    ├── PeerError                   something we called is at fault
    │   ├── ProviderError           a model backend; may carry `retry_after`
    │   │   ├── RateLimited         429
    │   │   ├── ContextOverflow     400, the transcript does not fit the model
    │   │   ├── Refused             400, the backend rejected the request as such
    │   │   │   └── ModelNotFound   404, there is no such model
    │   │   ├── Misconfigured       what answers at the backend's address is no such backend
    │   │   ├── Unauthorized        the backend did not accept our key
    │   │   ├── Unavailable         no connection, time-out, 5xx
    │   │   └── BadOutput           the backend answered something we cannot read
    │   │       ├── EmptyAnswer     a model has said nothing and called nothing
    │   │       ├── UnreadCall      a backend could not read the call of its model
    │   │       └── TooManyItems    its turn has more calls and other items than one may have
    │   ├── ToolUnavailable         a tool's server cannot be reached, does not answer, or refuses
    │   │   ├── SignInNeeded        a person must sign in to it first
    │   │   ├── ToolTimeout         it did not answer in time
    │   │   └── ToolRateLimited     it was called as often as our settings allow
    │   ├── RunFailed               a run whose text was being read ended `failed`
    │   ├── DelegateToClient        an executor hands its call to the client
    │   └── AskPerson               an executor needs an answer of a person before its call can go on
    └── OurError                    Mainspring or its machine is at fault
        ├── Malformed               an event that cannot follow the log it is meant for
        ├── StoreError              the store cannot be read or written
        │   └── StoreDoubt          nor can it be told whether something was written
        ├── FilesUnavailable        503, the storage of files cannot be used
        ├── Superseded              another driver has taken this run over
        ├── DocumentBusy            409, another process works on it
        ├── SandboxError            no sandbox holds here, or one could not be started
        │   ├── SandboxFull         429, all there is room for are in use
        │   └── SandboxBusy         409, another process works in it
        ├── OrderStepTimeout        what prepares an order did not end in time
        ├── ResumeLimit             a run whose process has died too often
        ├── NoWorker                503, nobody has taken up a run that a gateway has accepted
        ├── DispatcherUnavailable   503, what brings runs to workers cannot be reached
        └── Interrupted             the engine stopped before the run ended; it can be resumed

Each class carries the `code` clients see and the HTTP `status` it becomes. `retryable` says whether the same call may work later.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.core.items import Adaptation, Usage


class MainspringError(Exception):
    code = "server_error"
    status = 500
    retryable = False
    retry_after: float | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class CallerError(MainspringError):
    code = "invalid_request_error"
    status = 400


class InvalidRequest(CallerError):
    """The request cannot be carried out as it is; `param` names the field, `code` the kind of mistake if that has a name."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        if code is not None:
            self.code = code


class ModelUnable(InvalidRequest):
    """The model is known to be unable to do what the order needs."""

    code = "model_unable"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class InvalidInputs(InvalidRequest):
    """The inputs of an agent are not those it is defined to take."""

    code = "invalid_inputs"
    status = 422


class NotAdmitted(InvalidRequest):
    """The operator's budget does not cover the run of an application, which was not started."""


class PreviousNotFound(InvalidRequest):
    """The run that was to be continued is not known, or not any more."""

    code = "previous_response_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Previous response with id '{run_id}' not found.", param="previous_response_id")


class AlreadyInConversation(InvalidRequest):
    """An item cannot be added to a conversation that has it."""

    code = "item_already_in_conversation"


class MemoryLimit(CallerError):
    """Requests and runs under way hold as many bytes as this key, or all together, may."""

    code = "memory_limit"
    status = 429
    retryable = True
    retry_after = 1.0


class HistoryTooLarge(MemoryLimit):
    """A run would hold more than a key may, whatever else is under way."""

    code = "history_too_large"
    status = 413
    retryable = False


class NotFound(CallerError):
    code = "not_found"
    status = 404


class PeerError(MainspringError):
    status = 502


class ProviderError(PeerError):
    """A model turn failed. Adapters raise only children of this class.

    `retry_after` is the number of seconds after which it may be tried again, if that is known. `was_asked` is false if the
    backend has heard nothing of it: a limit or a circuit breaker of our own stood before it. `usage` is what the turn has used
    all the same, if that is known, and `adaptations` what was tried to have it answered.
    """

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None, was_asked: bool = True
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after
        self.was_asked = was_asked
        self.usage: Usage | None = None
        self.adaptations: tuple[Adaptation, ...] = ()


class RateLimited(ProviderError):
    code = "rate_limit_exceeded"
    status = 429
    retryable = True


class ContextOverflow(ProviderError):
    code = "context_length_exceeded"
    status = 400


class Refused(ProviderError):
    code = "invalid_prompt"
    status = 400


class ModelNotFound(Refused):
    """No backend, or not the one that was asked, has a model of this name."""

    code = "model_not_found"
    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class Misconfigured(ProviderError):
    """The operator's to mend: a redirect, a page that is not there, TLS that does not fit."""

    code = "provider_misconfigured"


class Unauthorized(ProviderError):
    code = "provider_unauthorized"


class Unavailable(ProviderError):
    code = "provider_unavailable"
    status = 503
    retryable = True


class BadOutput(ProviderError):
    code = "provider_bad_output"
    retryable = True


class EmptyAnswer(BadOutput):
    """The model's doing: its backend is well."""


class UnreadCall(BadOutput):
    """The backend could not read the call that its model has `written`, and tells it."""

    def __init__(self, message: str, written: str = "") -> None:
        super().__init__(message)
        self.written = written


class TooManyItems(BadOutput):
    """Asking again would most likely be answered the same way."""

    code = "provider_too_many_items"
    retryable = False


class ToolUnavailable(PeerError):
    """The server behind a tool could not do what it was asked; other servers' tools are not touched by it."""

    code = "tool_unavailable"
    retryable = True


class SignInNeeded(ToolUnavailable):
    """A person must sign in to a tool's server first. `scope` is all that they have to grant, if they have signed in before."""

    code = "sign_in_needed"
    retryable = False

    def __init__(self, label: str, scope: str = "") -> None:
        again = " again, and permit more" if scope else ""
        super().__init__(f"MCP server `{label}` needs a person to sign in{again}: mainspring mcp sign-in {label}")
        self.label, self.scope = label, scope


class ToolTimeout(ToolUnavailable):
    """A tool's server did not answer in time."""


class ToolRateLimited(ToolUnavailable):
    """A tool's server was called as often as the settings allow. `retry_after` are the seconds until it may be called again."""

    code = "rate_limit_exceeded"
    status = 429

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RunFailed(PeerError):
    code = "run_failed"


class DelegateToClient(PeerError):
    """Raised by an executor that wants the client to perform this call instead."""


class AskPerson(PeerError):
    """Raised by an executor whose call cannot go on before a person has answered. `elicitation` is what they are shown,
    `kept` what the executor is given back, with the answer, when the call goes on."""

    def __init__(
        self,
        message: str,
        elicitation: Mapping[str, object] | None = None,
        kept: Mapping[str, object] | None = None,
        *,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.elicitation, self.kept = dict(elicitation or {}), dict(kept or {})


class OurError(MainspringError):
    pass


class Malformed(OurError):
    code = "malformed_log"


class StoreError(OurError):
    code = "store_error"


class StoreDoubt(StoreError):
    """It cannot be told whether something was written: the answer was lost."""


class FilesUnavailable(OurError):
    """The storage of files (`files` of the settings) cannot be used; says what to do."""

    code = "files_unavailable"
    status = 503
    retryable = True


class Superseded(OurError):
    code = "superseded"
    status = 409


class DocumentBusy(OurError):
    """Another process works on a document of the store, and has not come to an end in time."""

    code = "document_busy"
    status = 409
    retryable = True


class SandboxError(OurError):
    code = "sandbox_error"


class SandboxFull(SandboxError):
    code = "container_limit"
    status = 429
    retryable = True


class SandboxBusy(SandboxError):
    """Another process works in the container, and has not come to an end in time."""

    code = "container_busy"
    status = 409
    retryable = True


class OrderStepTimeout(OurError):
    code = "order_step_timeout"
    status = 503
    retryable = True


class ResumeLimit(OurError):
    """The processes that took this run up died, one after the other: it is not taken up again."""

    code = "resume_limit"


class NoWorker(OurError):
    """A gateway has accepted this run, and nobody has taken it up in time."""

    code = "no_worker"
    status = 503
    retryable = True


class DispatcherUnavailable(OurError):
    """What brings runs to those who drive them cannot be reached; says what to do."""

    code = "dispatcher_unavailable"
    status = 503
    retryable = True


class Interrupted(OurError):
    code = "interrupted"
    status = 503
    retryable = True
