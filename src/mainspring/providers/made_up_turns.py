"""Turns that a model makes up: it goes on behind its call or its answer and writes what the others say, each behind a label.

Behind a call there is nothing that it could know, so one label is enough. Behind an answer there must be a turn of the user's and
one of the model's own behind it, where neither the request nor the answer speaks of a dialogue, and no such label came before.
"""

import re
from typing import Final

from mainspring.providers.control_tokens import NEXT_TURN, find_last_stops


def has_turns(text: str) -> bool:
    """Whether a text that begins as a turn of the user's goes on with one of the model's, and somebody speaks again or to
    somebody; or has nothing in it."""
    again = _AGAIN.search(text, 0, MOST_TURN)
    if again is None:
        return text[: find_last_stops(text)].rstrip() in USERS
    if NO_TURN.search(text, 0, again.start()):
        return False
    roles = [role[1].lower() for role in _ROLE.finditer(f"\n{text}")]
    return len({*roles}) < len(roles) or _REPLY.search(text, 0, again.start()) is not None


_OTHERS: Final = r"(?:tool|function|api|system|user|human|assistant|ai|bot|observation|result|output|response)"
_TOLD: Final = r"(?:[ _-]?(?:calls?|results?|outputs?|responses?|returns?|returned|messages?)|[ ]?\d{1,2})?"
MADE_UP: Final = re.compile(
    rf"[#>*\[ ]{{0,5}}{_OTHERS}{_TOLD}[\]*]{{0,3}}:|#{{1,4}} ?(?:input|instruction):"
    r"|<start_function_response>|</?(?:tool|function)_(?:response|result|output)s?>|<(?:observation|result|output)>"
    r"|<\uff5ctool▁outputs?▁begin\uff5c>|\[/?TOOL_RESULTS?\]|```(?:tool_)?(?:outputs?|results?|response)\n"
    rf"|{NEXT_TURN.pattern}",
    re.IGNORECASE,
)
"""What stands behind a call that is none of it, and ends what the model has to say."""
HALF_LABEL: Final = re.compile(r"[#>*\[ ]{0,5}[a-z _-]{0,20}[\]*]{0,3}", re.IGNORECASE)
"""What may become a label of such a turn."""
CUT_TURN: Final = re.compile(
    rf"\n[ \t]*(?:(?!(?:tool|function|api)(?:[ _-]?calls?)?\s*:){_OTHERS}{_TOLD}:|(?:tool|function):(?!\s*[\w.-]+\s*\n))"
    r"|<end_(?:code|action)>|\bObservation:|✿RESULT✿|\bTool (?:response|result|output):",
    re.IGNORECASE,
)
"""Where such a turn begins behind a call with labels of its own, which are not taken for one."""
USERS: Final = ("User:", "Human:", "USER:", "HUMAN:")
"""How the turn of a user begins."""
USER_TOKENS: Final = (
    "<|im_start|>user", "<|start_header_id|>user", "<start_of_turn>user", "<|user|>", "<\uff5cUser\uff5c>", "[INST] ",
    "<|turn>user", "<|start_of_role|>user", "<im_start>user",
)  # fmt: skip
"""The same in tokens of chat templates."""
_AGAIN: Final = re.compile(r"\n[ \t]*(?:Assistant|ASSISTANT|AI|Bot|BOT)[ \t]*:")
_ROLE: Final = re.compile(r"\n[ \t]*(User|Human|Assistant|AI|Bot|USER|HUMAN|ASSISTANT|BOT)[ \t]*:")
_REPLY: Final = re.compile(r"[?!]|\b(?:I|you|me|my|your|thanks?|please|ok|okay|great)\b", re.IGNORECASE)
NO_TURN: Final = re.compile(
    r"\n[ \t]*(?:(?!(?:User|Human|Assistant|AI|Bot|Tool|System)\b)[A-Za-z][\w .'-]{0,40}:(?!//)|[-*#|`>{<]|\d+[.)])",
    re.IGNORECASE,
)
"""A line that no turn of a user's has: another label, or one of a list, a heading or a block."""
MOST_TURN: Final = 1_000
# How languages call what has several speakers, in their scripts without spaces, too.
_OTHER_WORDS: Final = (
    r"di[aáà]logo?s?|conversa\w*|charla|ejemplos?|exemplos?|esemp\w*|exemples?|échanges?|sc[eè]n[ea]\w*|gui[oó]n|roteiro"
    r"|gespr[aä]ch\w*|unterhaltung\w*|beispiel\w*|szene\w*|vorlage\w*|übersetz\w*|traduci\w*|tradu[iz]\w*|histori\w*|histoire"
    r"|geschichte|gesprek\w*|voorbeeld\w*|samtal\w*|exempel|rozmow\w*|rozmów\w*|przykład\w*|rozhovor\w*|keskustel\w*|diyalog\w*"
    r"|sohbet\w*|konuşma\w*|örne\w*|percakapan|contoh"
    r"|диалог\w*|діалог\w*|разговор\w*|розмов\w*|бесед\w*|пример\w*|сцен\w*|переписк\w*|перевед\w*"
)
_UNSPACED: Final = (
    "对话|對話|聊天|会话|會話|剧本|劇本|台词|示例|例子|翻译|翻譯|対話|台本|やりとり|やり取り|例を|翻訳"
    "|대화|대본|채팅|예시|번역|حوار|محادثة|संवाद|बातचीत|hội thoại"
)
DIALOGUE: Final = re.compile(
    r"\b(?:dialog\w*|conversations?|transcripts?|screenplay|scripts?|skits?|scenes?|scenarios?|chats?|interviews?|exchanges?"
    r"|role-?play\w*|few-?shot|templates?|simulat\w*|imagin\w*|act(?:ing)? out|debates?|discussions?|between|samples?|examples?"
    r"|below|follow(?:s|ing)|here(?:['\u2019]s| is| are)|versions?|drafts?|logs?|talk\w*|formats?|roles?|labels?"
    r"|speakers?|characters?|prompts?|prompting|train\w*|fine-?tun\w*|data-? ?sets?|synthetic|faqs?|q ?& ?a|threads?"
    r"|stor(?:y|ies)|tales?|novels?|plays?|fiction\w*|drama\w*|translat\w*|continue|complete|chat-?bots?|bots?|tickets?"
    rf"|{_OTHER_WORDS})\b|{_UNSPACED}"
    r"|\b(?:User|Human|Assistant|Tool)\s*:",
    re.IGNORECASE,
)
"""How a request or an answer speaks of what has several speakers."""
