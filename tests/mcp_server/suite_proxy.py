"""Offers what a Mainspring server has under the names that the conformance suite knows: tools, prompts, resources, and the one
question whose key it expects. All else passes as it is.

Names and keys are for a server to choose, and the suite's are those of its own example server.
"""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import urlsplit

DROPPED = ("content-length", "transfer-encoding", "connection")
# The parameter that names what a request is about.
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
# The tool whose question the suite looks for under this key.
ASKING, KEY = "test_input_required_result_elicitation", "user_name"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = ""
    ours: Mapping[str, str] = {}
    # The key of a question that was asked, by the state that its answer comes with.
    asked: ClassVar[dict[str, str]] = {}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = dict(self.headers.items())
        try:
            message = json.loads(body)
        except ValueError:
            message = None
        is_asking = False
        match message:
            case {"method": str(method), "params": dict(params)} if params.get(NAMED.get(method, "")) in self.ours:
                name = params[NAMED[method]]
                is_asking = name == ASKING
                # The header is changed only where it says the same, so that one which does not is refused.
                for field, value in headers.items():
                    if field.lower() == "mcp-name" and value.strip() == name:
                        headers[field] = value.replace(name, self.ours[name])
                params = {**params, NAMED[method]: self.ours[name]}
                said, key = params.get("inputResponses"), self.asked.get(str(params.get("requestState")))
                if is_asking and key is not None and isinstance(said, dict):
                    params["inputResponses"] = {key if each == KEY else each: answer for each, answer in said.items()}
                body = json.dumps({**message, "params": params}).encode()
            case _:
                pass
        parts = urlsplit(self.upstream)
        upstream = http.client.HTTPConnection(parts.hostname or "", parts.port)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in DROPPED}
            upstream.request(self.command, parts.path, body, kept)
            is_list = isinstance(message, dict) and message.get("method") == "tools/list"
            self._pass_on(upstream.getresponse(), is_list=is_list, is_asking=is_asking)
        finally:
            upstream.close()

    do_GET = do_DELETE = do_POST

    def _pass_on(self, answer: http.client.HTTPResponse, *, is_list: bool, is_asking: bool) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in DROPPED:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if is_list:
            listed = answer.read()
            for theirs, own in self.ours.items():
                listed = listed.replace(f'"name":"{own}"'.encode(), f'"name":"{theirs}"'.encode())
            self._write(listed)
        elif is_asking:
            told = answer.read().decode()
            key, state = re.search(r'"inputRequests":{"(\w+)"', told), re.search(r'"requestState":"(\w+)"', told)
            if key is not None and state is not None:
                self.asked[state[1]] = key[1]
                told = told.replace(key[0], f'"inputRequests":{{"{KEY}"')
            self._write(told.encode())
        else:
            while data := answer.read1(65_536):
                self._write(data)
        self.wfile.write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """The suite leaves streams as it likes."""


@contextmanager
def renaming(upstream: str, ours: Mapping[str, str]) -> Iterator[str]:
    """The address of a server like the one at `upstream`, whose tools, prompts and resources are named by the keys of `ours`."""
    handler = type("Handler", (_Handler,), {"upstream": upstream, "ours": ours, "asked": {}})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        finally:
            server.shutdown()
            thread.join()
