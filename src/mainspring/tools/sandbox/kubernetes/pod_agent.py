"""The program that serves one connection into a pod. It imports nothing of ours, and runs on Python 3.9 and newer.

It reads requests from its standard input and answers on its standard output, one after the other. A message has a length of four
bytes in front; an answer has one more byte: `o` and `e` are output, `x` is the end of the answer in JSON. Programs run in a
worker (`worker.py`, whose text comes with the first request), and end with the connection or earlier, with all they started:
orphans become children of this process.

It runs as the same user as the code that a model wrote, which could forge its answers. That harms only itself, since whoever
reads them bounds and checks them.
"""

import ctypes
import errno
import json
import marshal
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 1 << 16
LONGEST_ANSWER = 1 << 20
LOOK_EVERY = 0.5
CONTROL = 3
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
WORKSPACE, SCRATCH = os.getcwd(), "/tmp"
PR_SET_CHILD_SUBREAPER = 36

statuses: "dict[int, int]" = {}


class Gone(Exception):
    """Whoever asked is not there any more."""


class WorkerProcess:
    """The process in which programs run. It is stopped between cells."""

    def __init__(self, text: str) -> None:
        ours, theirs = socket.socketpair()
        self.control, self.heard, self.awaited = ours, bytearray(), 2
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=WORKSPACE,
            env=build_environment(),
            pass_fds=(CONTROL,),
            preexec_fn=lambda: os.dup2(theirs.fileno(), CONTROL),
            start_new_session=True,
        )
        theirs.close()
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.stdin, self.stdout, self.stderr = (os.dup(pipe.fileno()) for pipe in pipes if pipe is not None)
        for pipe in pipes:
            pipe.close()  # type: ignore[union-attr]
        for file in (self.stdin, self.stdout, self.stderr, ours.fileno()):
            os.set_blocking(file, False)

    def take_answer(self) -> "bytes | None":
        """The answer to the order; the first message of all says that the worker is ready."""
        while len(self.heard) >= 4:
            length = struct.unpack_from(">I", self.heard)[0]
            if length > LONGEST_ANSWER:
                return b""
            if len(self.heard) < 4 + length:
                return None
            message = bytes(self.heard[4 : 4 + length])
            del self.heard[: 4 + length]
            self.awaited -= 1
            if not self.awaited:
                self.awaited = 1
                return message
        return None


def build_environment() -> "dict[str, str]":
    """None of the pod's own variables but where programs are."""
    known = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    own = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "USER": "sandbox", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return dict(known, **own)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Kept free, so that no other file has this number when a worker starts.
    os.dup2(os.open(os.devnull, os.O_RDONLY), CONTROL)
    service = Service()
    operations: dict[str, Any] = {
        "greet": greet,
        "put": put,
        "get": get,
        "remove": remove,
        "list": list_files,
        "make": make,
        "run": service.run,
    }
    try:
        while True:
            request = marshal.loads(receive(struct.unpack(">I", receive(4))[0]))
            try:
                done = operations[request.pop("do")](**request)
            except OSError as error:
                done = {"errno": error.errno or errno.EIO, "said": error.strerror or str(error)}
            send(b"x", json.dumps(done).encode())
    except (Gone, BrokenPipeError):
        pass
    finally:
        end_processes()


def greet(network: bool) -> "dict[str, object]":
    """Which languages there are, as whom programs run, and what they could do that they should not."""
    flaws = ["run as root"] if os.getuid() == 0 else []
    if attempt(lambda: os.close(os.open("/.mainspring", os.O_CREAT | os.O_WRONLY))):
        flaws.append("write to the root of their file system")
    if os.path.exists(TOKEN):
        flaws.append("read the token of a service account")
    with open("/proc/self/status") as file:
        held = [line.split()[1] for line in file if line.startswith("CapEff:")]
    if any(int(mask, 16) for mask in held):
        flaws.append("use capabilities")
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not network and host and attempt(lambda: socket.create_connection((host, int(port)), 2).close()):
        flaws.append("reach the API server although network policies forbid it")
    shell, node = shutil.which("bash") or shutil.which("sh"), shutil.which("node")
    languages = {"python": sys.executable, "shell": shell, "node": node}
    return {"languages": {name: at for name, at in languages.items() if at}, "uid": os.getuid(), "flaws": flaws}


def attempt(work: "Any") -> bool:
    try:
        work()
    except OSError:
        return False
    return True


def put(path: str, data: bytes, disk: int, entries: int, executable: bool = False) -> "dict[str, object]":
    size, count = measure_usage(entries)
    # A path may bring folders with it.
    if size + len(data) > disk or count + path.count("/") >= entries:
        return {"full": [count, size]}
    file = os.open(resolve(path, make=True), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        about = check_regular(file)
        os.ftruncate(file, 0)
        if executable:
            os.fchmod(file, 0o755)
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        about = os.fstat(file)
        return {"entry": [path, about.st_size, about.st_mtime_ns, bool(about.st_mode & stat.S_IXUSR)]}
    finally:
        os.close(file)


def get(path: str, most: int) -> "dict[str, object]":
    file = os.open(resolve(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = check_regular(file).st_size
        sent = 0
        while size <= most and sent <= most:
            data = os.read(file, PIECE)
            if not data:
                break
            sent += len(data)
            send(b"o", data)
        return {"size": max(size, sent)}
    finally:
        os.close(file)


def remove(path: str) -> "dict[str, object]":
    os.unlink(resolve(path))
    return {}


def make(folders: "list[str]", links: "list[tuple[str, str]]") -> "dict[str, object]":
    """Makes folders and links, as far as nothing is in their place."""
    for path in folders:
        resolve(path + "/.", make=True)
    for path, target in links:
        at = resolve(path, make=True)
        if not os.path.lexists(at):
            os.symlink(target, at)
    return {}


def list_files(most: int) -> "dict[str, object]":
    found: list[list[object]] = []
    empty: list[str] = []
    links: list[list[str]] = []
    left = most
    for folder, folders, names in os.walk(WORKSPACE):
        if not folders + names and folder != WORKSPACE:
            empty.append(os.path.relpath(folder, WORKSPACE))
        for name in folders + names:
            left -= 1
            if left < 0:
                break
            path = os.path.join(folder, name)
            try:
                about = os.lstat(path)
                if stat.S_ISLNK(about.st_mode):
                    links.append([os.path.relpath(path, WORKSPACE), os.readlink(path)])
            except OSError:
                continue  # It has vanished.
            if stat.S_ISREG(about.st_mode):
                is_executable = bool(about.st_mode & stat.S_IXUSR)
                found.append([os.path.relpath(path, WORKSPACE), about.st_size, about.st_mtime_ns, is_executable])
        if left < 0:
            break
    return {"entries": sorted(found), "folders": sorted(empty), "links": sorted(links), "whole": left >= 0}


def resolve(path: str, make: bool = False) -> str:
    """Where the file is. Raises `OSError` for a path that leads over a link."""
    at = WORKSPACE
    for folder in path.split("/")[:-1]:
        at = os.path.join(at, folder)
        if make and not os.path.lexists(at):
            os.mkdir(at)
        if os.path.islink(at):
            raise OSError(errno.ELOOP, "it is a link")
    return os.path.join(WORKSPACE, path)


def check_regular(file: int) -> os.stat_result:
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return about


def measure_usage(most: int) -> "tuple[int, int]":
    """The bytes and entries in all folders that can be written; counting ends beyond so many entries."""
    size = count = 0
    for top in (WORKSPACE, SCRATCH):
        for folder, folders, names in os.walk(top):
            for name in folders + names:
                try:
                    size += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    continue
                count += 1
                if count > most:
                    return size, count
    return size, count


class Service:
    """Runs programs, each in a worker of its own but for cells, which share one."""

    def __init__(self) -> None:
        self.worker: WorkerProcess | None = None

    def run(self, text: str, order: bytes, stdin: bytes, disk: int, entries: int, keep: bool) -> "dict[str, object]":
        worker = self.worker = self.worker or WorkerProcess(text)
        os.kill(worker.process.pid, signal.SIGCONT)
        kills = count_kills()
        answer, reason = follow(worker, order, stdin, disk, entries)
        if keep and answer:
            os.kill(worker.process.pid, signal.SIGSTOP)
            end_processes(keep=worker.process.pid)
        else:
            end_processes()
            self.worker = None
        if count_kills() > kills:
            reason = reason or "memory"
        status = statuses.get(worker.process.pid)
        return {"answer": None if answer is None else answer.hex(), "status": status, "reason": reason}


def follow(worker: WorkerProcess, order: bytes, stdin: bytes, disk: int, entries: int) -> "tuple[bytes | None, str | None]":
    """Passes on what goes in and out until the worker answers or ends, or the disk is full."""
    control = worker.control.fileno()
    unsent = {control: memoryview(order)}
    if worker.stdin >= 0:
        unsent[worker.stdin] = memoryview(stdin)
    streams = {worker.stdout: b"o", worker.stderr: b"e"}
    reads, next_look = {0, control, *streams}, time.monotonic() + LOOK_EVERY
    while True:
        ready, writable, _ = select.select(reads, unsent, [], LOOK_EVERY if control in reads else 0.01)
        if 0 in ready:
            raise Gone
        for file in writable:
            if feed(file, unsent) and file == worker.stdin:
                os.close(worker.stdin)
                worker.stdin = -1
        if control in ready and not hear(worker):
            reads.discard(control)
        reap()
        answer, is_dead = worker.take_answer(), worker.process.pid in statuses
        for file in [file for file in streams if file in ready or answer is not None or is_dead]:
            if not pass_on(file, streams[file], until_empty=answer is not None or is_dead):
                reads.discard(file)
        if answer is not None or is_dead:
            return answer, None
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK_EVERY
            size, count = measure_usage(entries)
            if size > disk or count > entries:
                return None, "disk_limit"


def feed(file: int, unsent: "dict[int, memoryview]") -> bool:
    """Writes what is accepted; whether that was all."""
    try:
        unsent[file] = unsent[file][os.write(file, unsent[file][:PIECE]) :]
    except BlockingIOError:
        return False
    except OSError:
        unsent[file] = memoryview(b"")  # The reader has closed its end.
    if unsent[file]:
        return False
    del unsent[file]
    return True


def hear(worker: WorkerProcess) -> bool:
    """Reads from the worker; false at the end. At most one message: hostile code may never stop writing."""
    try:
        data = os.read(worker.control.fileno(), PIECE) if len(worker.heard) <= LONGEST_ANSWER + 4 else b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    worker.heard += data
    return bool(data)


def pass_on(file: int, kind: bytes, until_empty: bool) -> bool:
    """Sends on what a program has written; false at the end."""
    while True:
        try:
            data = os.read(file, PIECE)
        except BlockingIOError:
            return True
        if not data:
            return False
        send(kind, data)
        if not until_empty:
            return True


def reap() -> None:
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            statuses[pid] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    except ChildProcessError:
        pass


def end_processes(keep: int = 0) -> None:
    """Kills all that descends from us, but for one; returns when it is gone."""
    for _ in range(2_000):
        left = [pid for pid in list_descendants() if pid != keep]
        for pid in left:
            attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL))
        reap()
        if not left:
            return
        time.sleep(0.002)


def list_descendants() -> "list[int]":
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, ())
    return found[1:]


def count_kills() -> int:
    """How many processes of the pod were killed for want of memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                return sum([int(line.split()[1]) for line in file if line.startswith("oom_kill ")])
        except OSError:
            continue
    return 0


def receive(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            raise Gone
        data += more
    return bytes(data)


def send(kind: bytes, data: bytes) -> None:
    view = memoryview(struct.pack(">I", len(data) + 1) + kind + data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
