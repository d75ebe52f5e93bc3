"""Animals whose calls come as text, or get lost."""

import json
from typing import ClassVar

from aiohttp import web
from tests.providers.backend import DONE, chunk, sse
from tests.zoo.animal import UTC, Animal, Learner, Outcome, Talker, outputs, say

from mainspring.core.items import Json

CALL = f'{{"name": "get_time", "arguments": {UTC}}}'
HERMES = f"<tool_call>\n{CALL}\n</tool_call>"


class HermesCallAsText(Animal):
    """Quirk 16: a call is text in `<tool_call>` tags (vLLM without a parser); own measurement with Qwen2.5-Coder."""

    number = 16

    def first(self, body: Json) -> bytes:
        return say("<tool_call>\n", f'{{"name": "get_time", "arguments": {UTC}}}', "\n</tool_call>")


class QwenXmlCallAsText(Animal):
    """Quirk 17: a call is text in XML (LM Studio, Qwen3-Coder). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2115"""

    number = 17

    def first(self, body: Json) -> bytes:
        return say("<tool_call>\n<function=get_time>\n", "<parameter=zone>\nUTC\n</parameter>\n", "</function>\n</tool_call>")


class FencedCallAsText(Animal):
    """Quirk 18: a call is JSON in a fenced block; own measurement with small coding models."""

    number = 18

    def first(self, body: Json) -> bytes:
        return say("```json\n", f'{{"name": "get_time", "arguments": {UTC}}}', "\n```")


class BareCallAsText(Animal):
    """Quirk 19: a call is bare JSON (llama3.1 on Ollama). https://github.com/BerriAI/litellm/issues/12481"""

    number = 19

    def first(self, body: Json) -> bytes:
        return say(f'{{"name": "get_time", "parameters": {UTC}}}')


class HarmonyChannels(Animal):
    """Quirk 20: harmony's channels are in the text (mlx-lm, Ollama). https://github.com/ml-explore/mlx-lm/pull/1867"""

    number = 20

    def first(self, body: Json) -> bytes:
        thought = "<|channel|>analysis<|message|>I must look.<|end|><|start|>assistant"
        return say(thought, "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>", UTC, "<|call|>")

    def last(self, body: Json) -> bytes:
        return say("<|channel|>final<|message|>", "It is noon.", "<|return|>")


class CallWithinReasoning(Animal):
    """Quirk 21: the call is inside the reasoning (Qwen3.5 and Nemotron on vLLM). https://github.com/vllm-project/vllm/pull/55759"""

    number = 21

    def first(self, body: Json) -> bytes:
        leaked = f'I must look.\n<tool_call>\n{{"name": "get_time", "arguments": {UTC}}}\n</tool_call>'
        return sse(chunk({"reasoning_content": leaked}), chunk(finish="stop")) + DONE


class ChannelWithinReasoning(Animal):
    """Quirk 21: the reasoning goes on in the channel of a call (gpt-oss on vLLM). https://github.com/vllm-project/vllm/issues/32587"""

    number = 21

    def first(self, body: Json) -> bytes:
        header = "<|end|><|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"
        return sse(chunk({"reasoning_content": f"I must look.{header}{UTC}<|call|>"}), chunk(finish="stop")) + DONE


class CallsOnlyUnstreamed(Animal):
    """Quirk 22: calls get lost when streamed, and are there when not (Ollama). https://github.com/ollama/ollama/issues/9632"""

    number = 22

    def first(self, body: Json) -> bytes | Json:
        if body.get("stream"):
            return say("")
        made = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": UTC}}
        message = {"role": "assistant", "content": None, "tool_calls": [made]}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


class CallNotRead(Animal):
    """Quirk 111: the server could not read the call, and refuses with what its model wrote (Groq's `failed_generation`).
    https://github.com/tashfeenahmed/freellmapi/pull/291"""

    number = 111

    def fail(self, body: Json) -> Json:
        error = {"message": "Failed to call a function. Please adjust your prompt.", "code": "tool_use_failed"}
        name = body["tools"][0]["function"]["name"] if "tools" in body else "get_time"
        return {"error": {**error, "failed_generation": f"<function={name}={UTC}</function>", "status_code": 400}}

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        is_refused = "tools" in body and body.get("tool_choice") != "none" and not outputs(body)
        return web.json_response(self.fail(body), status=400) if is_refused else await super().handle(request)


class CallNotReadInStream(CallNotRead):
    """Quirk 111: the same within a stream. https://github.com/anomalyco/opencode/issues/1018"""

    def first(self, body: Json) -> bytes:
        return b"event: error\n" + sse(self.fail(body))

    async def handle(self, request: web.Request) -> web.Response:
        return await Animal.handle(self, request)


class CallsLostBehindWords(Learner):
    """Quirk 22: calls get lost in the stream behind words, and only the reason of the end tells of them (Ollama). The words were
    told by then. https://github.com/ollama/ollama/issues/9632"""

    number = 22
    code = "provider_bad_output"
    zones: ClassVar = ["UTC"]

    def first(self, body: Json) -> bytes | Json:
        if body.get("stream"):
            return say("Let me look.", finish="tool_calls")
        return CallsOnlyUnstreamed().first(body)

    def last(self, body: Json) -> bytes | Json:
        return say("It is noon.")


class CallWithoutFunction(Animal):
    """Quirk 13: name and arguments stand beside the id of a call, without a `function`; supposed, without a source."""

    number = 13

    def first(self, body: Json) -> bytes:
        made = {"index": 0, "id": "a", "name": "get_time", "arguments": {"zone": "UTC"}}
        return sse(chunk({"tool_calls": [made]}), chunk(finish="tool_calls")) + DONE


class BlockCalledAsTheTool(Animal):
    """Quirk 18: a call is a block of code whose label is the tool's name; supposed, without a source."""

    number = 18

    def first(self, body: Json) -> bytes:
        return say("``", "`get_time", "\n", UTC, "\n``", "`")


class OutputMadeUp(Animal):
    """Quirk 112: the model makes up what its tool says, and goes on (small models on text-generation-webui and KoboldCpp, without
    stop sequences); supposed, without a source."""

    number = 112

    def first(self, body: Json) -> bytes:
        return say(HERMES, "\nTo", "ol: mid", "night\nAssis", "tant: It is midnight.\n", "User: Thanks!\n")


class TurnsMadeUp(Talker):
    """Quirk 112: the model makes up the next turns behind its answer (base models, without stop sequences);
    supposed, without a source."""

    number = 112

    def last(self, body: Json) -> bytes:
        return say("It is ", "noon.\n", "\nUs", "er: Thank you!\nAssist", "ant: You are ", "welcome.\n", "User: Bye.")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text.strip()) == ("completed", "It is noon.")
        assert [(each.field, each.kind) for each in outcome.trace.execution[-1].adaptations] == [("text", "recovered")]


class JsonWithSlips(Talker):
    """Quirk 113: JSON that was asked for has a comma too many, Python's words, and words behind it (small models without a
    grammar); supposed, without a source."""

    number = 113
    request: ClassVar = {"text": {"format": {"type": "json_object"}}}

    def last(self, body: Json) -> bytes:
        return say('{"city": "Os', 'lo", "is_big": Tr', "ue,", "}\n\nLet me ", "know.")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", '{"city": "Oslo", "is_big": true}')


class SectionsWithoutMark(Animal):
    """Quirk 78: a turn is in sections, and the mark of the first was in the prompt (Functionary 3).
    code read in its template."""

    number = 78

    def first(self, body: Json) -> bytes:
        return say("all", "\nLet me look.", "\n>>", ">get", "_time\n", UTC)

    def last(self, body: Json) -> bytes:
        return say("all\n", "It is ", "noon.")

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.output_text.removeprefix("Let me look.\n") == "It is noon."
        assert (outcome.response.status, outcome.zones) == ("completed", ["UTC"])


class SectionsInTokens(SectionsWithoutMark):
    """Quirk 78: a turn is in sections, in tokens (Functionary 2); code read in its template."""

    number = 78

    def first(self, body: Json) -> bytes:
        call = f"<|from|>assistant\n<|recipient|>get_time\n<|content|>{UTC}<|stop|>"
        return say("<|from|>", "assistant\n<|recipient|>all\n<|content|>", "Let me look.\n", *call.partition("_"))

    def last(self, body: Json) -> bytes:
        return say("<|from|>assistant\n<|recip", "ient|>all\n<|content|>It is ", "noon.", "<|stop|>")


XML = "<function=get_time>\n<parameter=zone>\nUTC\n</parameter>\n</function>"
# Forms of calls that families of models were trained to write; own measurement and code read in the parsers of vLLM and SGLang.
FORMS = {
    "a list in Gemma's block": '```tool_code\n[get_time(zone="UTC")]\n```',
    "JSON of smolagents'": f"Thought: I must look.\nAction:\n{CALL}<end_code>",
    "ReAct with names and values": 'Thought: I must look.\nAction: get_time\nAction Input: zone="UTC"',
    "Hunyuan's block": f"<tool_calls>\n<tool_call>function<tool_sep>get_time\n```json\n{UTC}\n```\n</tool_call>\n</tool_calls>",
    "words behind, and a token": '<|tool_call_start|>[get_time(zone="UTC")]<|tool_call_end|>Checking the time.<|im_end|>',
    "lines of Python's": 'get_time(zone="UTC")\nget_time(zone="UTC")',
    "JSON behind words": f"Let me look.\n\n{CALL}",
    "two blocks": f"```json\n{CALL}\n```\n\n```json\n{CALL}\n```",
    "GLM without its tag": "get_time\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n</tool_call>",
    "Hunyuan": "<tool_calls><tool_call>get_time<tool_sep><arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>"
    "</tool_calls>",
    "FunctionGemma's next token": "<start_function_call>call:get_time{zone:<escape>UTC<escape>}<end_function_call>"
    "<start_function_response>",
    "Reka": f"{HERMES}\n\n<sep>",
    "JSON-RPC": f'{{"jsonrpc": "2.0", "method": "get_time", "params": {UTC}, "id": 1}}',
    "words before": f"Let me look.\n\n{HERMES}",
    "a sentence before": f"Let me look. {HERMES}",
    "thoughts before": f"<think>I must look.</think>\n{HERMES}",
    "no end": f"<tool_call>\n{CALL}",
    "an output made up": f"{HERMES}\n<tool_response>\nnoon\n</tool_response>\nIt is midnight.",
    "Python": "<tool_call>{'name': 'get_time', 'arguments': {'zone': 'UTC'}}</tool_call>",
    "JSON in JSON": '<tool_call>{"name": "get_time", "arguments": "{\\"zone\\": \\"UTC\\"}"}</tool_call>',
    "XML alone": XML,
    "XML with JSON": f"<function=get_time>{UTC}</function>",
    "invoke": '<minimax:tool_call>\n<invoke name="get_time">'
    '\n<parameter name="zone">UTC</parameter>\n</invoke>\n</minimax:tool_call>',
    "GLM": "<tool_call>get_time\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n</tool_call>",
    "Mistral": f"[TOOL_CALLS][{CALL}]",
    "Mistral, newer": f"[TOOL_CALLS]get_time[ARGS]{UTC}",
    "Kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
    f"<|tool_call_argument_begin|>{UTC}<|tool_call_end|><|tool_calls_section_end|>",
    "DeepSeek": "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>get_time\n"
    f"```json\n{UTC}\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    "Llama": f'<|python_tag|>{{"name": "get_time", "parameters": {UTC}}}<|eom_id|>',
    "Llama 4": '[get_time(zone="UTC")]',
    "Gemma 3": '```tool_code\nprint(default_api.get_time(zone="UTC"))\n```',
    "Gemma 3 and words": 'Let me look.\n\n```tool_code\nget_time(zone="UTC")\n```',
    "a block of calls and words": f"Let me look.\n```tool_call\n{CALL}\n```",
    "Python in a tag": '<tool_code>get_time(zone="UTC")</tool_code>',
    "Gemma 4": '<|tool_call>call:get_time{zone:<|"|>UTC<|"|>}<tool_call|>',
    "FunctionGemma": "<start_function_call>call:get_time{zone:<escape>UTC<escape>}<end_function_call>",
    "LFM2": '<|tool_call_start|>[get_time(zone="UTC")]<|tool_call_end|>',
    "OLMo 3": '<function_calls>\nget_time(zone="UTC")\n</function_calls>',
    "DeepSeek 3.2": '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="get_time">\n'
    '<\uff5cDSML\uff5cparameter name="zone" string="true">UTC</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n'
    "</\uff5cDSML\uff5cfunction_calls>",
    "Qwen 2.5 Coder": f"<tools>\n{CALL}\n</tools>",
    "Seed": f"<seed:tool_call>\n{XML}\n</seed:tool_call>",
    "Nemotron": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "InternLM": f'<|action_start|><|plugin|>{{"name": "get_time", "parameters": {UTC}}}<|action_end|>',
    "Command": f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "get_time", "parameters": {UTC}}}\n]<|END_ACTION|>',
    "Apertus": f'<|tools_prefix|>[{{"get_time": {UTC}}}]<|tools_suffix|>',
    "LongCat": "<longcat_tool_call>get_time\n<longcat_arg_key>zone</longcat_arg_key>\n"
    "<longcat_arg_value>UTC</longcat_arg_value>\n</longcat_tool_call>",
    "Llama at Groq": '<function=get_time{"zone": "UTC"}</function>',
    "Step 3": "<\uff5ctool_calls_begin\uff5c><\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c>"
    '<steptml:invoke name="get_time"><steptml:parameter name="zone">UTC</steptml:parameter></steptml:invoke>'
    "<\uff5ctool_call_end\uff5c><\uff5ctool_calls_end\uff5c>",
    "Llama 4 and words": 'Let me look.\n\n[get_time(zone="UTC")]',
    "Phi 4 mini": f"functools[{CALL}]",
    "Phi 4 mini and words": f"Let me look.\nfunctools[{CALL}]",
    "LM Studio": f"[TOOL_REQUEST]{CALL}[END_TOOL_REQUEST]",
    "in upper case": f"<TOOL_CALL>{CALL}</TOOL_CALL>",
    "no brace": f"<tool_call>\n{CALL[:-1]}\n</tool_call>",
    "a comma": '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC",},}\n</tool_call>',
    "a list of arguments": '<tool_call>{"name": "get_time", "arguments": [{"zone": "UTC"}]}</tool_call>',
    "another form of its name": '<tool_call>{"name": "GetTime", "arguments": {"zone": "UTC"}}</tool_call>',
    "quotes of Gemma's": '<tool_call>{"name": "get_time", "arguments": {"zone": "<|\\"|>UTC<|\\"|>"}}</tool_call>',
    "Glaive": f"<functioncall> {CALL} <|endoftext|>",
    "an end and a made-up turn": f"{HERMES}<|im_end|>\n<|im_start|>user\nnoon<|im_end|>",
    "a list": f"[{CALL}]",
    "as on the wire": f'{{"type": "function", "function": {CALL}}}',
    "a message as on the wire": f'{{"role": "assistant", "content": null, "tool_calls": [{{"function": {CALL}}}]}}',
    "an action": f'{{"action": "get_time", "action_input": {UTC}}}',
    "a block of many calls": f"```tool_calls\n[{CALL}]\n```",
    "a block in the tag": f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>",
    "a brace too many": f"<tool_call>\n{CALL}}}\n</tool_call>",
    "a name in the tag": f'<tool_call name="get_time">{UTC}</tool_call>',
    "elements": f"<tool_call>\n<name>get_time</name>\n<arguments>{UTC}</arguments>\n</tool_call>",
    "Claude 2": "<function_calls>\n<invoke>\n<tool_name>get_time</tool_name>\n<parameters>\n<zone>UTC</zone>\n</parameters>\n"
    "</invoke>\n</function_calls>",
    "MiroThinker": "<use_mcp_tool>\n<server_name>clock</server_name>\n<tool_name>get_time</tool_name>\n"
    f"<arguments>\n{UTC}\n</arguments>\n</use_mcp_tool>",
    "an element called as the tool": "<tool_call>\n<get_time>\n<zone>UTC</zone>\n</get_time>\n</tool_call>",
    "brackets and JSON": f"<tool_call>get_time({UTC})</tool_call>",
    "a tool's tag": f"<tool>{CALL}</tool>",
    "an order's tag": f"<execute_tool>{CALL}</execute_tool>",
    "a tag in brackets": f"[tool_call]\n{CALL}\n[/tool_call]",
    "Mistral with an id": f"[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{UTC}",
    "Kimi, of one call": "<|tool_call_section_begin|><|tool_call_begin|>functions.get_time:0"
    f"<|tool_call_argument_begin|>{UTC}<|tool_call_end|><|tool_call_section_end|>",
    "DeepSeek in ASCII": "<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>get_time\n"
    f"```json\n{UTC}\n```<|tool▁call▁end|><|tool▁calls▁end|>",
    "DeepSeek 3.2 in ASCII": '<|DSML|function_calls>\n<|DSML|invoke name="get_time">\n'
    '<|DSML|parameter name="zone" string="true">UTC</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|function_calls>',
    "DeepSeek 4": '<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name="get_time">\n'
    '<\uff5cDSML\uff5cparameter name="zone" string="true">UTC</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n'
    "</\uff5cDSML\uff5ctool_calls>",
    "Llama 4 with tokens": '<|python_start|>[get_time(zone="UTC")]<|python_end|><|eom|>',
    "Llama's own tools": '<|python_tag|>get_time.call(zone="UTC")',
    "Solar": "<|tool_calls|><|tool_call:begin|>dnq7x2vk1a<|tool_call:name|>get_time"
    f"<|tool_call:args|>{UTC}<|tool_call:end|><|calls|>",
    "Pangu": f"[unused11][{CALL}][unused12]",
    "Gorilla": '<<function>>get_time(zone="UTC")',
    "GigaChat": f"function call<|role_sep|>\n{CALL}<|message_sep|>",
    # Nothing but a tool, arguments that fit it, and words of the trade, as the templates of these families are known to write
    # them; those without a family are supposed.
    "ReAct": f"Thought: I must look.\nAction: get_time\nAction Input: {UTC}\nObservation:",
    "ReAct without a thought": f"Action: get_time\nAction Input: {UTC}",
    "an observation made up": f"Action: get_time\nAction Input: {UTC}\nObservation: It is midnight.\nFinal Answer: midnight",
    "a list of actions": f'Action: ```json\n[\n  {{"tool_name": "get_time", "parameters": {UTC}}}\n]\n```',
    "Qwen's agents": f"✿FUNCTION✿: get_time\n✿ARGS✿: {UTC}\n✿RESULT✿: ",
    "Functionary 3": f">>>get_time\n{UTC}",
    "words to all": f">>>all\nLet me look.>>>get_time\n{UTC}",
    "words to all without the first mark": f"all\nLet me look.\n>>>get_time\n{UTC}",
    "words to all in a line, without the first mark": f"all\nLet me look.>>>get_time\n{UTC}<|eot_id|>",
    "words without a section": f"Let me look.\n>>>get_time\n{UTC}",
    "two sections": f"get_time\n{UTC}>>>get_time\n{UTC}",
    "version 2 in a line": f"<|from|>assistant<|recipient|>get_time<|content|>{UTC}<|stop|>",
    "version 2 with its header": "<|from|>assistant\n<|recipient|>all\n<|content|>Let me look.\n"
    f"<|from|>assistant\n<|recipient|>get_time\n<|content|>{UTC}<|stop|>",
    "version 2 with its header, in a line": "<|from|>assistant<|recipient|>all<|content|>Let me look."
    f"<|from|>assistant<|recipient|>get_time<|content|>{UTC}",
    "two sections of version 2": f"<|recipient|>get_time\n<|content|>{UTC}\n"
    f"<|from|>assistant\n<|recipient|>get_time\n<|content|>{UTC}",
    "words to all in version 2": f"all\n<|content|>Let me look.\n<|from|>assistant\n<|recipient|>get_time\n<|content|>{UTC}",
    "a namespace behind words": f"Let me look.\n<acme:tool_call>\n{CALL}\n</acme:tool_call>",
    "all in a namespace": 'Let me look.\n<zed:function_calls>\n<zed:invoke name="get_time">\n<zed:parameter name="zone">UTC'
    "</zed:parameter>\n</zed:invoke>\n</zed:function_calls>",
    "XML in a namespace": 'Let me look.\n<acme:tool_call>\n<invoke name="get_time">\n<parameter name="zone">UTC</parameter>\n'
    "</invoke>\n</acme:tool_call>",
    "a row of Python's": 'get_time(zone="UTC"), get_time(zone="UTC")',
    "a header and a space": f"<|im_start|>assistant\n functools[{CALL}]<|im_end|>",
    "Grok": '<xai:function_call name="get_time"><parameter name="zone">UTC</parameter></xai:function_call>',
    "Workers AI": f'{{"response": "", "tool_calls": [{CALL}]}}',
    "an observation with a number": f"Action: get_time\nAction Input: {UTC}\n\nObservation 1: midnight",
    "an instruction made up": f"Let me look.\n{CALL}\n### Input:\nmidnight\n### Response:\nIt is midnight.",
    "Gemma's header before a block": '<start_of_turn>model\n```tool_code\nget_time(zone="UTC")\n```<end_of_turn>',
    "Granite's header before a call": f"<|start_of_role|>assistant<|tool_call|>[{CALL}]",
    "Mistral's tag before a call": f"[/INST]{HERMES}",
    # Harmony whose tokens are lost, all or some; code read in its template, and supposed.
    "harmony without tokens, on lines": f"analysis\nWe need to look.\nassistantcommentary to=functions.get_time json\n{UTC}",
    "harmony with a word for the code": f"analysisWe need to look.assistantcommentary to=functions.get_time code{UTC}",
    "harmony with one token": f"analysisWe need to look.assistantcommentary to=functions.get_time <|constrain|>json{UTC}",
    "harmony without the role": f"analysisWe need to look.commentary to=functions.get_time json{UTC}",
    "harmony with a space": f"analysisWe need to look.assistant commentary to=functions.get_time json{UTC}",
    "harmony with the recipient first": f"analysisWe need to look.assistant to=functions.get_time commentary json{UTC}",
    "harmony without its first token": "analysis<|message|>We need to look.<|end|><|start|>assistant<|channel|>commentary"
    f" to=functions.get_time <|constrain|>json<|message|>{UTC}<|call|>",
    "harmony's preamble without tokens": f"assistantcommentaryLet me look.assistantcommentary to=functions.get_time json{UTC}",
    # What a model makes up behind its call, with labels in plain words; supposed, without a source.
    "a tool's turn made up": f"{HERMES}\nTool: midnight\nAssistant: It is midnight.",
    "a tool's turn made up behind words": f"I will look it up.\n\n{HERMES}\n\nTool result: midnight\n\nIt is midnight.",
    "a tool's turn made up behind a sentence": f"The clock knows.\n{HERMES}\nTool: midnight\nAssistant: It is midnight.",
    "an observation made up behind tags": f"{HERMES}\nObservation: midnight\nFinal Answer: midnight",
    "a tool's turn made up behind JSON": f"{CALL}\nTool: midnight\nAssistant: It is midnight.\nUser: Thanks!",
    "a tool's turn made up behind a block": f"```json\n{CALL}\n```\nTool: midnight\nAssistant: It is midnight.",
    "a tool's turn made up behind Python": "get_time(zone='UTC')\nTool: midnight (so late)\nAssistant: It is midnight.",
    "a block made up": f"```get_time\n{UTC}\n```\n```output\nmidnight\n```\nIt is midnight.",
    "an output in brackets made up": f"{HERMES}\n[TOOL_RESULTS]midnight[/TOOL_RESULTS]It is midnight.",
    "a user's turn made up": f"{HERMES}\n\nUser: Thanks!\nAssistant: You are welcome.",
    "a turn with a label": f"Assistant: get_time({UTC})\nTool: midnight\nAssistant: It is midnight.",
    "a call and its response": f"Tool call: get_time({UTC})\nTool response: midnight\nAssistant: It is midnight.",
    # Blocks whose label is the name of the tool, nothing, or another word of the trade; supposed, without a source.
    "a block called as the tool": f"```get_time\n{UTC}\n```",
    "a block called as the tool behind words": f"I will look it up.\n\n```get_time\n{UTC}\n```",
    "a block called as the tool behind a colon": f"Let me look:\n```get_time\n{UTC}\n```",
    "a block called as the tool and a promise": f"```get_time\n{UTC}\n```\nI will tell you as soon as I know.",
    "a block called as the tool that nobody closes": f"```get_time\n{UTC}",
    "a block in a line": f"```get_time {UTC}```",
    "keys and values in a block": "```get_time\nzone: UTC\n```",
    "names and values in a block": '```get_time\nzone="UTC"\n```',
    "the call of a block called as the tool": '```get_time\nget_time(zone="UTC")\n```',
    "a block with a namespace": f"```functions.get_time\n{UTC}\n```",
    "a block of JSON with its name": f"```json get_time\n{UTC}\n```",
    "a name in a block of code": f"```tool_code\nget_time\n{UTC}\n```",
    "Python in a block of calls": '```tool_call\nget_time(zone="UTC")\n```',
    "a block without a label behind words": f"Let me look.\n\n```\n{CALL}\n```",
    "Python in a block without a label": '```\nget_time(zone="UTC")\n```',
    "a block of a function": f"```function\n{CALL}\n```",
    "a block of a call with a dash": f"Checking the time.\n```tool-call\n{CALL}\n```",
    "two blocks called as the tool": f"```get_time\n{UTC}\n```\n\n```get_time\n{UTC}\n```",
    "a tag with a dash": f"<tool-call>{CALL}</tool-call>",
    "a tag for APIs": f"<api_call>{CALL}</api_call>",
    "a short tag": f"<fn>get_time({UTC})</fn>",
    "a tag to use": f"<use_tool>\n<tool_name>get_time</tool_name>\n<arguments>\n{UTC}\n</arguments>\n</use_tool>",
    "braces of a template": '<tool_call>\n{{"name": "get_time", "arguments": {{"zone": "UTC"}}}}\n</tool_call>',
    "Functionary 2": f"<|from|>assistant\n<|recipient|>get_time\n<|content|>{UTC}<|stop|>",
    "GLM 4": f"get_time\n{UTC}",
    "ChatGLM": "get_time\n```python\ntool_call(zone='UTC')\n```",
    "Raven": "Call: get_time(zone='UTC')<bot_end>",
    "Mistral without brackets": f"TOOL_CALLS[{CALL}]",
    "Python alone": 'get_time(zone="UTC")',
    "Python by place": 'get_time("UTC")',
    "a call in brackets": f"[Tool call: get_time({UTC})]",
    "harmony without tokens": f"analysisI must look.assistantcommentary to=functions.get_time json{UTC}",
    "harmony's header": f"commentary to=functions.get_time json{UTC}",
    "a name as the key": f'{{"get_time": {UTC}}}',
    "a list of uses": f'{{"tool_uses": [{{"recipient_name": "functions.get_time", "parameters": {UTC}}}]}}',
    "Cline": "<get_time>\n<zone>UTC</zone>\n</get_time>",
    "Cline with JSON": f"<get_time>{UTC}</get_time>",
    "SmolLM": '<code>\nget_time(zone="UTC")\n</code>',
    "a page's signs": f"&lt;tool_call&gt;\n{CALL}\n&lt;/tool_call&gt;",
    "a block around the tags": f"```xml\n{HERMES}\n```",
    "a colon before": f"Let me look: {HERMES}",
    "words behind": f"{HERMES}\nI will tell you as soon as I know.",
    "a promise behind": '<|tool_call_start|>[get_time(zone="UTC")]<|tool_call_end|>Checking the time.',
    "a block that is announced": f"I will look it up.\n\n```json\n{CALL}\n```",
    "a tool that is announced": f"Calling tool get_time with arguments {UTC}",
    "attributes": '<get_time zone="UTC" />',
    "a tag with an id": f'<tool_call id="1">\n{CALL}\n</tool_call>',
    "a list that nobody closes": f"[TOOL_CALLS] [{CALL}",
    "keys in other case": f'{{"Name": "get_time", "Arguments": {UTC}}}',
    "ReAct behind words": f"I must look.\nAction: get_time\nAction Input: {UTC}",
    "labels in bold": f"**Action:** get_time\n**Action Input:** {UTC}<|im_end|>",
    "a block and a token": '```tool_code\nget_time(zone="UTC")\n```</s>',
    "a call for an answer": f"<think>I must look.</think><answer>{HERMES}</answer>",
    "a writer's quotes": HERMES.replace('": ', "\u201d: ").replace('"', "\u201c"),
    # Code that consists of calls; forms of prompts for agents; other vendors' JSON, as models write it from memory.
    "smolagents": 'Thought: I must look.\nCode:\n```py\ntime = get_time(zone="UTC")\nprint(time)\n```<end_code>',
    "smolagents with a tag": "Thought: I must look.\n<code>\nprint(get_time('UTC'))\n</code>",
    "code that keeps its result": '```tool_code\nresult = get_time("UTC")\nprint(f"It is {result}")\n```',
    "a list by place": '[get_time("UTC")]',
    "a list without quotes": "[get_time(UTC)]",
    "a list without quotes, by name": "[get_time(zone=UTC)]",
    "Python printed": 'print(get_time(zone="UTC"))',
    "a tag and Python by place": '<|python_tag|>get_time("UTC")',
    "ReAct with a word": "Thought: I must look.\nAction: get_time\nAction Input: UTC\nObservation:",
    "ReAct as it was first written": "Thought: I must look.\nAction: get_time[UTC]",
    "ReAct with a pause": f"Thought: I must look.\nAction: get_time\nAction Input: {UTC}\nPAUSE",
    "LangChain's XML": "<tool>get_time</tool><tool_input>UTC</tool_input>",
    "a thought within": f'{{"thought": "I look.", "action": "get_time", "action_input": {UTC}}}',
    "AutoGPT": f'{{"thoughts": {{"text": "I look."}}, "command": {{"name": "get_time", "args": {UTC}}}}}',
    "arguments beside the name": '{"tool": "get_time", "zone": "UTC"}',
    "Claude's block": f'{{"type": "tool_use", "id": "a", "name": "get_time", "input": {UTC}}}',
    "Gemini's part": f'{{"functionCall": {{"name": "get_time", "args": {UTC}}}}}',
    "an id first": f'[{{"id": "a", "type": "function", "function": {CALL}}}]',
    "a block behind a colon": f"Let me look:\n\n```json\n{CALL}\n```",
    "two braces": f"<tool_call>\n{{{CALL}}}\n</tool_call>",
    "a tool within": f'{{"tool": {CALL}}}',
    # As models write them that were trained on code, or that encode JSON once too often; supposed, without a source.
    "a script": '```js\nget_time({zone: "UTC"})\n```',
    "a script that keeps its result": "```typescript\nconst time = await functions.get_time({ zone: 'UTC' });"
    "\nconsole.log(time);\n```",
    "a script without a block": 'get_time({zone: "UTC"});',
    "a namespace": f"functions.get_time({UTC})",
    "a text in JSON": json.dumps(CALL),
    "a text in a text in JSON": json.dumps(json.dumps(CALL)),
    "a text in a tag": f"<tool_call>{json.dumps(CALL)}</tool_call>",
    "a text in a block": f"```json\n{json.dumps(CALL)}\n```",
    "a list of texts": json.dumps([CALL]),
    "a text and its arguments": json.dumps(json.dumps({"name": "get_time", "arguments": UTC})),
    "JSON5": '```json5\n{name: "get_time", arguments: {zone: "UTC"}}\n```',
    "a block in upper case": f"```JSON\n{CALL}\n```",
    "a tool's element in a block": "```xml\n<get_time>\n<zone>UTC</zone>\n</get_time>\n```",
    "elements for parameters": '<function_calls>\n<invoke name="get_time">\n<zone>UTC</zone>\n</invoke>\n</function_calls>',
    "code that awaits": '```tool_code\nawait get_time(zone="UTC")\n```',
    "a result made up": f"{CALL}\n\nResult: midnight",
    "a token before the tags": f"<s>{HERMES}</s>",
    # What families of models write, and what the next ones may; tokens and tags that no table has, supposed, without a source.
    "OLMo 3 in lines": '<function_calls>\nget_time(zone="UTC")\nget_time(zone="UTC")\n</function_calls>',
    "HyperCLOVA": f" -> tool/function_call\n[{CALL}]<|im_end|>",
    "LongCat's end": f"<longcat_tool_call>\n{CALL}\n</longcat_tool_call></longcat_s>",
    "Llama 4's header": f"<|header_start|>assistant<|header_end|>\n\n{CALL}<|eot|>",
    "Bedrock's block": f'{{"toolUse": {{"toolUseId": "x", "name": "get_time", "input": {UTC}}}}}',
    "a function that nobody closes": "<function=get_time>\n<parameter=zone>\nUTC\n</parameter>\n</tool_call>",
    "parameters with short names": '<tool name="get_time"><param name="zone">UTC</param></tool>',
    "calls within calls": '<tool_calls>\n<tool_call name="get_time">\n<arg name="zone">UTC</arg>\n</tool_call>\n</tool_calls>',
    "attributes of a call": '<tool_call name="get_time" zone="UTC" />',
    "another namespace": '<any:tool_call>\n<invoke name="get_time">'
    '\n<parameter name="zone">UTC</parameter>\n</invoke>\n</any:tool_call>',
    "a block of tool use": f"```tool_use\n{CALL}\n```",
    "tokens with other words": f"<|call|>functions.get_time<|message|>{UTC}<|end|>",
    "ReAct in bold": f"**Thought:** I must look.\n**Action:** get_time\n**Action Input:** {UTC}",
    "words before and behind": f"Let me look.\n\n{HERMES}\n\nI will tell you as soon as I know.",
    "an id for a name": f"<|tool_calls_section_begin|><|tool_call_begin|>call_get_time_0<|tool_call_argument_begin|>{UTC}"
    "<|tool_call_end|><|tool_calls_section_end|>",
}
# What only looks like a call.
TWINS = {
    "an example": f"Example tool call:\n{HERMES}",
    "thoughts with a title": "<thoughts>On freedom</thoughts> is the title of the essay.",
    "lines of Python's, and others": 'get_time(zone="UTC")\nsleep(3)\nget_time(zone="UTC")',
    "JSON behind words that goes on": f"I must say what was sent.\n\n{CALL}\n\nThat was all of it, and nobody has answered.",
    "JSON of another tool": 'Let me look.\n\n{"name": "no_such_tool", "arguments": {}}',
    "a script in words": 'Call it so:\n\n```js\nget_time({zone: "UTC"})\n```',
    "a script and words": '```js\nget_time({zone: "UTC"})\n```\nThat is how.',
    "a script that does more": "```js\nfor (const zone of zones) get_time({zone: zone});\n```",
    "a script with a name": "```js\nget_time({zone: here})\n```",
    "a script of another": '```js\nget_weather({zone: "UTC"})\n```',
    "a function in a script": "```js\nfunction get_time({zone}) { return 12; }\n```",
    "a script and other arguments": '```js\nget_time({place: "UTC"})\n```',
    "a script that imports": '```js\nimport { get_time } from "clock";\nget_time({zone: "UTC"});\n```',
    "speech": '"It is noon," he said.',
    "a text of JSON": '"noon"',
    "a text of an object": json.dumps('{"a": 1}'),
    "a text of a call, and words": f"{json.dumps(CALL)} is a call in a string.",
    "struck lines": "<s>one</s>\n<s>two</s>\nthree",
    "Llama's token in words": "<s> is the token that begins a text.",
    "Llama's tokens in words": "<s> and </s> are tokens of Llama's.",
    "a role in words": "assistant\n\nis a role.",
    "JSON5 of other things": '```json5\n{name: "Ada", age: 3}\n```',
    "a closing tag behind a colon": "It is written so:\n</think>\nThat is all.",
    "Python's nothing": "None",
    "a table of calls": f"| call |\n|---|\n| `{CALL}` |",
    "a quotation": f"> {CALL}",
    "words that only mention a call": f"I should mention the tag.\n\n{HERMES}\n\nNow you know.",
    "a format, and words behind": f"I will show the format.\n\n{HERMES}\n\nI will gladly say more.",
    "another tool's element": '<tool name="hammer"><param name="size">3</param></tool>',
    "a tool's description as elements": '<tool name="get_time"><description>Tells the time.</description></tool>',
    "a token for thoughts that is spoken of": "<|thinking_start|> and <|thinking_end|> are tokens.",
    "a thought of Gemma's that is none": "thought\n\nnoun: an idea.",
    "thoughts in bold": "**Thought:** keep it short.\n\n**Plan:** read first, then write.",
    "another namespace's element": "<soap:call><x>1</x></soap:call>",
    "spelled out": f"Let me spell it out: {HERMES}",
    "spelled out in a block": f"Let me spell it out:\n\n```json\n{CALL}\n```",
    "shown last": f"A call looks like this:\n\n{HERMES}",
    "for instance": f"For instance:\n{HERMES}",
    "a sample": f"I'll give you a sample:\n{HERMES}",
    "how one would ask": f"Here is how I would ask:\n\n{HERMES}",
    "walked through": f"Let me walk you through it.\n\n{CALL}",
    "code behind a thought": "Thought: A penny for it.\nCode:\n```py\nprint('hi')\n```",
    "code of Python's": '```python\nresult = get_time(zone="UTC")\nprint(result)\n```',
    "code that does more": "```tool_code\nfor zone in zones:\n    get_time(zone)\n```",
    "a thought that is quoted": "Thought: I think, therefore I am.\n\nThat was Descartes, and not I.",
    "ReAct's brackets in words": "Action: get_time[zone] is the notation.",
    "arguments described": '{"name": "get_time", "description": "Tells the time.", "zone": "UTC"}',
    "a thought and no tool": '{"thought": "I wonder", "action": "walk"}',
    "a tag between words": "Write </think> at the end, then the answer.",
    "a tag behind a sentence": "It has thought. </think> closes it.",
    "ReAct in words": f"ReAct agents write\nAction: get_time\nAction Input: {UTC}\nand wait.",
    "ReAct and words": f"Action: get_time\nAction Input: {UTC}\nThat is how ReAct agents call.",
    "ReAct explained": f"Write this:\n\nAction: get_time\nAction Input: {UTC}\nObservation: the time\n\nand so on.",
    "Python in quotes": '`get_time(zone="UTC")`',
    "attributes of another": '<get_weather zone="UTC" />',
    "a message of another": '{"role": "user", "content": "What time is it?"}',
    "an action among words": "It is late.\nAction: call Bob\nAction: sleep",
    "Python behind a sentence": 'It writes so.\n\nget_time(zone="UTC")',
    "words in the tags of a call": "<tool_call>\nget_time tells it.\n</tool_call>",
    "an action": "Thought: I feel fine.\nAction: I will go for a walk.",
    "a call by phone": "Call: 555-1234",
    "a name alone": "get_time\n\nis the name of the tool.",
    "a name and its parameters": 'get_time\n{"zone": "the zone, as a word"}\nThese are its parameters.',
    "a name and other arguments": 'get_time\n{"place": "Oslo"}',
    "a key and no arguments": '{"get_time": "a tool"}',
    "a key and other arguments": '{"get_time": {"place": "Oslo"}}',
    "YAML": "name: get_time\narguments:\n  zone: UTC",
    "a table": "| name | arguments |\n|---|---|\n| get_time | zone |",
    "a shell of Python's": ">>> print(1)\n1",
    "another shell": ">>>all\n>>>nothing",
    "all": "all\nis well that ends well.",
    "a row of formulas": "f(x), g(x)",
    "a row of Python's and another": 'get_time(zone="UTC"), sleep(3)',
    "a fold of reasons": "<details>\n<summary>Reasons for it</summary>\nMany.\n</details>\n\nSo it is.",
    "lines of a shell's": "Try it.\n>>>print(1)\n1\n>>>get_time\n<function get_time>\n",
    "few shots": "You could prompt it with examples.\n\nUser: 2+2?\nAssistant: 4\nUser: 3+3?\nAssistant: 6\n",
    "an empty object in tags": "<tool_call>{}</tool_call>",
    "an empty object in a list in tags": "<tool_call>[{}]</tool_call>",
    "a template": "The template is:\n\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a template alone": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye",
    "a header that is spoken of": "A turn has a header. <|start_header_id|>user<|end_header_id|> is one.",
    "Mistral's tags in words": "[INST] and [/INST] stand around a turn.",
    "Mistral's tag first": "[/INST] closes it.",
    "Mistral's tag last": "Mistral's prompt ends with [/INST]",
    "Mistral's tags behind a sentence": "Write it so.\n\n[INST] Hi [/INST] Hello</s>",
    "a token in a block": "```\n<|im_start|>user\nHi\n```",
    "a role in one line": "assistant\nis a role.",
    "models": "model\nmodels\nModel",
    "Mistral's mark in words": "[TOOL_CALLS] is a token.",
    "Mistral's mark last": "What begins a call is [TOOL_CALLS]",
    "half a token in a sentence": "The half of it is <|im_",
    "a block of thoughts alone": "```thinking\nHigh sun.\n```",
    "a block of thoughts that is spoken of": "```thought\nHigh sun.\n```\nis a block of thoughts.",
    "a word in brackets with a link": "[Reasoning](https://example.org) tells more.",
    "a level of a log": "[thought]\n[info] none\n[/info]",
    "words in brackets that nothing closes": "[thinking]\nand thinking, all day.",
    "a fold": "<details><summary>Thinking about it</summary>It is noon.</details>",
    "the command's words": "Thinking...\nabout it all day.",
    "a block of another sign": "~~~\ncode\n~~~\nSo.",
    "an essay on analysis": "analysis The word is Greek. assistantfinal is none.",
    "an essay on analysis in lower case": "analysis we owe to the Greeks.",
    "a heading": "analysis\n\nWe need to look at the word. It is Greek.",
    "a name in code": "analysisOf = (user) => user.analysisOf",
    "a play": "User: What time is it?\nAssistant: It is noon.\nUser: Thanks!\nAssistant: Welcome.",
    "a play behind words": "Here is the scene:\n\nUser: What time is it?\nAssistant: It is noon.\nUser: Thanks!",
    "a play behind a sentence": "This is a sample of it.\n\nUser: What time is it?\nAssistant: It is noon.\nUser: Thanks!",
    "a play that begins with the model": "Assistant: Hello!\nUser: What time is it?\nAssistant: It is noon.",
    "three roles": "There are three of them.\n\nUser: who asks\nAssistant: who answers\nTool: what tells",
    "a tool's lines in a play": "Assistant: Let me look.\nTool: 12:00\nAssistant: It is noon.\nUser: Good.",
    "how to sign in": "Sign in with this.\n\nUser: alice\nPassword: noon\n",
    "settings": "Write this.\n\nUser: alice\nHost: clock\nAssistant: none\nUser: bob\n",
    "one line of another": "It is noon.\n\nUser: the word is Latin.",
    "humans": "It is noon.\n\nHuman beings eat now.\nHumans: many.",
    "a call explained in a transcript": f"A transcript looks like this:\n\n{HERMES}\nTool: noon\nAssistant: It is noon.",
    "a block without a label in a page": f"# Usage\n\nA call looks like this:\n\n```\n{CALL}\n```\n\n# Licence\n",
    "a block called as the tool in a page": f"# Usage\n\n```get_time\n{UTC}\n```\n\n# Licence\n\nMIT",
    "a block called as the tool that is shown": f"The clock is read so.\n\n```get_time\n{UTC}\n```",
    "a block called as the tool, and words": f"```get_time\n{UTC}\n```\nThat is how one reads the clock.",
    "a block with other arguments": '```get_time\n{"place": "Oslo"}\n```',
    "a block of another tool": f"```set_time\n{UTC}\n```",
    "a block of a shell's": "```\n$ get_time UTC\n12:00\n```",
    "a block of a shell's without a prompt": "```\nget_time UTC\n```",
    "a block of mathematics": "```function\nf(x) = 2x\n```\nIt doubles each number.",
    "a block of a game": "```action\nwalk north\n```",
    "all, and words in lower case": "all\nany\nSome",
    "all, and one word": "all\nSome\nNone",
    "all, and a paragraph": "all\n\nIt is a word.",
    "a section in words": f"It writes:\n\n>>>get_time\n{UTC}",
    "a section of another": f"Let me look.\n>>>set_time\n{UTC}",
    "a section and words": f"Let me look.\n>>>get_time\n{UTC}\nThat is how Functionary has it.",
    "a shell behind words": "Open a shell.\n>>>get_time('UTC')\n\"12:00\"",
    "a token of Functionary's": "<|from|>assistant is what begins a turn.",
    "tokens of Functionary's": "A turn begins with <|from|>assistant and <|recipient|>all, and goes on.",
    "a feed": 'The feed:\n<atom:feed>\n<atom:call name="x"/>\n</atom:feed>',
    "a namespace shown": f"It looks like this:\n<acme:tool_call>\n{CALL}\n</acme:tool_call>\n\nThat is all.",
    "a footnote": "It is noon.\n<fn>See page 3.</fn>",
    "an API described": "<api_call>GET /time</api_call>",
    "another tool": "<use_tool>hammer</use_tool>",
    "Functionary's mark": ">>>get_time\nis how Functionary begins a call.",
    "Qwen's mark": "✿FUNCTION✿ is a mark of Qwen's agents.",
    "harmony in words": "commentary to=functions.get_time is what a header says.",
    "analysis": "analysis shows that it is noon.",
    "analysis in code": "analysisResults = load()\nassistantfinal = 3",
    "a page's signs in words": "&lt;tool_call&gt; is how a page has it.",
    "a tag called as a tool": "<get_time> is no element of HTML.",
    "a definition": "```python\ndef get_time(zone):\n    return 12\n```",
    "a block that is shown": f"I will show you an example.\n\n```json\n{CALL}\n```",
    "a block of tags behind words": f"This is the format:\n\n```xml\n{HERMES}\n```",
    "a tag that closes": "What closes a call is </tool_call>",
    "reasoning steps": "Here are my reasoning steps:\n1. Look.\n2. Leap.",
    "thoughts alone": "<analysis>It is noon.</analysis>",
    "a document": "<analysis>High sun.</analysis>\n<verdict>noon</verdict>",
    "a tag and half an object in words": f"It begins so:\n<tool_call>\nand goes on with {CALL[:-2]} and ends.",
    "a tool in XML": '<tools>\n<tool>\n<name>get_time</name>\n<parameter name="zone" type="string"/>\n</tool>\n</tools>',
    "a tool in XML behind words": "It is this one:\n\n<tool>\n<name>get_time</name>\n<zone>\n</zone>\n</tool>",
    "a list of tokens": "The tokens are:\n<|fim_prefix|>\n<|fim_suffix|>\n<|fim_middle|>",
    "a template of tokens": "Write this:\n\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "a token in the middle": "a <|pipe|> b <|pipe|> c",
    "null": "null",
    "quoted": f"To ask for the time, a model writes `{HERMES}`. I need not.",
    "quoted last": f"To ask for the time, a model writes `{HERMES}`",
    "in words": f"A call is <tool_call>{CALL}</tool_call> in that format.",
    "on lines of its own": f"A call looks like this:\n\n{HERMES}\n\nThe server reads the tags.",
    "in a block": f"A call looks like this:\n\n```xml\n{HERMES}\n```",
    "a block of JSON": f"This is a call:\n\n```json\n{CALL}\n```\n",
    "a block of JSON and words": f"```json\n{CALL}\n```\nThis is a call.",
    "JSON in words": f"{CALL} is what a model would write.",
    "JSON of other things": '{"name": "Ada", "arguments": ["for", "against"]}',
    "a tool described": '{"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}',
    "no such tool": '<tool_call>{"name": "set_time", "arguments": {}}</tool_call>',
    "a tag alone": "<tool_call> is a tag.",
    "a token around answers": "<|begin_of_box|> is a token of GLM's.",
    "an action of another kind": '{"action": "jump", "action_input": {"height": 3}}',
    "a tag of a client's": "<use_mcp_tool> is a tag of Cline's.",
    "Mistral's call in words": f"[TOOL_CALLS]get_time[ARGS]{UTC} is how Mistral writes it.",
    "a call in elements and words": "<tool>\n<name>get_time</name>\n<arguments>{}</arguments>\n</tool>\nThis is the format.",
    "an unused token": "[unused11] is a token of Pangu's.",
    "a token named last": "What ends it is <|eom|>",
    "an output": "<output>42</output>",
    "other tags": "<details>\n<summary>Noon</summary>\n</details>\n[link](https://example.org) <function>",
    "Python in words": 'The call would be: [get_time(zone="UTC")]',
    "Python and words": '[get_time(zone="UTC")] is how it is called.',
    "Python of another": '[get_weather(city="Oslo")]',
    "Python without a list, in words": 'get_time(zone="UTC") would tell it.',
    "Python in a block": '```python\nget_time(zone="UTC")\n```',
    "Gemma's block and words": '```tool_code\nget_time(zone="UTC")\n```\nThis is a call.',
    "Gemma's block among words": 'It writes.\n\n```tool_code\nget_time(zone="UTC")\n```\nThat is all.',
    "Gemma's block behind a colon": 'It writes:\n\n```tool_code\nget_time(zone="UTC")\n```',
    "a block behind a sentence": 'It writes so.\n\n```python\nget_time(zone="UTC")\n```',
    "a block of JSON behind a sentence": f"It writes so.\n\n```json\n{CALL}\n```",
    "Gemma's call quoted": 'Gemma writes `<|tool_call>call:get_time{zone:<|"|>UTC<|"|>}<tool_call|>` for it.',
    "Gemma's call without its token": 'call:get_time{zone:<|"|>UTC<|"|>}',
    "Python behind a colon": 'The call is:\n\n[get_time(zone="UTC")]',
    "a link behind a sentence": "It tells it.\n\n[get_time](https://example.org)",
    "a list behind a sentence": "It tells it.\n\n[get_time] is its name.",
    "Phi's word": "functools[0] is no call.",
    "Phi's word in words": f"It writes functools[{CALL}]",
    "Phi's call of another": 'functools[{"name": "set_time", "arguments": {}}]',
    "upper case": "<TOOL_CALL> is a tag.",
    "a stop token in words": "The token <|im_end|> ends a turn.",
    "a stop token in code": "It ends with `<|im_end|>`",
    "a stop token named last": "What ends a turn is <|im_end|>",
    "a stop token first": "<|im_end|> is its end.",
    "struck": "It is <s>eleven</s>",
    "struck first": "<s>eleven</s> twelve",
    "a header": "<|im_start|>assistant begins a turn.",
    "an answer": "<answer>42</answer>",
    "an answer in words": "<answer>42</answer> is the format of the quiz.",
    "thoughts aloud": "Here is my thought process: I like tea.",
    "thoughts aloud, on lines": "Here is my thought process:\nI like tea.\nAnd you?",
    "a word in brackets": "[think] it over.",
    "a list of numbers": "[1, 2, 3]",
    "a link": "[get_time](https://example.org/get_time) tells the time.",
    "tools in a tag": "<tools>hammer, saw</tools>",
    "a name in a tag": "<tool_call>get_time</tool_call>",
    "a channel": "<|channel>x",
    "a story": "Once a model wrote <think> and forgot </think>. It thinks still.",
    "a closing tag": "</think> closes a thought.",
    "a closing tag in a story": "It wrote `</think>` and was done.\nNobody knew.",
    "a closing tag at the end of a line": "What closes a thought is `</think>`\nin most models.",
    "a closing tag in code": "It writes:\n\n```\nHm.\n</think>\n```\n\nand answers.",
    "both tags on lines of their own": "It writes\n<think>\nHm.\n</think>\nand answers.",
    "a story of a tag": "`<think>` opens a thought, and `</think>` closes it.",
}
