"""A model that says what it was told to: one tool call, for a step of a workflow.

A step that runs a command or sends a request is a run of the engine like any other, only that nobody has to be asked which call
to make. So the call is judged by the same policies, performed by the same executors, recorded and audited in the same log, and
after a crash taken up by the same rules as a call that a model made.
"""

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from mainspring.core.errors import Refused
from mainspring.core.events import ArgumentsDelta, ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.ids import derive_id
from mainspring.core.items import FunctionCall, FunctionCallOutput, Usage, assistant, to_json
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import STEP_MODEL, StepCall
from mainspring.providers.wrapper import ProviderWrapper


class StepProvider(ProviderWrapper):
    """Makes the calls of steps, and leaves all other questions to the provider behind it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if request.step_call is not None:
            return _make_call(request, request.step_call)
        if request.model == STEP_MODEL:
            raise Refused(f"the model `{STEP_MODEL}` is for the steps of workflows; name another one")
        return self._provider.stream(request)


async def _make_call(request: ModelRequest, step: StepCall) -> AsyncGenerator[ModelEvent, None]:
    if any(isinstance(item, FunctionCallOutput) for item in request.items):
        said = assistant("Done.", id=derive_id("msg", request.run_id))
        yield ItemStarted(replace(said, content=(), status="in_progress"))
        yield TextDelta(said.id, said.text)
        yield ItemDone(said)
        yield TurnEnded(usage=Usage())
        return
    call = FunctionCall(derive_id("call", request.run_id), step.name, to_json(step.arguments), id=derive_id("fc", request.run_id))
    yield ItemStarted(replace(call, arguments="", status="in_progress"))
    yield ArgumentsDelta(call.id, call.arguments)
    yield ItemDone(call)
    yield TurnEnded(usage=Usage())
