"""Animals that leave the tokens of their templates in the text, or say a call twice: as text and as a call."""

from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import NOON, UTC, Animal, Outcome, Talker, say
from tests.zoo.leaks import HERMES

from mainspring.core.items import Json

FINISH = sse(chunk(finish="tool_calls")) + DONE
CALLED = chunk(call_piece(0, id="a", name="get_time", arguments=UTC))


class Thinker(Talker):
    """An animal that thinks before it answers."""

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert [item.type for item in outcome.response.output] == ["reasoning", "message"]


class StopToken(Talker):
    """Quirk 77: the token that ends a turn is in the text (Qwen). https://github.com/vllm-project/vllm/issues/14429"""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("It is ", "noon.", "<|im", "_end|>")


class StopTokenOfMistral(Talker):
    """Quirk 77: `</s>` is in the text; supposed, without a source.cpp."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("It is noon.</", "s>")


class StopTokenOfLlama(Talker):
    """Quirk 77: `<|eot_id|>` is in the text, and a line break behind it; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("It is noon.", "<|eot_id|>", "\n")


class StopTokenOfGemma(Talker):
    """Quirk 77: `<end_of_turn>` is in the text, on a line of its own; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("It is noon.", "\n<end", "_of_turn>")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text.strip()) == ("completed", NOON)


class StopTokensInARow(Talker):
    """Quirk 77: several tokens end the text; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("It is noon.", "<\uff5cend▁of▁sentence\uff5c>", "<|end", "oftext|>")


class StopTokenAndNextTurn(Talker):
    """Quirk 77: the model goes on behind its end, and makes up the next turns; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        made_up = "<|im_start|>user\nThank you!<|im_end|>\n<|im_start|>assistant\nYou are welcome.<|im_end|>"
        return say("It is noon.", "<|im_end|>\n", *[made_up[start : start + 7] for start in range(0, len(made_up), 7)])


class StopTokenBeforeCall(Animal):
    """Quirk 77: a token that ends the turn comes before the call; supposed, without a source."""

    number = 77

    def first(self, body: Json) -> bytes:
        return sse(chunk({"content": "<|im_end|>"}), CALLED) + FINISH


class StopTokenWithoutTools(Talker):
    """Quirk 77: a token ends the text of a model that has no tools; supposed, without a source."""

    number = 77
    has_tools = False

    def last(self, body: Json) -> bytes:
        return say("It is noon.", "<|end|>")


class TurnHeader(Talker):
    """Quirk 78: the text begins with the header of the turn; supposed, without a source."""

    number = 78

    def last(self, body: Json) -> bytes:
        return say("<|im", "_start|>assist", "ant\n", "It is noon.")


class TurnHeaderOfLlama(Talker):
    """Quirk 78: the text begins with the header of Llama's turn; supposed, without a source."""

    number = 78

    def last(self, body: Json) -> bytes:
        return say("<|start_header_id|>assistant", "<|end_header_id|>\n\nIt is noon.", "<|eot_id|>")


class TurnHeaderAndThoughts(Thinker):
    """Quirk 78: the header of the turn comes before the tag of the thoughts; supposed, without a source."""

    number = 78

    def last(self, body: Json) -> bytes:
        return say("<|im_start|>assistant\n<think>\n", "High sun.\n</think>\n\n", "It is noon.<|im_end|>")


class TurnHeaderAndCall(Animal):
    """Quirk 78: the header of the turn comes before a call in the text; supposed, without a source."""

    number = 78

    def first(self, body: Json) -> bytes:
        return say("<|im_start|>assistant\n", HERMES, "<|im_end|>")


class ThoughtsInUpperCase(Thinker):
    """Quirk 23: the tag of the thoughts is in upper case; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<THI", "NK>High sun.</TH", "INK>\n", "It is noon.")


class ThoughtsAndAnswer(Thinker):
    """Quirk 23: the answer behind the thoughts is in a tag, too (R1-Zero). https://arxiv.org/abs/2501.12948"""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<think>High sun.</think>", "<ans", "wer>It is ", "noon.</ans", "wer>", "<|im_end|>")


class ThoughtsAndSolution(Thinker):
    """Quirk 23: tokens stand around thoughts and answer (Sky-T1). https://github.com/NovaSky-AI/SkyThought"""

    number = 23

    def last(self, body: Json) -> bytes:
        thought = "<|begin_of_thought|>\nHigh sun.\n<|end_of_thought|>\n\n"
        return say(thought, "<|begin_of_solution|>", "It is noon.", "<|end_of_solution|>")


class ThoughtsAndResponse(Thinker):
    """Quirk 23: tokens stand around thoughts and response (Command A).
    https://docs.cohere.com/docs/command-a-hf"""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<|START_THINKING|>High sun.<|END_THINKING|>", "<|START_", "RESPONSE|>It is noon.<|END_", "RESPONSE|>")


class ThoughtsInWords(Thinker):
    """Quirk 23: a heading stands before the thoughts, and another before the answer (Granite 3.2).
    https://github.com/vllm-project/vllm/blob/main/vllm/reasoning/granite_reasoning_parser.py"""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("Here is my ", "thought process:\n\nHigh ", "sun.\n\nHere is my", " response:\n\nIt is noon.")


class ThoughtsInAFieldAndAnswer(Thinker):
    """Quirk 25: thoughts come in a field, and the answer behind them in a tag (R1-Zero). https://arxiv.org/abs/2501.12948"""

    number = 25

    def last(self, body: Json) -> bytes:
        words = [chunk({"content": piece}) for piece in ("<answer>", "It is noon.", "</answer>")]
        return sse(chunk({"reasoning": "High sun."}), *words, chunk(finish="stop")) + DONE


class CallBesideItsText(Animal):
    """Quirk 79: a call comes as text and as a call; supposed, without a source."""

    number = 79

    def first(self, body: Json) -> bytes:
        return sse(chunk({"content": HERMES}), CALLED) + FINISH


class CallBeforeItsText(Animal):
    """Quirk 79: a call comes as a call and then as text; supposed, without a source."""

    number = 79

    def first(self, body: Json) -> bytes:
        return sse(CALLED, chunk({"content": HERMES})) + FINISH


class CallBesideItsTags(Animal):
    """Quirk 79: the tags around a call are left in the text; supposed, without a source."""

    number = 79

    def first(self, body: Json) -> bytes:
        return sse(chunk({"content": "<tool_call>\n"}), CALLED, chunk({"content": "\n</tool_call>"})) + FINISH


class ThoughtsOfReka(Thinker):
    """Quirk 23: `<reasoning>` stands around thoughts, as Reka Flash 3 is said to write them; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<reason", "ing> The sun is high.", " </reasoning>", NOON)


class CallInOldFieldToo(Animal):
    """Quirk 13: one delta has a call as `tool_calls` and as `function_call`; supposed, without a source."""

    number = 13

    def first(self, body: Json) -> bytes:
        made = {"name": "get_time", "arguments": UTC}
        both = {**call_piece(0, id="a", name="get_time", arguments=UTC), "function_call": made}
        return sse(chunk(both)) + FINISH


class AnswerInBox(Animal):
    """Quirk 77: tokens stand around the answer, as GLM-4.1V was trained to box it; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say("<|begin_of", "_box|>", NOON, "<|end_of", "_box|>")


class CallTwiceInText(Animal):
    """Quirk 16: a call is written twice in the text; supposed, without a source."""

    number = 16

    def first(self, body: Json) -> bytes:
        return say(HERMES, "\n", HERMES)
