"""One call of an MCP tool, as far as the server has to be told more before it is done.

Theory of operation. What a server asks a person ends the execution of the call, by `AskPerson`: the run pauses, and the question
waits in the one record of approvals. When it is answered, the call is executed once more, with what it has kept. Under the
stateless protocol that is all a server needs: its `requestState`, and the answers. Under the protocols with sessions the request
is still under way, held in this process. Is that gone, the tool is called anew, and a question that was answered gets the same
answer: nobody is asked twice. A task is known by its id, so it is followed, never begun again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.elicitation import describe_question, read_elicitation
from mainspring.core.errors import AskPerson
from mainspring.core.events import Used
from mainspring.core.items import ApprovalResponse, Json
from mainspring.tools.mcp.exchange import Elicit, Progress
from mainspring.tools.mcp.json_rpc import INVALID_REQUEST, METHOD_NOT_FOUND, RequestRefused, RpcFault, refuse
from mainspring.tools.mcp.sampling import MOST_SAMPLES, Sampler, render_sample

MOST_AT_ONCE = 64
MOST_ROUNDS = 10
MOST_STATE_BYTES = 256 * 1024

Keep = Callable[[str, Json], Awaitable[None]]


class KeptCall(Struct, frozen=True, omit_defaults=True):
    """What a call needs to go on where it was.

    `state` and `asked` are what the server said last, `answers` what it is told, by the names of its questions, `waiting` the
    question that a person has been asked. `task` is what the call has become, `held` where it waits in this process. `samples`
    is how often the model was asked, `used` what that cost.
    """

    state: str | None = None
    asked: Json = {}
    answers: Json = {}
    waiting: str = ""
    task: str = ""
    held: str = ""
    rounds: int = 0
    samples: int = 0
    used: Used | None = None


class Question(Struct, frozen=True):
    """What a person is to be asked. `key` names the question for its server."""

    key: str
    shown: Json


class CallExchange:
    """The questions of one call. Without `can_ask` and `elicit`, they are refused."""

    def __init__(
        self,
        label: str,
        told: Progress | None = None,
        *,
        elicit: Elicit | None = None,
        can_ask: bool = False,
        is_trusted: bool = False,
        kept: Json | None = None,
        said: ApprovalResponse | None = None,
        keep: Keep | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.told = told
        self.kept = KeptCall() if kept is None else msgspec.convert(kept, KeptCall)
        # Raises `ToolUnavailable` if the tool is no more what was approved.
        self.confirm_approved: Callable[[], Awaitable[None]] | None = None
        self.limit: asyncio.Timeout | None = None
        self.seconds = 0.0
        self.question: Question | None = None
        self.has_question = asyncio.Event()
        self._label, self._elicit, self._can_ask, self._is_trusted = label, elicit, can_ask, is_trusted
        self._keep, self._sampler = keep, sampler
        self._reply: asyncio.Future[Json] | None = None
        if said is not None and self.kept.waiting:
            self.take_answer(said)

    @property
    def used(self) -> Used | None:
        """What the call's server has had the model say, before its last question, too."""
        return self.kept.used

    def take_answer(self, said: ApprovalResponse) -> None:
        """Is told what the person said whom the call has asked last."""
        answer: Json = {"action": "accept" if said.approve else "decline"}
        if said.approve and isinstance(said.content, dict):
            answer["content"] = said.content
        self.kept = replace(self.kept, answers={**self.kept.answers, self.kept.waiting: answer}, waiting="", held="")
        if self._reply is not None and not self._reply.done():
            self.question = None
            self.has_question.clear()
            self._reply.set_result(answer)

    def wait_for(self, question: Question, held: str) -> None:
        """Notes that a person is asked this."""
        self.kept = replace(self.kept, waiting=question.key, held=held)

    def ask(self, question: Question, held: str = "") -> AskPerson:
        """The error that has a person asked."""
        kept = replace(self.kept, waiting=question.key, held=held)
        told = describe_question(question.shown, is_trusted=self._is_trusted)
        return AskPerson(told, question.shown, msgspec.to_builtins(kept))

    async def answer_inputs(self, asked: object, state: object) -> Json:
        """The answers to what a result asks for, of the stateless protocol. Raises `AskPerson`, `RequestRefused`."""
        if not isinstance(asked, dict) or len(asked) > MOST_AT_ONCE:
            raise refuse(f"It asks for input in no form that is known, or more than {MOST_AT_ONCE} questions at once")
        if len(msgspec.json.encode((asked, state))) > MOST_STATE_BYTES:
            raise refuse(f"What it asks and wants to be told again has more than {MOST_STATE_BYTES >> 10} KiB")
        self._count_round()
        self.kept = replace(self.kept, state=state if isinstance(state, str) else None, asked=asked, answers={})
        return await self.complete_inputs()

    async def complete_inputs(self) -> Json:
        """As `answer_inputs`, for what was asked last."""
        for key, request in self.kept.asked.items():
            if key in self.kept.answers:
                continue
            match request:
                case {"method": str(method), "params": dict(params)}:
                    answer = await self._answer(key, method, params)
                case _:
                    raise RequestRefused(RpcFault(INVALID_REQUEST, "It asks for input in no form that is known"))
            self.kept = replace(self.kept, answers={**self.kept.answers, key: answer})
        return self.kept.answers

    async def answer_urls(self, fault: RpcFault) -> None:
        """Has a person open what a server needs to be opened before it can be called. Raises `RequestRefused` if that was done
        before, or is declined."""
        match fault.data:
            case {"elicitations": [*asked]}:
                wanted = [each for each in asked if isinstance(each, dict)]
            case _:
                wanted = []
        fresh = [each for each in wanted if _digest(each) not in self.kept.answers]
        if not fresh:
            raise RequestRefused(fault)
        self._count_round()
        for each in fresh[:MOST_AT_ONCE]:
            answer = await self._answer(_digest(each), "elicitation/create", {**each, "mode": "url"})
            self.kept = replace(self.kept, answers={**self.kept.answers, _digest(each): answer})
            if answer.get("action") != "accept":
                raise RequestRefused(fault)

    async def answer_request(self, method: str, params: Json) -> Json:
        """The answer to what a server asks while the call is under way, of the protocols with sessions. Waits until there is one.
        Raises `RequestRefused`."""
        key = _digest({name: value for name, value in params.items() if name not in ("_meta", "elicitationId")})
        if method == "elicitation/create" and self._elicit is None and self._can_ask:
            if key in self.kept.answers:
                answer: Json = self.kept.answers[key]
                return answer
            return await self._hold(Question(key, self._read(params)))
        return await self._answer(key, method, params)

    async def keep_task(self, task: str) -> None:
        """Says durably that the call is this task from now on."""
        self.kept = replace(self.kept, task=task)
        if self._keep is not None:
            await self._keep(f"the server works on it as task {task[:200]}", msgspec.to_builtins(self.kept))

    async def _hold(self, question: Question) -> Json:
        if self._reply is not None and not self._reply.done():
            raise refuse("It asks a second question before the first is answered")
        self._count_round()
        self._reply = asyncio.get_running_loop().create_future()
        self.question = question
        self.has_question.set()
        if self.limit is not None:
            self.limit.reschedule(None)  # a person may take their time
        try:
            return await self._reply
        finally:
            self.question = None
            self.has_question.clear()
            if self.limit is not None and not self.limit.expired():
                self.limit.reschedule(asyncio.get_running_loop().time() + self.seconds)

    async def _answer(self, key: str, method: str, params: Json) -> Json:
        match method:
            case "elicitation/create" if self._elicit is not None:
                content = await self._elicit(params)
                return {"action": "decline"} if content is None else {"action": "accept", "content": content}
            case "elicitation/create" if self._can_ask:
                raise self.ask(Question(key, self._read(params)))
            case "elicitation/create":
                raise RequestRefused(RpcFault(INVALID_REQUEST, "Elicitation not supported"))
            case "sampling/createMessage" if self._sampler is not None:
                return await self._sample(self._sampler, params)
            case _:
                raise RequestRefused(RpcFault(METHOD_NOT_FOUND, f"Method not found: {method[:100]}"))

    async def _sample(self, sampler: Sampler, params: Json) -> Json:
        self.kept = replace(self.kept, samples=self.kept.samples + 1)
        if self.kept.samples > MOST_SAMPLES:
            raise refuse(f"It asks the model more than {MOST_SAMPLES} times in a call")
        run = await sampler.ask_model(params)
        self.kept = replace(self.kept, used=Used(run.turns, 0, run.usage) + (self.kept.used or Used()))
        return render_sample(run)

    def _read(self, params: Json) -> Json:
        try:
            return read_elicitation(self._label, params)
        except ValueError as error:
            raise RequestRefused(RpcFault(INVALID_REQUEST, f"The question cannot be asked: {error}")) from None

    def _count_round(self) -> None:
        self.kept = replace(self.kept, rounds=self.kept.rounds + 1)
        if self.kept.rounds > MOST_ROUNDS:
            raise refuse(f"It asks for input for more than {MOST_ROUNDS} rounds")


def _digest(asked: Json) -> str:
    return sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:32]
