"""Tokens of chat templates that should have stayed with the server: they end a turn, begin one, or stand around an answer."""

import re
from typing import Final

STOPS: Final = (
    "<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|eot|>",
    "<end_of_turn>", "<turn|>", "<eos>", "<|endofturn|>", "<|end_of_turn|>", "<|end_of_role|>", "<|END_OF_TURN_TOKEN|>",
    "<|END_RESPONSE|>", "<|END_TEXT|>", "<|end_of_solution|>", "<\uff5cend▁of▁sentence\uff5c>", "<|user|>", "<|observation|>",
    "<[EOS]>", "[|endofturn|]", "<|message_end|>", "<|im_sep|>",
    "<|message_sep|>", "<|eom|>", "<|EOT|>", "<|role_end|>", "<|flush|>", "<|end_of_box|>", "<eoa>", "<pad>", "[e~[",
    "<end_of_sentence>", "</tool_call>", "[unused10]", "</longcat_s>", "<sep>",
    "<im_end>", "<end_of_utterance>", "<seed:eos>", "[/INST]",
)  # fmt: skip
"""What ends a turn, or should not be left behind at its end."""
HEADERS: Final = (
    "<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n", "<start_of_turn>model\n", "<|turn>model\n",
    "<|assistant|>\n", "<|start_of_role|>assistant<|end_of_role|>", "<\uff5cAssistant\uff5c>", "<|begin_of_text|>", "<bos>",
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "[|assistant|]", "<|im_start|>model\n", ">>>all\n", "<SPECIAL_12>",
    "assistant\n\n", "<|header_start|>assistant<|header_end|>\n", "all\n<|content|>",
    "<role>ASSISTANT</role>", "<|CHATBOT_TOKEN|>", "<|message|>", "<|bot|>\n", "all\n",
    "assistant\n", "model\n",
    "<|from|>assistant\n<|recipient|>all\n<|content|>", "<|from|>assistant<|recipient|>all<|content|>",
    "<|recipient|>all\n<|content|>", "<|recipient|>all<|content|>", "all<|content|>",
)  # fmt: skip
"""What begins a turn of the model's."""
SECTIONS: Final = {">>>all\n": ">>>", "all\n": ">>>"} | {
    header: "<|from|>assistant" for header in HEADERS if header.endswith("<|content|>")
}
"""Headers of words with what calls begin with behind them: a turn of Functionary's has a section for each recipient."""
START: Final = "<s>"
"""What begins a text, and strikes words out on a page."""
LEADING: Final = re.compile(
    r"(?:(?:<\|?im_start\|?>(?:assistant|model)?|(?:<\|start_header_id\|>)?assistant<\|end_header_id\|>|<\|end_header_id\|>"
    r"|<\|assistant\|>|<start_of_turn>(?:model)?|<\|start_of_role\|>assistant(?:<\|end_of_role\|>)?|\[/INST\]|<\|?im_end\|?>"
    r"|<\|eot_id\|>|<end_of_turn>|</s>|<eos>|<\|end\|>|<\|endoftext\|>)\s*)+(?=[^\W\d_a-z]|<(?:\|(?:tool|python|START|channel)|[^|/ei])|[{\[`\d])"
)
"""The same, with what has ended the turn before, and without a line break; whoever speaks of a token goes on in lower case."""
WRAPPERS: Final = {
    "<|begin_of_solution|>": "<|end_of_solution|>",
    "<|START_RESPONSE|>": "<|END_RESPONSE|>",
    "<|START_TEXT|>": "<|END_TEXT|>",
    "<|begin_of_box|>": "<|end_of_box|>",
}
"""What stands around an answer, by what opens it."""
ANSWER_TAGS: Final = {"<answer>": "</answer>", "<response>": "</response>", "<final_answer>": "</final_answer>",
    "<output>": "</output>", "<Output>": "</Output>", "<final>": "</final>"}  # fmt: skip
"""The same as plain tags, which people ask for, too: no tokens, unless the model has thought before and nobody asked for them."""
NEXT_TURN: Final = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|turn>|\[INST\]|<\|(?:user|system|observation|start|start_of_role)\|>"
    r"|<\uff5cUser\uff5c>|<\|START_OF_TURN_TOKEN\|>|<s>|(?:USER|User|Human|###[ ]?(?:User|Human|Instruction)):"
)
"""What begins another turn, which the model has made up."""
# Any token in bars, and those that were kept in reserve.
_OTHER: Final = (
    r"<\|(?!im_start|start|end_header|user|system|observation)[A-Za-z_][\w./:-]{0,40}\|>|<(?:reserved|SPECIAL|unused)_?\d{1,4}>"
)
_ANY_STOP: Final = "|".join([*map(re.escape, STOPS), _OTHER])
STOP: Final = re.compile(_ANY_STOP)
TOKENS: Final = re.compile(
    r"\b(?:special|stop|control|end|start|eos|bos|pad|sep)[ -](?:\w+[ -]){0,3}tokens?\b|\bChatML\b"
    r"|\bchat[ -]templates?\b|\btokeni[sz]er"
    r"|\b(?:tokens?|marks?|markers?|tags?) (?:that )?(?:ends?|closes?|begins?|starts?|separates?|terminates?)\b",
    re.IGNORECASE,
)
"""How a request speaks of such tokens."""
OTHER_STOP: Final = re.compile(_OTHER)
HALF_STOP: Final = re.compile(rf"{_OTHER}|<\|(?:[A-Za-z_][\w./:-]{{0,40}}\|?)?\Z|<[rSu]\w{{0,12}}\Z")
"""A token that may end a turn though no table has it, or what may become one."""
_LAST_STOP: Final = re.compile(rf"(?:{_ANY_STOP})\Z")
_LONGEST_STOP: Final = 48
_MOST_STOPS: Final = 1_024
ALL_STOPS: Final = re.compile(rf"(?:\s*(?:{_ANY_STOP}))+\s*(?:(?:{NEXT_TURN.pattern}).*)?\Z", re.DOTALL)
PAST_STOP: Final = re.compile(
    rf"(?!(?<=[>\n])(?:{NEXT_TURN.pattern})|<\|(?:channel|constrain|message)\|>)"
    rf"(?:{_ANY_STOP})\s*+(?!{NEXT_TURN.pattern}|(?:U\w{{0,3}}|H\w{{0,4}}|\#[# \w]{{0,15}})\Z)[^\s<\[]"
)
BEFORE_STOP: Final = re.compile(r"(?:\A|[^\s`'\"(\u201c\u2018]|\n\s*|[.!?…][\"')]?[ ])\Z")
"""What may stand before a token that ends a turn, and not before one that is spoken of."""


def find_last_stops(text: str) -> int:
    """Where the tokens that end the text begin, with the blanks around them, or the last of very many; its length if there are
    none."""
    # From the end: a search would try each blank on its way.
    end, is_found = len(text), False
    for _ in range(_MOST_STOPS):
        while end and text[end - 1].isspace():
            end -= 1
        stop = _LAST_STOP.search(text, max(0, end - _LONGEST_STOP), end)
        if stop is None:
            return end if is_found else len(text)
        end, is_found = stop.start(), True
    return end
