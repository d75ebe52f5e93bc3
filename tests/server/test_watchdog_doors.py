"""While messages, MCP clients, web pages and servers that people sign in to are hostile, nobody else notices, and the answer says
whose fault it was."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pytest
from tests.agents.world import written as agent
from tests.server.process import Script
from tests.server.test_watchdog import MB, Attacked, start_server

from mainspring.features.triggers.signatures import sign_message

pytestmark = pytest.mark.slow

DEEP: Final = "[" * 60_000 + "]" * 60_000
# Deep enough to be parsed, and too deep to be written again within something else.
NEARLY: Final = "[" * 900 + "]" * 900
MANY: Final = "[" + "[]," * 300_000 + "1]"
ODD: Final = {"deep": DEEP, "nearly too deep": NEARLY, "many": MANY, "open": "[" * 200_000, "surrogate": '"\\ud800"'}
SETTINGS: Final = """
agents = ["agents"]
workflows = ["flows"]
allow_hosts = ["127.0.0.1"]
public_url = "http://127.0.0.1:1"
[web_search]
provider = "searxng"
url = "URL"
[mcp.wiki]
url = "URL/mcp"
[mcp.wiki.oauth]
[mcp_server]
files = true
[governance]
scan_inputs = true
"""
FLOWS: Final = {
    "keep": """
inputs: {value: {required: true}}
steps: [{id: kept, action: transform, value: "{{ inputs.value }}"}]
""",
    "look": """
inputs: {url: {default: "URL/page"}}
steps: [{id: page, action: http-request, url: "{{ inputs.url }}"}]
""",
    "parse": """
inputs: {text: {type: string, required: true}}
steps: [{id: parsed, action: transform, value: "{{ inputs.text | fromjson }}"}]
""",
}

FAR: Final = "http://" + "\u00e9" * 1_000_000
SENTENCE: Final = "a" * 400_000
# To put them in order takes time by the square of their number.
MARKS: Final = "\u0301\u0316" * 40_000
# All have the same hash.
ALIKE: Final = [(2**61 - 1) * 16 * number for number in range(1, 30_000)]

CALL: Final = """
{"jsonrpc": "2.0", "id": 1, "method": "%s", "params": {%s, "_meta":
{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}}
"""


class Site(BaseRequestHandler):
    """Says what it was told to, whatever it is asked, and sends everybody to itself to sign in."""

    said = b""

    def handle(self) -> None:
        with suppress(OSError, IndexError):
            path = self.request.recv(65_536).split()[1]
            if path == b"/mcp":
                port = cast(tuple[str, int], self.server.server_address)[1]
                challenge = f'www-authenticate: Bearer resource_metadata="http://127.0.0.1:{port}/page"\r\n'
                self.request.sendall(f"HTTP/1.1 401 x\r\n{challenge}content-length: 0\r\nconnection: close\r\n\r\n".encode())
                return
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self.said)
            self.request.sendall(head + self.said)


@contextmanager
def website() -> Iterator[str]:
    with ThreadingTCPServer(("127.0.0.1", 0), Site) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Client:
    """The attacker, who has a webhook."""

    def __init__(self, attacked: Attacked) -> None:
        self.attacker, self._address = attacked.attacker, urlsplit(attacked.served.url).netloc
        self._webhook = self.ask("POST", "/v1/webhooks", {"name": "keep", "workflow": "keep", "mapping": {"value": ""}})[1]
        self._count = 0

    def ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        status, told = self.attacker.ask(method, path, body if isinstance(body, bytes) else json.dumps(body).encode())
        return status, json.loads(told)

    def send_message(self, text: str) -> int:
        self._count += 1
        head = sign_message(self._webhook["secret"], f"message {self._count}", time.time(), text.encode())
        return self._send("POST", self._webhook["path"], text.encode(), head)[0]

    def call_tool(self, value: str) -> int:
        """A call by an MCP client with this JSON as an argument."""
        return self._ask_mcp("tools/call", "workflow_keep", f'"name": "workflow_keep", "arguments": {{"value": {value}}}')

    def read_resource(self, file: str) -> int:
        uri = f"mainspring://files/{file}"
        return self._ask_mcp("resources/read", uri, f'"uri": "{uri}"')

    def _ask_mcp(self, method: str, name: str, params: str) -> int:
        head = {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": name, "accept": "application/json"}
        return self._send("POST", "/mcp", (CALL % (method, params)).encode(), head)[0]

    def run(self, workflow: str, inputs: dict[str, object]) -> str:
        """How a run of the workflow ends, or why there is none."""
        status, told = self.ask("POST", f"/v1/workflows/{workflow}/runs", {"inputs": inputs})
        return str(told["status"] if status == 200 else told["error"]["code"])

    def sign_in(self, user: str) -> int:
        _, told = self.ask("POST", "/v1/mcp_servers/wiki/sign_in", {"user": user})
        origin = {"origin": f"http://{self._address}", "content-type": "application/x-www-form-urlencoded"}
        return self._send("POST", urlsplit(told["url"]).path, b"", origin)[0]

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        kind = {"content-type": "application/json"}
        with closing(HTTPConnection(self._address, timeout=60)) as line:
            line.request(method, path, body, {**self.attacker._headers, **kind, **headers})
            answer = line.getresponse()
            return answer.status, answer.read()


def look(by: Client, page: str) -> str:
    Site.said = page.encode()
    return by.run("look", {})


def sign_in(by: Client, value: str) -> int:
    Site.said = b'{"a": ' + value.encode() + b"}"
    return by.sign_in(str(len(value)))


def name_variable(by: Client, value: str) -> int:
    return by.ask("POST", "/v1/responses", {"prompt": {"id": "lister", "variables": {"things": value}}})[0]


def find_on_page(by: Client, page: str) -> str:
    """What a model is told that looks for a long sentence on a page."""
    Site.said = page.encode()
    status, told = by.ask("POST", "/v1/responses", {"input": "find it", "tools": [{"type": "web_search"}]})
    assert status == 200
    return str(told["output"][0]["status"])


def bring_server(by: Client, url: str) -> int:
    tool = {"type": "mcp", "server_label": "far", "server_url": url}
    return by.ask("POST", "/v1/responses", {"input": "hello", "tools": [tool]})[0]


def make_endpoint(by: Client, url: str) -> int:
    return by.ask("POST", "/v1/webhook_endpoints", {"url": url, "events": ["response.completed"]})[0]


def fill_often(by: Client, times: int) -> int:
    prompt = by.ask("POST", "/v1/prompts", {"prompt": "{{ word }} " * times})[1]["id"]
    return by.ask("POST", "/v1/responses", {"prompt": {"id": prompt, "variables": {"word": "x" * 100}}})[0]


def name_result_often(by: Client, kind: str, use: dict[str, object], content: object) -> int:
    """Calls of one id, and the one result that they have."""
    calls = [{"type": kind, "id": "a", **use}] * 2_000
    said = [
        *calls,
        {
            "type": f"{kind.replace('server_tool', 'web_search_tool').removesuffix('_use')}_result",
            "tool_use_id": "a",
            "content": content,
        },
    ]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": said}, {"role": "user", "content": "on"}]
    return by.ask("POST", "/v1/messages", {"model": "any", "max_tokens": 9, "messages": messages})[0]


def filter_by(by: Client, values: list[int]) -> int:
    store = by.ask("POST", "/v1/vector_stores", {})[1]["id"]
    only = {"type": "in", "key": "size", "value": values}
    return by.ask("POST", f"/v1/vector_stores/{store}/search", {"query": "any", "filters": only})[0]


def read_at_once(by: Client, count: int) -> set[int]:
    file = by.attacker.upload(b'"' * 8 * MB)
    with ThreadPoolExecutor(count) as threads:
        return set(threads.map(by.read_resource, [file] * count))


def stop_at(by: Client, chars: int) -> int:
    texts = ["a" * (chars - 2) + str(number) for number in range(10, 74)]
    body = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": "letters"}], "stop_sequences": texts}
    return by.ask("POST", "/v1/messages", body)[0]


ATTACKS: dict[str, tuple[Callable[[Client], object], object]] = {
    "signed messages": (
        lambda by: [by.send_message(text) for text in ODD.values()],
        [400, 400, 200, 400, 400],
    ),
    "pages that a step reads": (
        lambda by: [look(by, text) for text in ODD.values()],
        ["success", "success", "failed", "success", "success"],
    ),
    "texts that a step parses": (
        lambda by: [by.run("parse", {"text": text}) for text in (DEEP, NEARLY, ODD["open"])],
        ["failed"] * 3,
    ),
    "variables of a prompt": (lambda by: [name_variable(by, text) for text in (DEEP, NEARLY, ODD["open"])], [422] * 3),
    "arguments of an MCP client": (
        lambda by: [by.call_tool(text) for text in ("1", *ODD.values())],
        [200, 400, 400, 413, 413, 400],
    ),
    "metadata of a server to sign in to": (
        lambda by: [sign_in(by, text) for text in ODD.values()],
        [502] * len(ODD),
    ),
    "sentences to find on a page": (
        lambda by: [find_on_page(by, "a" * 1_900_000), find_on_page(by, "b" + SENTENCE.upper() + "B")],
        ["completed", "completed"],
    ),
    "addresses without end": (lambda by: [by.run("look", {"url": FAR}), bring_server(by, FAR)], ["failed", 400]),
    "inputs that nobody has declared": (
        lambda by: by.run("keep", {"value": 1, **{f"values {number}": 1 for number in range(60_000)}}),
        "invalid_inputs",
    ),
    "marks in a text": (lambda by: by.ask("POST", "/v1/responses", {"input": MARKS})[0], 200),
    "marks in an address": (
        lambda by: [by.run("look", {"url": f"http://{MARKS}"}), bring_server(by, f"http://{MARKS}")],
        ["failed", 400],
    ),
    "a variable in many places": (lambda by: fill_often(by, 40_000), 200),
    "one result of many searches": (
        lambda by: name_result_often(by, "server_tool_use", {"name": "web_search", "input": {}}, [{"url": "http://x"}] * 4_000),
        200,
    ),
    "one result of many calls": (
        lambda by: name_result_often(
            by, "mcp_tool_use", {"server_name": "s", "name": "n", "input": {}}, [{"type": "text", "text": "x"}] * 4_000
        ),
        200,
    ),
    "numbers of one hash": (lambda by: filter_by(by, ALIKE), 200),
    "many readers of a resource": (lambda by: read_at_once(by, 20), {200}),
    "texts to end an answer before": (lambda by: [stop_at(by, 1_000), stop_at(by, 1_001)], [200, 400]),
}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    agent(folder / "agents", "lister", inputs={"things": {"type": "array", "required": True}})
    with website() as url:
        (folder / "flows").mkdir()
        for name, text in FLOWS.items():
            (folder / "flows" / f"{name}.yaml").write_text(f"name: {name}{text.replace('URL', url)}")
        (folder / "mainspring.toml").write_text(SETTINGS.replace("URL", url))
        sought = {"name": "web_search", "arguments": {"url": f"{url}/page", "pattern": SENTENCE + "b"}}
        script: Script = [
            {"when": "letters", "say": "a" * 200_000},
            {"when": "find it", "calls": [sought]},
            {"when": "", "say": "Hello there."},
        ]
        with start_server(folder, script) as attacked:
            yield attacked


@pytest.fixture(scope="module")
def client(attacked: Attacked) -> Client:
    return Client(attacked)


def test_names_that_nobody_answers_are_nobody_elses_trouble(attacked: Attacked, client: Client) -> None:
    urls, answers = [f"http://n{number}.silent.example" for number in range(40)], attacked.pulse.file.with_name("answers")
    with ThreadPoolExecutor(len(urls)) as threads:
        made = [threads.submit(make_endpoint, client, url) for url in urls]
        try:
            # What the server does in threads, and the names of others, go on.
            with attacked.expect_calm():
                file = attacked.attacker.upload(b"words")
                assert client.ask("GET", f"/v1/files/{file}", b"")[0] == 200
                assert client.run("look", {"url": "http://localhost:1/"}) == "failed"
            assert not any(each.done() for each in made)
        finally:
            answers.touch()
        assert {each.result() for each in made} == {400}
    answers.unlink()


@pytest.mark.parametrize("attack", [*ATTACKS])
def test_an_attack_is_nobody_elses_trouble_and_is_answered(attacked: Attacked, client: Client, attack: str) -> None:
    perform, answer = ATTACKS[attack]
    with attacked.expect_calm():
        assert perform(client) == answer
