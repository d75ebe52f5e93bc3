"""What tests of workflows share: definitions in files, an engine to carry them out, and a counter outside of it."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mainspring.app.engine import Engine
from mainspring.features.workflows.workflow_definition import Workflow, parse_workflow
from mainspring.features.workflows.workflow_run import StepCompleted, StepFailed, StepSkipped, WorkflowLogEvent, WorkflowRun
from mainspring.ports import Provider
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools

LOCAL = "127.0.0.1"


def written(folder: Path, *texts: str) -> Path:
    """A folder with a file for each text."""
    folder.mkdir(exist_ok=True)
    for text in texts:
        name = text.partition("name:")[2].split()[0]
        (folder / f"{name}.yaml").write_text(text)
    return folder


def defined(text: str) -> Workflow:
    return parse_workflow(Path("flow.yaml"), text)


def engine_for(
    tmp_path: Path,
    *texts: str,
    model: Provider | None = None,
    builtins: Sequence[str] = (),
    allow: Sequence[str] = (LOCAL,),
    **options: Any,
) -> Engine:
    """An engine with these workflows, for a model that is asked nothing unless one is given."""
    return Engine(
        model or Scripted(say("unasked")),
        builtins=BuiltinTools(builtins, guard=AddressGuard(allow)),
        workflows=[written(tmp_path / "flows", *texts)],
        **options,
    )


def ended(run: WorkflowRun) -> dict[str, str]:
    """How each step ended."""
    return {key: state.status for key, state in run.steps.items()}


def failure(run: WorkflowRun, step: str) -> str:
    state = run.steps[step]
    assert state.status == "failed", state
    assert state.error is not None
    return state.error


def ends(events: Sequence[WorkflowLogEvent]) -> list[str]:
    return [event.step for event in events if isinstance(event, StepCompleted | StepFailed | StepSkipped)]


class Tally:
    """A server that counts what it is sent. `effects` counts by idempotency key, or by path for those that have none."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.arrivals: list[str] = []
        self.effects: dict[str, str] = {}
        self.headers: list[dict[str, str]] = []
        self.bodies: list[str] = []
        self.answers: dict[str, Sequence[int]] = {}
        self.on_arrival: Callable[[str], object] = lambda path: None

    @property
    def counted(self) -> Counter[str]:
        """How often each path was counted."""
        return Counter(self.effects.values())


@contextmanager
def tallying() -> Iterator[Tally]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            tally.on_arrival(self.path)
            with lock:
                tally.arrivals.append(f"{self.command} {self.path}")
                tally.headers.append({name.lower(): value for name, value in self.headers.items()})
                tally.bodies.append(body)
                planned = tally.answers.get(self.path, (200,))
                seen = sum(arrival.endswith(f" {self.path}") for arrival in tally.arrivals)
                status = planned[min(seen, len(planned)) - 1]
                if status < 400:
                    tally.effects[self.headers.get("idempotency-key") or f"{len(tally.arrivals)}"] = self.path
            data = json.dumps({"path": self.path, "seen": seen}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            if status == 302:
                self.send_header("location", "/elsewhere")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((LOCAL, 0), Handler)
    server.daemon_threads = True
    tally = Tally(f"http://{LOCAL}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield tally
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
