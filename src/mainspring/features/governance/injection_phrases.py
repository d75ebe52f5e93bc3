"""What orders to a model look like, as data: expressions over a text in its plain form (lower case, no accents).

In an expression, a blank stands for a few signs of any kind, or none, so that neither line breaks nor dashes hide a phrase;
`~` is a word of no interest. Every repetition is bounded, and what must only be near is sought on its own, so that no text takes
more than linear time. A rule names words of which one must be there before it is tried: most texts cost next to nothing.
"""

import re
from bisect import bisect_right
from functools import cache, partial
from typing import Final

from msgspec import Struct

OVERRIDE: Final = "system_override"
ROLE: Final = "role_change"
LEAK: Final = "prompt_leak"
DELIMITER: Final = "delimiter"
SPEAKER: Final = "false_speaker"


class Rule(Struct, frozen=True):
    """Fits a text with `expression` in it; if there is a `lead`, one that ends at most `near` characters before."""

    name: str
    words: tuple[tuple[str, ...], ...]
    expression: str
    lead: str = ""
    near: int = 80

    def find(self, plain: str) -> str | None:
        """The part of the text that fits, None if none does."""
        if not all(any(word in plain for word in group) for group in self.words):
            return None
        expression = _compile(self.expression)
        found = expression.search(plain)
        if found is None or not self.lead:
            return None if found is None else found[0]
        leads = [(match.end(), match.start()) for match in _compile(self.lead).finditer(plain)]
        for match in expression.finditer(plain) if leads else ():
            before = bisect_right(leads, (match.start(), len(plain))) - 1
            if before >= 0 and match.start() - leads[before][0] <= self.near:
                return plain[leads[before][1] : match.end()]
        return None


def _rule(name: str, words: str, expression: str, *, after: str = "", near: int = 80) -> Rule:
    """`words` are separated by blanks, groups of them by `&`."""
    groups = tuple([tuple(group.split()) for group in words.split("&")])
    return Rule(name, groups, expression, after, near)


_override, _role, _leak, _delimiter, _speaker = [partial(_rule, name) for name in (OVERRIDE, ROLE, LEAK, DELIMITER, SPEAKER)]


@cache
def _compile(expression: str) -> re.Pattern[str]:
    """Compiled when it is first looked for: all of them at once would take longer than the whole start."""
    return re.compile(expression.replace(" ", r"[\W_]{0,8}").replace("~", r"(?:\W{1,8}\w{1,12})"))


_DROP = (
    "(?:ignor(?:e|ing)|disregard(?:ing)?|forget|neglect|overlook|override|overrule|bypass|circumvent|discard|abandon|dismiss"
    "|erase|disobey|set aside|pay no (?:attention|heed) to|get rid of"
    "|(?:do not|dont|don.t|never|stop|no longer) (?:follow|obey|listen to|comply with|adhere to|respect)(?:ing)?)"
)
_DROP_WORDS = (
    "ignor disregard forget neglect overlook overrid overrul bypass circumvent discard abandon dismiss erase disobey aside "
    "attention heed rid follow obey listen comply adhere respect"
)
_FORGET = "(?:ignor(?:e|ing)|disregard(?:ing)?|forget|discard)"
_FILL = (
    "(?:(?:all|any|every|each|of|the|these|those|that|this|your|my|our|other|and|or|everything|anything|whatever|completely"
    "|totally|entirely|please|both|in|from|to|about|system|developer|safety|user|security|given|set|text|content|context"
    "|conversation|messages?|future|actual|hidden|secret|prompts?|rules) ){0,6}"
)
_BEFORE = (
    "(?:previous(?:ly)?|prior|preceding|above|earlier|foregoing|former|initial|original|past|existing|aforementioned"
    "|pre ?existing|system|developer)"
)
_ORDERS = "(?:instruct(?:ions?|ed)|prompts?|directives?|guidelines?|programming|directions|commands|guardrails|told|input)"
_BOUNDS = (
    "(?:restrictions?|limitations?|limits|filters?|rules|guidelines|ethics|morals?|constraints|censorship|guardrails|boundaries)"
)
_OWN = "(?:system|safety|content|ethical|moral|internal|built ?in|core|original|initial|own|default|hidden|security)"
_WILD_MODE = "(?:\\bdan|god|jailbreak|jailbroken|unrestricted|unfiltered|uncensored|evil|chaos) mode"
_AI = "(?:ai|llms?|language models?|ai (?:assistants?|agents?|models?)|chatbots?)\\b"
_TELL = (
    "(?:reveal|show|print|repeat|output|display|tell|give|leak|dump|disclose|expose|write|recite|share|send|copy|summari[sz]e"
    "|translate|encode|return|list|quote|paste|include|append|describe|provide|what(?:.s| is| are| was| were))"
    "(?: out| back| down)?(?: to)?(?: me| us)?"
)
_WHOLE = "(?:full|entire|exact|complete|whole|verbatim|own|actual|current|first|above|raw|very)"
_TO_MODEL = (
    "(?:you (?:are|must|will|should|shall|have|may|can)|ignore|disregard|forget|override|new (?:instructions|rules|task)"
    "|from now|the user (?:is|has|wants)|reveal|always|never|do not|don.t|execute|grant|disable|enable|print|output|respond"
    "|reply|comply|obey)"
)

_OVERRIDES = (
    _override(
        f"{_DROP_WORDS} & instruct prompt directive guideline programming direction command guardrail told input rules"
        " & previous prior preceding above earlier foregoing former initial original past existing aforement system developer",
        f"{_DROP} {_FILL}(?:{_BEFORE} {_FILL}{_ORDERS}|(?:previous|prior|preceding|above|earlier|system) rules)",
    ),
    _override(
        f"{_DROP_WORDS} break violat disabl skip turn switch & your",
        f"(?:{_DROP}|break|violate|disable|skip|turn off|switch off) (?:(?:all|any|each|every|of) ){{0,2}}your"
        f" (?:{_OWN} ){{0,2}}(?:instructions?|guidelines|programming|prompt|restrictions|constraints|limitations|guardrails"
        "|safeguards|(?:safety|content) (?:filters?|polic(?:y|ies)|protocols?|measures)|ethics|ethical code|moral code"
        "|rules(?! for)|training(?! (?:plan|session|schedule|course|kit|shoes|day|program)))",
    ),
    _override(
        "ignor disregard forget discard & instruct directive",
        f"{_FORGET} (?:all|any|every|everything)(?: of)?(?: the| these| those| other)? (?:instructions?|directives)\\b"
        "(?! (?:in|on|for|about|from|regarding|of|printed|marked|relating|that come) )"
        f"|{_FORGET} the instructions (?:above|before|you (?:were|have|got)|given|from the system|in the (?:system )?prompt)",
    ),
    _override(
        "ignor disregard forget & everything anything whatever all what",
        "(?:ignore|disregard|forget) (?:everything|anything|all(?: of)?(?: that)?|what(?:ever)?)(?: else)?(?: that)?"
        " (?:above|before (?:this|that|now)|(?:you (?:were|have been|had been|.ve been)|the system|(?:the|your) (?:developers?"
        "|creators?|makers?))(?: ever| previously| just)? (?:told|instructed|taught|programmed|said|says?|given|wrote))",
    ),
    _override(
        "ignor disregard forget & above previous foregoing",
        "(?:ignore|disregard|forget)(?: all)?(?: of)? the (?:above|previous|foregoing)(?: text| part| lines?)?(?: and| but)?"
        "(?: instead| just| only| then)? (?:say|print|output|translate|tell|reveal|respond|reply|answer|instead|show|return|act"
        "|execute|run|repeat|you (?:are|must|will))",
    ),
    _override(
        "overrid bypass circumvent disabl & prompt instruct guideline filter restrict polic guardrail safeguard all",
        "(?:overrid|bypass|circumvent|disabl)(?:e|ing)? (?:all |any |every |the |its |these )?(?:system|safety|content|moderation"
        "|ethical|built ?in) (?:prompts?|instructions?|guidelines|filters?|polic(?:y|ies)|restrictions|guardrails|safeguards)"
        "|(?:override|bypass|disable) all (?:safety|security) (?:protocols|measures|checks|controls)",
    ),
    _override(
        "system & overrid overwrit",
        r"[\[(<#*=!-] system (?:override|overwrite)|system (?:override|overwrite)\W{0,2}(?:[:\])!]|code|initiated|engaged"
        "|accepted|activated)|(?:initiate|engage|activate|begin|execute) (?:a )?system override",
    ),
    _override(
        "system & new updated revised & prompt instruct message directive",
        r"(?:new|updated|revised) system (?:prompt|instructions?|message|directives?)(?:\W{1,3}(?:is|are|follows?)\b|\W{0,2}:)",
    ),
    _override(
        "your & new real true only actual & instruct directive objective orders purpose",
        "your (?:new|real|true|only|actual) (?:instructions?|(?:prime )?directives?|objective|orders|purpose)"
        r"(?:\W{1,3}(?:is|are|now)\b|\W{0,2}:)",
    ),
    _override(
        "instruct rules guideline restrict directive filter"
        " & void obsolete cancel revok null apply valid suspend lifted disabl off",
        "(?:(?:previous|prior|earlier|above|system|original|initial|safety|your) (?:safety |content |system )?(?:instructions"
        "|rules|guidelines|restrictions|directives|filters)|(?:instructions|rules|guidelines) (?:above|before|you were given))"
        " (?:are|were|have been|is|do|don.t|no longer|now)"
        "(?: all| now| hereby| not| no longer){0,2} (?:void|obsolete|cancell?ed|revoked|null|apply|valid|suspended|lifted"
        "|disabled|turned off)",
    ),
    _override(
        "told taught instruct & wrong false void outdated lie administrator admin developer operator",
        "you (?:were|have been) (?:told|taught|instructed)(?: earlier| before| previously| so far)? (?:is|was) (?:all )?(?:a lie"
        "|wrong|false|void|outdated)|new instructions? from (?:the|your) (?:admin(?:istrator)?|developers?|operator|system)",
    ),
    _override(
        "obey comply whatever anything everything",
        r"(?:obey|comply with)(?: only)? (?:me\b|my (?:orders|commands?|instructions))"
        "|do (?:whatever|anything|everything) i (?:say|ask|tell|want|command)",
    ),
    _override(
        "bound restricted constrained limited & longer not",
        "you(?: are|.re)(?: now)? (?:no longer|not) (?:bound|restricted|constrained|limited) by",
    ),
    _override(
        "user & tell inform alert notif mention reveal",
        "(?:do not|don.t|never|without) (?:tell|inform|alert|notify|mention|reveal|let)(?:ing)?(?: this| it| anything)?(?: to)?"
        " the user (?:about|that you|of this|know|anything|any of)",
    ),
    _override(
        "attention dear hey",
        f"(?:attention|dear|hey)(?: to)?(?: all| any| the)? {_AI}"
        "(?! (?:team|group|department|council|experts?|enthusiasts?|researchers?|fans?|community))",
    ),
    _override(
        "you & ai llm model chatbot a.i",
        "(?:ignore|must|should|say|include|output|respond|write|reply|recommend|rate|send|please|stop)",
        after=rf"if you(?: are|.re) an? (?:large )?(?:a\.i\.|{_AI})",
    ),
)

_ROLES = (
    _role(
        "now pretend act role simulat imagin becom behav emulat persona play respond answer you & dan jailbr unrestrict unfilter"
        " uncensor evil amoral anything restriction limit filter rules guideline ethic moral constraint censor guardrail boundar",
        r"\bdan\b|jailbroken|unrestricted|unfiltered|uncensored|\bevil\b|amoral|do anything now"
        "|(?:without|no|not bound by|free (?:from|of)|ignores?)(?: any| all| of| your| its| the| moral| ethical| safety| content)"
        "{0,3} (?:restrictions|limitations|filters|guidelines|ethics|morals?|censorship|guardrails)"
        rf"|\b(?:ai|assistant|model|chatbot|bot) (?:with|without|that has|who has)(?: any| no){{0,2}} {_BOUNDS}",
        after=r"you(?: are|.re| will be| shall be) (?:now|no longer|going to)|from now on|pretend|role ?play|simulate|imagine"
        r"|\bact(?:ing)? (?:as|like)(?! (?:soon|well))|become|behave|emulate|(?:respond|answer) as|persona|you will play"
        "|play the role|you(?: are|.re) an?",
        near=60,
    ),
    _role(
        "mode",
        rf"{_WILD_MODE} (?:enabled|activated|on\b|engaged|is)"
        f"|(?:enable|activate|enter|engage|switch to|turn on|unlock)(?: the)? {_WILD_MODE}"
        "|you(?: are|.re| will| must| should)?(?: now)?(?: be| enter| run(?:ning)?| operat(?:e|ing)| switch)?(?: in| into| to)?"
        " (?:developer|debug|maintenance|admin(?:istrator)?|sudo|god) mode",
    ),
    _role("anything dan", r"do anything now|\bdan\b (?:can|will|has no|does not)\b|in character as dan\b"),
    _role(
        "you",
        r"\byou (?:have|know)(?: absolutely)? no (?:restrictions|rules|limits|limitations|filters|guidelines|ethics|moral)"
        r"|\byou (?:can|will|must)(?: now)? (?:answer|say|do) anything without",
    ),
)

_LEAKS = (
    _leak(
        "prompt instruct message guideline",
        "(?:(?:initial|original|hidden|secret|internal|confidential) ){0,2}(?:system (?:level )?prompts?|pre ?prompt"
        "|developer (?:message|prompt|instructions)|prompt (?:above|you (?:were|got))"
        "|(?:initial|hidden|secret|internal|confidential) (?:instructions?|prompts?|guidelines)(?! for))",
        after=f"{_TELL}(?: exactly| verbatim)? (?:(?:all|every|of|the|full|everything in|text|contents?|words|what) ){{0,5}}"
        f"(?:your|the|its|this)(?: {_WHOLE}){{0,3}}",
        near=3,
    ),
    _leak(
        "your & prompt instruct message rules",
        r"(?:system (?:message|instructions?|rules)|(?:original|initial) (?:instructions?|prompts?)|prompt\b"
        r"|instructions\b(?! (?:for|on|to|in|about|regarding|and)))",
        after=f"{_TELL} your(?: {_WHOLE}){{0,2}}",
        near=3,
    ),
    _leak(
        "above before preced prior & repeat print output copy write recite",
        "(?:repeat|print|output|copy|recite|write out|write down)(?: back| out)? (?:everything|all(?: of)?(?: the)?(?: text"
        "| words| content)?|the (?:text|words|lines|content|paragraph|sentences?|prompt|instructions)|every word)"
        "(?: that (?:is|was|came|appears))? (?:above|before this|preceding|prior to this|that precedes)",
    ),
    _leak(
        "instructions",
        "(?:what|which|repeat|list|show|print|reveal|tell me)(?: were| are)?(?: all)?(?: the)?(?: exact| original| initial)?"
        " instructions (?:that )?(?:you (?:were|have been|got|received)|given to you)",
    ),
)

_TONGUES = (
    _override(
        "ignorier vergiss vergess missacht ubergeh beachte befolge & anweisung instruktion regeln vorgaben befehl",
        r"(?:ignorier\w{0,4}|vergiss|vergesst|vergessen sie|missachte\w{0,2}|ubergeh\w{0,3}|(?:beachte|befolge)\w{0,2})~{0,4}?"
        r" (?:vorherig|bisherig|obig|fruher|vorangegangen|vorhergehend|vorig|ursprunglich|deine|system)\w{0,6}~{0,2}?"
        " (?:anweisung|instruktion|regeln|vorgaben|befehl)",
    ),
    _override(
        "ignor oubli neglig compte & instructions consignes regles directives",
        "(?:ignore[rz]?|oublie[rz]?|neglige[rz]?|(?:tiens|tenez) (?:pas|plus) compte)~{0,4}?"
        " (?:instructions|consignes|regles|directives)~{0,2}? (?:precedent|anterieur|ci dessus|initial|du systeme|systeme)",
    ),
    _override(
        "ignor olvid descart omiso & instrucciones reglas directrices indicaciones ordenes",
        r"(?:ignor\w{1,4}|olvid\w{1,4}|descart\w{1,4}|caso omiso)~{0,4}? (?:instrucciones|reglas|directrices|indicaciones"
        "|ordenes)~{0,2}? (?:anterior|previa|de arriba|del sistema|iniciales|precedentes)",
    ),
    _override(
        "ignor dimentic trascur & istruzioni regole direttive",
        r"(?:ignor\w{1,4}|dimentic\w{1,4}|trascur\w{1,4})~{0,4}? (?:istruzioni|regole|direttive)~{0,2}?"
        " (?:precedent|sopra|di sistema|iniziali|anterior)",
    ),
    _override(
        "ignor esquec desconsider & instrucoes regras diretrizes",
        r"(?:ignor\w{1,4}|esquec\w{1,4}|desconsider\w{1,4})~{0,4}? (?:instrucoes|regras|diretrizes)~{0,2}?"
        " (?:anterior|previa|acima|do sistema|iniciais)",
    ),
    _override(
        "negeer vergeet & instructies regels opdrachten",
        "(?:negeer|vergeet)~{0,3}? (?:eerdere|vorige|bovenstaande|voorgaande|oorspronkelijke)~{0,2}?"
        " (?:instructies|regels|opdrachten)",
    ),
    _override(
        "ignoruj zapomnij pomin & instrukcj polecen zasad",
        r"(?:ignoruj|zapomnij|pomin)~{0,3}? (?:poprzedni|wczesniejsz|powyzsz)\w{0,4}~{0,2}? (?:instrukcj|polecen|zasad)",
    ),
    _override(
        "talimat kural komut & yok gormez unut",
        r"(?:onceki|yukaridaki|sistem)~{0,2}? (?:talimat|kural|komut)\w{0,8}~{0,2}? (?:yok say|gormezden|unut)",
    ),
    _override(
        "игнорируи забудь отмени следуи & инструкц указан правил команд",
        r"(?:игнорируи|забудь|отмени|не следуи)\w{0,3}~{0,3}?"
        r" (?:предыдущ|прежн|вышеуказанн|вышеприведенн|предшествующ|системн)\w{0,4}~{0,2}? (?:инструкц|указан|правил|команд)",
    ),
    _override(
        "忽略 无视 無視 忘记 忘記 不要理会 不要理會",
        "(?:忽略|无视|無視|忘记|忘記|不要理会|不要理會).{0,8}?(?:之前|以上|先前|前面|上述|此前|系统|系統).{0,8}?"
        "(?:指令|指示|提示|规则|規則|命令|说明|說明)",
    ),
    _override(
        "無視 忘れ 従わな & 指示 命令 ルール プロンプト",
        "(?:以前|上記|これまで|前述|先ほど|今まで|以上|システム).{0,10}?(?:指示|命令|ルール|プロンプト).{0,6}?(?:無視|忘れ|従わな)",
    ),
    _override(
        "무시 잊어 따르지 & 지시 명령 규칙 프롬프트",
        "(?:이전|위의|앞의|지금까지|시스템).{0,10}?(?:지시|명령|규칙|프롬프트).{0,8}?(?:무시|잊어|따르지)",
    ),
    _override("تجاهل & تعليمات اوامر أوامر", "تجاهل.{0,20}?(?:التعليمات|الاوامر|الأوامر|تعليمات).{0,12}?(?:السابقة|أعلاه|اعلاه)"),
)

_SIGNS = (
    _delimiter("|>", r"<\|/?[a-z][a-z0-9_▁\x20-]{1,40}\|>"),
    _delimiter(
        "inst] sys>> _prompt] _tools] tool_", r"\[/?(?:inst|system_prompt|available_tools|tool_calls|tool_results)\]|<</?sys>>"
    ),
    _delimiter("_of_turn> <bos> <extra_id_", r"<(?:start|end)_of_turn>|<bos>|<extra_id_\d"),
    _delimiter(
        "end close stop finish",
        rf"\bsystem\b|\bassistant\b|\binstruction|\b{_TO_MODEL}",
        after=r"(?:end|close|stop|finish)(?:ed|ing)?(?: of)?(?: the| this| all)?"
        "(?: untrusted| external| user| retrieved)? (?:user|inputs?|documents?|data|context|prompt|conversation|message|text"
        "|content|query|file|email|article|search results?|tool (?:output|result)s?)(?: input| data| content| message| section)?"
        r"[\x20\t]{0,4}(?:[-=#*_`]{2,8}|[>\]})])",
    ),
    _speaker(
        "system assistant developer admin openai anthropic root",
        r"(?:^|\n|[.!?>\])*=-]\x20)[\x20\t>*#\[(<=-]{0,8}(?:(?:urgent|important|new) )?"
        r"(?:system|assistant|developer|admin(?:istrator)?|root|openai|anthropic)"
        r"(?: (?:prompt|message|instructions?|note|override|notice|command|update|alert))?[\x20\t]{0,4}[:>\])*=-]{1,4}"
        rf"(?: (?:important|note|attention|urgent))? {_TO_MODEL}",
    ),
    _speaker(
        "##",
        r"#{2,4}\x20?(?:instructions?|assistant|response|system)\x20?:",
        after=r"#{2,4}\x20?(?:system|instructions?|human|user|assistant|input)\x20?:",
        near=400,
    ),
    _speaker("human: & assistant:", r"\n\x20{0,4}assistant:", after=r"(?:^|\n)\x20{0,4}human:", near=400),
    _speaker("role", r"[\"'\\]role[\"'\\]{1,3}\s{0,4}:\s{0,4}[\"'\\]{1,3}(?:system|developer)[\"'\\]"),
    _speaker(
        "begin start",
        r"[-=#*\[<({]{1,8} (?:begin|start)(?:ning)?(?: of)?(?: the| new)? (?:system|admin|developer|privileged|trusted)"
        r"(?: (?:prompt|message|instructions?|section))? [-=#*\]>)}]",
    ),
)

RULES: Final = (*_OVERRIDES, *_ROLES, *_LEAKS, *_TONGUES, *_SIGNS)

# A text is only worth reading in another way if that brings words like these to light.
TELLTALES: Final = (
    *("ignor", "disregard", "forget", "previous", "instruct", "prompt", "system", "pretend", "jailbr", "overrid", "reveal"),
    *(
        "guideline",
        "restriction",
        "anything",
        "everything",
        "assistant",
        "developer",
        "filter",
        "the user",
        "you are",
        "you obey",
    ),
)

# The sections of a prompt, our own and those that many use. `$1` is there if the tag closes its section.
SECTION: Final = re.compile(
    r"<(/?)(skills?|system(?:[_-](?:prompt|message|instructions?|reminder))?|instructions?|prompt|user(?:[_-](?:input|message|query))?"
    r"|inputs?|memor(?:y|ies)|context|documents?|untrusted|tool[_-](?:result|output|response)s?|function[_-]results?|conversation"
    r"|assistant|constraints|identity|governance|guardrails)(?:\s[^<>]{0,100})?>"
)
