"""The worker that runs code inside the sandbox. A program of its own: it imports nothing of ours.

It reports that it is ready, reads one request, sets the limits, runs the code or the command, and reports how it ended; its
starter then kills it. For cells it goes on reading, and keeps what they define. A message has a length of four bytes in front.
Its answers are not trusted, since the code it runs could forge them: an answer is three numbers and a text.

Only modules written in C are imported before they are needed. The usual ones (`json`, `subprocess`, `traceback`, `typing`) would
take longer than the start of the interpreter.
"""

import atexit
import marshal
import os
import resource
import struct
import sys
from _ast import Expr, Expression, Module, PyCF_ONLY_AST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

CONTROL = 3
NOT_FOUND = 127
LONGEST_VALUE = 100_000
SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25


def main() -> None:
    os.set_inheritable(CONTROL, False)
    me = os.getpid()
    module = make_main_module()
    send_answer(0)
    number = 0
    while request := receive_request():
        number += 1
        limit(request["limits"])
        signal, value = 0, ""
        if "argv" in request:
            code, signal = run_command(request["argv"])
        elif "cell" in request:
            code, value = run_cell(request["cell"], module)
        else:
            code = run_code(request["code"], module)
        if os.getpid() != me:  # A copy that the code forked off has come out here too.
            os._exit(code)
        if "cell" in request:
            end_others()
        send_answer(code, signal, value, number)


def make_main_module() -> "ModuleType":
    """An empty `__main__`, and streams that show each line at once."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.path[:0] = ["", *[folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]]
    sys.argv[:] = ["-c"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    return module


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def run_command(argv: list[str]) -> tuple[int, int]:
    """The command's exit code, and the signal that ended it or 0."""
    try:
        # Python ignores these two signals, and what is ignored stays so.
        pid = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=(SIGPIPE, SIGXFSZ))
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND, 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return (code, 0) if code >= 0 else (128 - code, -code)


def run_code(code: str, module: "ModuleType") -> int:
    """As `python -c` does, to the threads that are waited for and the functions called at the end."""
    status = run_guarded(code, lambda: exec(compile(code, "<code>", "exec"), module.__dict__))
    if threading := sys.modules.get("threading"):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()
    flush()
    return status


def run_cell(code: str, module: "ModuleType") -> tuple[int, str]:
    values: list[str] = []
    status = run_guarded(code, lambda: evaluate(code, module.__dict__, values))
    flush()
    return status, values[0] if values else ""


def end_others() -> None:
    """Nothing that a cell started outlives it. Only where we number our own processes: elsewhere there are others' among them."""
    if os.getppid() == 1:
        try:  # noqa: SIM105 (contextlib would cost every start)
            os.kill(-1, SIGKILL)
        except OSError:
            pass  # There are none.


def evaluate(code: str, names: "dict[str, Any]", values: list[str]) -> None:
    """Runs the cell; if its last statement is an expression, its value is shown."""
    tree = compile(code, "<code>", "exec", PyCF_ONLY_AST)
    assert isinstance(tree, Module)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
    exec(compile(tree, "<code>", "exec"), names)
    if isinstance(last, Expr):
        value = eval(compile(Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            values.append(repr(value)[:LONGEST_VALUE])


def run_guarded(code: str, work: "Callable[[], object]") -> int:
    """Runs the work and shows what it raises as Python would."""
    try:
        work()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        show(error, code)
        return 1
    return 0


def show(error: BaseException, code: str) -> None:
    """Prints the error with the lines of the code and without the frames of this file."""
    import linecache
    import traceback

    linecache.cache["<code>"] = (len(code), None, code.splitlines(keepends=True), "<code>")
    traceback.print_exception(type(error), error, skip_own_frames(error))


def skip_own_frames(error: BaseException) -> "TracebackType | None":
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == main.__code__.co_filename:
        frames = frames.tb_next
    return frames


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # The code closed or replaced it.


def send_answer(code: int, signal: int = 0, value: str = "", number: int = 0) -> None:
    """Answers the request of this number, counted from 1; 0 is that it is ready."""
    data = struct.pack(">iii", number, code, signal) + value.encode(errors="replace")
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(CONTROL, data) :]


def receive_request() -> "Any":
    """The next request; None when there will be no more. It comes from the engine, so it may be a marshalled object."""
    length = receive(4)
    return marshal.loads(receive(struct.unpack(">I", length)[0])) if length else None


def receive(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(CONTROL, count - len(data))
        if not more:
            return b""
        data += more
    return data


if __name__ == "__main__":
    main()
