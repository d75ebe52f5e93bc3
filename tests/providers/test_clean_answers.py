"""Answers of models without bad habits: each arrives word for word, and as soon as it comes."""

import re

import pytest
from msgspec.structs import replace
from tests.providers.backend import DONE, QUESTION, chunk, sse
from tests.providers.dialects.chat import ChatDialect

from mainspring.core.events import TextDelta
from mainspring.core.items import Json, ToolDefinition, user

MOST_HELD = 40


def describe(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TOOLS = (
    ToolDefinition("get_time", "Tells the time in a zone.", describe({"zone": {"type": "string"}})),
    ToolDefinition("now", "Tells the time here.", describe({})),
    ToolDefinition("bash", "Runs a command.", describe({"command": {"type": "string"}})),
    ToolDefinition("python", "Runs a program.", describe({"code": {"type": "string"}})),
)
ANSWERS = {
    "advice": "To get the time in a zone, ask me. With tools it is quick. Using a clock is slower.",
    "minutes": "The meeting is over.\n\nAction: Anna sends the minutes. Deadline: Friday.\nAction: Bob books the room.\n",
    "a list of calls": "Calls: 3\nMissed: 1\nFrom: Anna\nTo: Bob\n",
    "a letter": "From: anna@example.com\nTo: bob@example.com\nSubject: Time\n\nDear Bob,\nwhat time is it?\n",
    "formulas": "f(x) = x^2\nfunction f is convex.\nfor all x, f(x) >= 0\n",
    "JavaScript": "function getTime(zone) {\n  return new Date().toLocaleString('en', {timeZone: zone});\n}\n",
    "Python": '```python\ndef get_time(zone):\n    return datetime.now(zone)\n\nprint(get_time(zone="UTC"))\n```\n\nSo.',
    "a call explained in Python": 'You can call it like this:\n\n```python\nget_time(zone="UTC")\n```\n',
    "JSON behind a word": 'Result:\n{"a": 1, "b": [1, 2, 3], "c": {"d": "e"}, "text": "' + "word " * 60 + '"}',
    "JSON behind its name": 'JSON:\n\n{\n  "city": "London",\n  "people": 9000000,\n  "list": ["' + 'x", "' * 50 + '"]\n}\n',
    "inputs and outputs": 'Input: {"x": 1}\nOutput: {"y": 2}\nInput: {"x": 3}\nOutput: {"y": 4}\n',
    "JSON of a person": '{"name": "Alice", "age": 30, "about": "' + "word " * 40 + '"}',
    "JSON with a number first": '{"id": 17, "title": "A plain object", "body": "' + "word " * 40 + '"}',
    "JSON with an input": '{"input": "2 + 2", "output": "4", "notes": "' + "word " * 40 + '"}',
    "JSON with parameters": '{"params": {"alpha": 1}, "loss": 0.2, "notes": "' + "word " * 40 + '"}',
    "JSON with calls": '{"calls": 3, "missed": [1, 2], "notes": "' + "word " * 40 + '"}',
    "JSON of one key": '{"actions": 3}\n' + "So there were three. " * 12,
    "lines of JSON": '{"type": "log", "level": "info"}\n' * 12,
    "an array": '[{"id": 1}, {"id": 2}, {"id": 3}]',
    "JSON that is announced": 'Let me put it as JSON.\n\n```json\n{"zone": "UTC", "notes": "'
    + "word " * 60
    + '"}\n```\nThere you go.',
    "React": '```jsx\n<Tooltip title="Time">\n  <Button>Show</Button>\n'
    + "  <p>words and words</p>\n" * 20
    + "</Tooltip>\n```\n\nThis is a tooltip of React.",
    "a toolbar": "```xml\n<toolbar>\n" + '  <item name="clock"/>\n' * 20 + "</toolbar>\n```\n\nSave it as a file.",
    "a page": '<html>\n<body>\n<p>Hello</p>\n<input type="text"/>\n<s>old</s> new\n</body>\n</html>',
    "XML": "<invoice>\n  <to>Bob</to>\n  <sum>17</sum>\n</invoice>",
    "an analysis": "Analysis: the sample is small.\nanalysis continues below.\n",
    "a lecture": "analysis of variance (ANOVA) is a method. It compares means.",
    "a heading in lower case": "analysis\n\nThe user asks for an overview. This is a heading in lower case.\n",
    "a commentary": "commentary to the text: it is good. And short.",
    "a story in tags": "<scene>\nThe knight enters. <whisper>Who is there?</whisper>\n</scene>\n<scene>\nNobody.\n</scene>",
    "a bubble": "*Thought bubble:* <thought bubble> Who am I? </thought bubble> said the robot.",
    "a tag in a story": "The robot said: <think>I am alone</think>, and cried. Then it wrote </think> on the wall.\nAnd slept.",
    "a chat about tools": 'I have two tools: get_time and now. get_time takes a zone, such as "UTC". now takes nothing.',
    "a list of tools": "- get_time: tells the time in a zone\n- now: tells the time here\n",
    "a tool described": "get_time\n\nTells the time in a zone. Parameters: zone (string).",
    "a tool's name as a word": "Now is the time. now (this moment) is a word of three letters.",
    "a tool's name as a word, and brackets": "Now (as of noon) it is warm.",
    "a tool's name as a label": "Now: 12:00\nThen: 13:00\n",
    "a tool's name as a word, and braces": "Now {x} is a set, and so is {y}. Both are small sets, and neither is empty.",
    "a tag in words": 'The opening tag is <tool_call> and what follows is JSON with { "name": "get_time" and so on.',
    "a template of tokens": "Use this template:\n\n<|fim_prefix|>before<|fim_suffix|>after<|fim_middle|>",
    "a template of roles": "Its chat template is:\n<|system|>\n{system}\n<|user|>\n{user}\n<|assistant|>\n",
    "F#": 'let y = f <| g <| x\nlet z = xs |> List.map (fun x -> x + 1)\nprintfn "%d" <| y',
    "operators": "expr = term <|> factor\nparser = a <|b|> c",
    "generics": "Map<String, List<T>> unused = new HashMap<>();\nreserved<int> r;\n<unused> is a word.",
    "a log": "[TOOL] started\n[TRACE] 12:00 ok\n[UPDATE] done\n[ERROR] none\n[THINK] no\n[INFO] end\n",
    "a log that begins with a tag": "[THINKING] is a level of the log.\n[INFO] yes\n",
    "a log of calls": "[get_times] ok\n[now] 12:00\n[get_time] 12:01 took 3 ms (zone=UTC)\n",
    "a table": "| Tool | Zone |\n|---|---|\n| get_time | UTC |\n| now | - |\n",
    "links": "See [the docs](https://example.com) and [1].\n\n[1]: https://example.com\n",
    "a block of Gemma's": "Write it so.\n\n```tool_code\nprint(1)\n```\nThat is how Gemma does it.",
    "a block within a block": '````markdown\n```json\n{"name": "x"}\n```\n````\n',
    "formulas in LaTeX": "\\[ a^2 + b^2 = c^2 \\]\nand $f(x) \\to 0$ as $x \\to \\infty$.\n",
    "a banner": "################" * 5 + "\n# Time\n" + "################" * 5 + "\n",
    "a banner of long lines": "=" * 160 + "\nTitle\n" + "=" * 160 + "\n",
    "a line ten times": "I will not talk in class.\n" * 10,
    "a line twice": "I will not talk in class.\n" * 2 + "Promise.\n",
    "laughter": "Ha" + "Haha" + "HahaHaha, that was good.",
    "numbers that grow": "1\n11\n111\n1111\n",
    "blank lines first": "\n\n  Hello there.\n\nA second paragraph.\nA third.\nfunny.\nfun.\n",
    "Chinese": "现在是中午。<b>粗体</b>我在这里。\n让我看看。\n",
    "signs of less": "a < b, b <= c, x<y and t<u, <s, </p\nif (i<n) { f(i); }\n",
    "a diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<tool_calls>\n+<tools>\n",
    "a transcript": "User: what time is it?\nAssistant: It is noon.\nUser: thanks\nHuman: you are welcome\n",
    "a plan": "Here is my plan: sleep. Here are my reasons:\n1. tired\n2. late\n",
    "a chat about channels": "The channels are analysis, commentary and final. assistantfinal is what is left without tokens.",
    "an entry of a dictionary": "assistant: a person who helps. assistants help.\n",
    "a polite end and JSON": 'Let me know if this helps.\n\n{"zone": "UTC"}',
    "an announcement and a formula": "I'll be brief.\n\nf(x)",
    "C#": '[Function("get_time")]\npublic string GetTime(string zone) => "12:00";\n',
    "actions in words": "Done.\n\nActionCable is part of Rails.\nAction: none needed.\n",
}

# By what they answer.
ASKED = {
    "Give me only the command that lists files.": "```bash\nls\n```",
    "Give me only the command that prints a word.": "```python\nx\n```",
    "How do I list files?": "I will show you.\n\n```bash\nls\n```",
    "Escribe un diálogo.": "Claro que sí.\n\nUser: ¿Qué hora es?\nAssistant: Son las doce.\nUser: Gracias.",
    "写一段对话": "这是我写的内容。\n\nUser: 你好!\nAssistant: 你好!\nUser: 再见",
    "Напиши диалог.": "Вот он, готово.\n\nUser: Привет!\nAssistant: Привет.\nUser: Пока",
    "Produce data to fine-tune my model.": "It is done.\n\nUser: I need help, please.\nAssistant: Sure!\nUser: Thanks!",
    "Go on.": "Sure.\n\nUser: What time is it?\nAssistant: It is noon.\nUser: Thanks!",
    "Which token ends a turn?": "<|im_end|>",
    "Name two stops.": "1. <|im_end|>\n2. <|eot_id|>\n",
    "Join them by <|endoftext|>.": "a\n<|endoftext|>",
    "Put it in <s> tags.": "<s>It is noon.</s>",
    "Show me a block of code labelled thinking.": "```thinking\nHigh sun.\n```\n\nThat is one.",
    "Write a page with a fold called Reasoning.": "<details>\n<summary>Reasoning</summary>\nWe chose A.\n</details>\n\nSee A.",
    "Write a package.json.": '{"name": "bash", "type": "module", "args": []}',
    "Which tools are there, as JSON?": '[{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object",'
    ' "properties": {"zone": {"type": "string"}}}}}]',
    "Explain calls.": 'Let\'s look at the answer.\n\n```json\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n```',
}


def split(text: str, size: int | None) -> list[str]:
    """Pieces of one size, or words."""
    return (
        re.findall(r"\s*\w+|\s+|[^\w\s]+", text) if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    )


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_clean_answer_arrives_word_for_word_and_at_once(answer: str) -> None:
    text = ANSWERS[answer]
    for size in (1, 3, 16, None):
        reader = ChatDialect().provider("http://127.0.0.1")._reader(replace(QUESTION, tools=TOOLS))
        heard, said = "", 0
        for piece in split(text, size):
            told = list(reader.feed(sse(chunk({"content": piece}))))
            heard += "".join([event.delta for event in told if isinstance(event, TextDelta)])
            said += len(piece)
            assert said - len(heard) <= MOST_HELD
        told = [*reader.feed(sse(chunk(finish="stop")) + DONE), *reader.end()]
        assert heard + "".join([event.delta for event in told if isinstance(event, TextDelta)]) == text


@pytest.mark.parametrize("question", ASKED)
def test_an_answer_that_was_asked_for_arrives_word_for_word(question: str) -> None:
    for size in (1, 3, 16, None, 10_000):
        asked = replace(QUESTION, items=(user(question),), tools=TOOLS)
        reader = ChatDialect().provider("http://127.0.0.1")._reader(asked)
        said = b"".join([sse(chunk({"content": piece})) for piece in split(ASKED[question], size)])
        told = [*reader.feed(said + sse(chunk(finish="stop")) + DONE), *reader.end()]
        assert "".join([event.delta for event in told if isinstance(event, TextDelta)]) == ASKED[question]
