"""Fixed work for the server, in one process, for counting instructions. `./check counts` runs it under callgrind.

    python -m bench.counted

The server is the one that `mainspring serve` starts, with its sockets, its database and its client for models; the load and the
backend are in the same event loop and cost next to nothing. What makes two runs differ is taken away: every round of the event
loop takes 20 us by all clocks, which jump to the next timer when there is nothing to do; random bytes come from a seed; a thread
works only while the event loop waits for it. So the same code executes the same instructions, whatever else the machine does.

Callgrind is told by this process when to count and what to call it. Without callgrind the work is done all the same.
"""

import asyncio
import ctypes
import json
import mmap
import os
import queue
import random
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
import types
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

START, STOP, DUMP_AT = [(ord("C") << 24 | ord("T") << 16) + number for number in (4, 5, 3)]
STUCK_SECONDS = 60
SETTLE_SECONDS = 0.01
STEP_SECONDS = 20e-6  # for each round of the event loop
REQUESTS, DELTAS, TURNS, STREAMS, PACED = 100, 2000, 20, 10, 100
EPOCH = 1_800_000_000.0


class Callgrind:
    """Valgrind's client requests: a few instructions that do nothing, unless it is valgrind that reads them."""

    # mov rax, rdi; mov rdx, rsi; rol rdi, 3; rol rdi, 13; rol rdi, 61; rol rdi, 51; xchg rbx, rbx; mov rax, rdx; ret
    CODE = bytes.fromhex("4889f8 4889f2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(self.CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(address)

    def tell(self, request: int, text: bytes = b"") -> None:
        held = ctypes.create_string_buffer(text)
        self._call((ctypes.c_uint64 * 6)(request, ctypes.addressof(held)), 0)


class Baton:
    """Whose turn it is: the event loop's, or that of one thread which has something to do."""

    def __init__(self) -> None:
        self.queues: list[SteppedQueue] = []
        self.is_stepping = False
        self.back = threading.Semaphore(0)

    def hand_round(self) -> None:
        """Lets threads work, one after the other, until none has anything left to do."""
        while waiting := next((each for each in self.queues if each.items and each.has_reader), None):
            waiting.has_reader, waiting.has_turn = False, True
            waiting.turn.release()
            if not self.back.acquire(timeout=STUCK_SECONDS):
                sys.exit("counted: a thread does not come back for more work")


BATON = Baton()


class SteppedQueue:
    """A `SimpleQueue` whose reader gets what is put only when it is its turn."""

    __class_getitem__: Any = classmethod(types.GenericAlias)

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.turn = threading.Semaphore(0)
        self.has_reader = self.has_turn = False
        BATON.queues.append(self)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self.items.append(item)
        if not BATON.is_stepping:
            self.turn.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self.items:
            if not block:
                raise queue.Empty
            self.has_reader = True
            if self.has_turn:
                self.has_turn = False
                BATON.back.release()
            self.turn.acquire()
        return self.items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self.items

    def qsize(self) -> int:
        return len(self.items)


class Clock:
    now = 1000.0


class SteppedSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        BATON.hand_round()
        Clock.now += STEP_SECONDS
        if ready := super().select(0):
            return ready
        if timeout is not None and timeout <= 0:
            return ready
        # What was sent to this machine may be a moment on its way.
        if ready := super().select(SETTLE_SECONDS):
            return ready
        Clock.now += STUCK_SECONDS if timeout is None else timeout
        return []


class SteppedLoop(asyncio.SelectorEventLoop):
    def _make_socket_transport(self, sock: socket.socket, *args: Any, **kwargs: Any) -> Any:
        # As uvloop does for every socket. Else a timer of the system says when the second of two writes is sent.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return super()._make_socket_transport(sock, *args, **kwargs)  # type: ignore[misc]


def take_away_chance() -> None:
    """To be called before anything else is imported."""
    generator = random.Random(0)
    os.urandom = generator.randbytes
    random._urandom = generator.randbytes  # type: ignore[attr-defined]
    random.seed(0)
    time.monotonic = time.perf_counter = lambda: Clock.now
    time.time = lambda: EPOCH + Clock.now
    queue.SimpleQueue = SteppedQueue  # type: ignore[misc,assignment]


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    data = f"data: {json.dumps({'id': 'c', 'model': 'm', 'choices': [choice]})}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk({"role": "assistant"})
PIECE = chunk({"content": "word "})
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}\n\ndata: [DONE]\n\n'
END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(USAGE), USAGE)


class Backend(asyncio.Protocol):
    """Answers by the first user text: three words, so many pieces one at a time, or so many turns of two calls."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._seen = transport, b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, gap, body = self._seen.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if not gap or len(body) < int(length):
            return
        self._seen = b""
        kind, _, amount = body.partition(b"ask:")[2].partition(b'"')[0].decode().partition(" ")
        done = body.count(b'"tool_call_id"')
        if kind == "turns" and done < 2 * int(amount):
            calls = [
                {
                    "index": index,
                    "id": f"call_{done + index}",
                    "function": {"name": "add", "arguments": f'{{"a":{done},"b":{index}}}'},
                }
                for index in range(2)
            ]
            self._transport.write(HEAD + chunk({"tool_calls": calls}) + chunk({}, "tool_calls") + END)
        elif kind in ("burst", "paced"):
            self._transport.write(HEAD)
            self._say(int(amount), 0.05 if kind == "paced" else 0.0)
        else:
            self._transport.write(HEAD + PIECE * 3 + chunk({}, "stop") + END)

    def _say(self, left: int, pause: float) -> None:
        if not left:
            self._transport.write(chunk({}, "stop") + END)
            return
        self._transport.write(PIECE)
        loop = asyncio.get_running_loop()
        # Paced streams speak at the same moments. Else chance would say how many batches the store gets of them.
        due = (loop.time() // pause + 1) * pause if pause else loop.time()
        loop.call_at(due, self._say, left - 1, pause)


class Asker(asyncio.Protocol):
    """A client with one connection. `ask` returns once the answer is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, text: str, *, stream: bool = False, calls: int = 0, **fields: object) -> None:
        body = json.dumps({"model": "m", "input": f"ask:{text}", "stream": stream, **fields}).encode()
        self._end = b"0\r\n\r\n" if stream else b"}"
        self._tail, self._answered = b"", asyncio.get_running_loop().create_future()
        head = "POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        told = await self._answered
        assert b'"status":"completed"' in told, told[-2000:]
        assert told.count(b'"type":"mcp_call"') == calls, told[-2000:]

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-65536:]
        if data.endswith(self._end) and not self._answered.done():
            self._answered.set_result(self._tail)


class Work:
    def __init__(self, port: int) -> None:
        self._port = port
        self._callgrind = Callgrind()

    async def connect(self) -> Asker:
        while True:
            try:
                _, asker = await asyncio.get_running_loop().create_connection(Asker, "127.0.0.1", self._port)
                return asker
            except OSError:
                await asyncio.sleep(0.01)

    async def do(self) -> None:
        # A server closes connections on which nothing comes, so each work has its own.
        async def ask_small(times: int) -> None:
            one = await self.connect()
            for _ in range(times):
                await one.ask("small")

        async def stream_paced(deltas: int) -> None:
            several = [await self.connect() for _ in range(STREAMS)]
            await asyncio.gather(*[each.ask(f"paced {deltas}", stream=True) for each in several])

        async def take_turns(turns: int) -> None:
            one = await self.connect()
            await one.ask(f"turns {turns}", max_turns=turns + 1, calls=2 * turns)

        async def stream_burst(deltas: int) -> None:
            one = await self.connect()
            await one.ask(f"burst {deltas}", stream=True)

        for name, work, amount in (
            (f"{REQUESTS} requests", ask_small, REQUESTS),
            (f"{DELTAS} deltas in a burst", stream_burst, DELTAS),
            (f"{STREAMS * PACED} deltas of {STREAMS} paced streams", stream_paced, PACED),
            (f"{TURNS} turns of two calls", take_turns, TURNS),
        ):
            await work(max(amount // 10, 8))
            began = Clock.now
            self._callgrind.tell(START)
            await work(amount)
            self._callgrind.tell(DUMP_AT, name.encode())
            self._callgrind.tell(STOP)
            print(f"{name}: {Clock.now - began:.6f} s by the clock of the work")


def watch_over(seconds: float) -> None:
    """Ends this process if it takes longer, by a clock that does not stand still."""

    def end() -> None:
        print(f"counted: not done after {seconds} s", flush=True)
        leave(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


PORTS: dict[str, int] = {}
FOLDER = Path(tempfile.gettempdir(), f"mainspring-counted-{os.getpid()}")


def leave(status: int) -> None:
    """Ends the process as it is: to stop the server in order is not what is counted."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.stdout.flush()
    os._exit(status)


def make_loop(use_subprocess: bool = False) -> Callable[[], asyncio.AbstractEventLoop]:
    return build_loop


def build_loop() -> asyncio.AbstractEventLoop:
    """The loop of the server, in which the load and the backend live too."""
    loop = SteppedLoop(SteppedSelector())
    BATON.is_stepping = True

    async def work() -> None:
        await loop.create_server(Backend, "127.0.0.1", PORTS["backend"])
        await Work(PORTS["server"]).do()
        leave(0)

    def report(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler({"message": "counted: the work failed", "exception": error})
            leave(1)

    loop.call_soon(lambda: loop.create_task(work()).add_done_callback(report))
    return loop


def find_ports() -> dict[str, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return {"server": one.getsockname()[1], "backend": other.getsockname()[1]}


def main() -> None:
    # Not before chance is taken away: modules keep the clocks and the randomness that they find.
    from uvicorn import config

    from mainspring.app.serve import serve
    from mainspring.app.settings import load

    config.LOOP_FACTORIES["uvloop"] = "bench.counted:make_loop"
    FOLDER.mkdir(mode=0o700)
    os.chdir(FOLDER)
    settings = {"port": PORTS["server"], "database": str(FOLDER / "counted.db"), "tools": ["bench.counted:add"]}
    serve(load({**settings, "base_url": f"http://127.0.0.1:{PORTS['backend']}/v1"}))


if __name__ == "__main__":
    watch_over(800)
    sys.modules["bench.counted"] = sys.modules["__main__"]
    sys.path.insert(0, str(Path(__file__).parent.parent))
    PORTS.update(find_ports())
    take_away_chance()
    main()
