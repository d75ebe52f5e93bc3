"""The console behind a proxy that offers the server below a path, and takes that path off before it asks it."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

PREFIX = "/tools/agents"
OF_A_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")

expect.set_options(timeout=PATIENCE * 1000)


class Proxy:
    """`asked` are the paths that the server was asked for, `strays` those outside of the prefix: they are nobody's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.strays: list[str] = []


@contextmanager
def proxying(served: Served) -> Iterator[Proxy]:
    place = served.url.removesuffix("/v1").removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            path = self.path.removeprefix(PREFIX)
            if path == self.path:
                proxy.strays.append(path)
                self.send_error(404)
                return
            proxy.asked.append(f"{self.command} {path}")
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_A_CONNECTION}
            with closing(HTTPConnection(place, timeout=PATIENCE)) as server:
                server.request(self.command, path, body or None, headers)
                answer = server.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in OF_A_CONNECTION:
                        self.send_header(name, value)
                self.end_headers()
                try:
                    while data := answer.read1():
                        self.wfile.write(data)
                except OSError:  # the browser has left
                    return

        do_GET = do_POST = do_DELETE = _forward

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        proxy = Proxy(f"http://127.0.0.1:{listener.server_port}{PREFIX}/")
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            # The browser may still hold streams open: they end with the server.
            served.kill()
            listener.shutdown()
            thread.join()


def test_page_files_sign_in_and_live_stream_work_below_a_path(page: Page, tmp_path: Path) -> None:
    with serving(tmp_path, [{"say": "One, two.", "stall": True}]) as served, proxying(served) as proxy:
        key = httpx.post(f"{served.url}/keys", json={"name": "operator"}).json()["key"]
        page.goto(proxy.url)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text(f"{proxy.url}v1").first).to_be_visible()
        asked = {"model": "scripted", "input": "Count.", "background": True}
        run = httpx.post(f"{served.url}/responses", json=asked, headers={"authorization": f"Bearer {key}"}).json()["id"]
        page.goto(f"{proxy.url}#/runs/{run}")
        expect(page.locator(".entry.message")).to_contain_text("One, two.")
        # The model says nothing more: only the stream can tell that the run was ended.
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".runhead .status")).to_have_text("cancelled")
        page.get_by_role("link", name="Runs", exact=True).first.click()
        expect(page.get_by_role("row").filter(has_text="Count.")).to_contain_text("cancelled")
    assert proxy.strays == []
    assert any(path.startswith("GET /console/files/") and path.endswith(".js") for path in proxy.asked)
    assert [path for path in proxy.asked if path.startswith(f"GET /v1/runs/{run}/events?stream=true")]
    assert "POST /v1/session" in proxy.asked
