"""The process that starts and ends everything that runs in a sandbox. A program of its own: it imports nothing of ours.

Theory of operation. The engine has threads, so it cannot safely fork and prepare a child. This process is small, has one thread,
and does it for the engine: it receives orders over a socket, one JSON object per packet, with open files attached. Each child
joins its control groups, drops root, sets its limits, and then executes the program.

A child with a namespace of its own takes all it started with it when it ends. One without (`tree`) gets a reaper: a process that
adopts whatever loses its parent, and that ends the whole tree when the program ends or the supervisor says so.

When the engine goes away, by whatever way, the socket closes; then the supervisor ends every child and removes what they left.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

PACKET = 1 << 18
FAILED = 126

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
SECCOMP_MODE_FILTER = 2
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_ONLY, PATH_BENEATH = 1, 1

# Landlock's rights to files, and how many of them each version of it knows.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
TCP = SCOPES = 0b11

libc = ctypes.CDLL(None, use_errno=True)

Order = dict[str, Any]


class Child:
    """A process under way. `stop` is the open end of its reaper's pipe, if it has a reaper.

    `status` is set for the first process of a namespace that outlived the one that made it: how that one ended. `groups` are the
    control groups it is in.
    """

    def __init__(self, number: int, pid: int, stop: int | None, groups: list[str], status: int | None = None) -> None:
        self.number = number
        self.pid = pid
        self.stop = stop
        self.groups = groups
        self.status = status
        self.handle = os.pidfd_open(pid)

    def end(self) -> None:
        """Ends it and all below it; that it is over is learned from `handle`."""
        inner = list_children(self.pid)
        if self.stop is not None:
            os.close(self.stop)
            self.stop = None
        elif inner:
            # The first process of its namespace: with it goes everything in it, and only then does the outer one end.
            end_child(self.pid, inner[0])
        else:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        # What is frozen does not even end.
        for group in self.groups:
            with suppress(OSError), open(f"{group}/freezer.state", "r+") as state:
                state.write("THAWED")

    def pause(self, is_paused: bool) -> None:
        """Stops all below it, or lets it go on. Looked at until nothing new is found: they may be starting others."""
        seen: set[int] = set()
        while new := set(list_descendants(self.pid)) - seen:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP if is_paused else signal.SIGCONT)
            seen |= new

    def reap(self) -> int:
        """Its exit status; ended by a signal, that is 128 and the signal, as for the first process of a namespace."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.handle)
        if self.stop is not None:
            os.close(self.stop)
        return read_exit_status(status) if self.status is None else self.status


class Supervisor:
    def __init__(self, engine: socket.socket) -> None:
        self.engine = engine
        self.poll = select.poll()
        self.poll.register(engine, select.POLLIN)
        self.children: dict[int, Child] = {}
        self.groups: set[str] = set()
        self.folder = ""
        self.views: list[str] = []

    def serve(self) -> None:
        """Serves orders until the engine is gone, then removes everything."""
        try:
            while self.step():
                pass
        finally:
            self.clear()

    def step(self) -> bool:
        for descriptor, _ in self.poll.poll():
            if descriptor != self.engine.fileno():
                self.report(descriptor)
            elif not self.obey():
                return False
        return True

    def obey(self) -> bool:
        """Receives one order and executes it. False at the end of the connection."""
        try:
            packet, files, _, _ = socket.recv_fds(self.engine, PACKET, 16)
        except ConnectionError:
            return False
        if not packet:
            return False
        order = json.loads(packet)
        match order["do"]:
            case "open":
                self.folder = order["folder"]
                self.tell({"is_shown": self.show(order["views"])})
            case "start":
                self.start(order, files)
            case "end":
                for child in self.children.values():
                    if child.number == order["id"]:
                        child.end()
            case "pause":
                for child in self.children.values():
                    if child.number == order["id"]:
                        child.pause(order["is_paused"])
            case "remember":
                self.groups.update(order["groups"])
            case "forget":
                self.groups.difference_update(order["groups"])
        return True

    def tell(self, message: Order) -> None:
        with suppress(OSError):  # If the engine is gone the next read shows it.
            self.engine.send(json.dumps(message).encode())

    def show(self, views: list[list[str]]) -> bool:
        """Makes folders visible, for our children only, that others than root could not reach where they are."""
        try:
            if views:
                check_result(libc.unshare(CLONE_NEWNS), "unshare")
                mount("none", "/", MS_REC | MS_PRIVATE)
            for source, target in views:
                mount(source, target, MS_BIND | MS_REC)
                self.views.append(target)
                mount("none", target, MS_BIND | MS_REMOUNT | MS_RDONLY)
        except OSError:
            return False
        return True

    def start(self, order: Order, files: list[int]) -> None:
        self.groups.update(os.path.dirname(join) for join in order["joins"])
        stopped, stop = os.pipe() if order["tree"] else (None, None)
        pid = os.fork()
        if pid == 0:
            become(order, files, stopped)
        for file in files if stopped is None else [*files, stopped]:
            os.close(file)
        self.watch(Child(order["id"], pid, stop, [os.path.dirname(join) for join in order["joins"]]))
        self.tell({"id": order["id"], "pid": pid})

    def watch(self, child: Child) -> None:
        self.children[child.handle] = child
        self.poll.register(child.handle, select.POLLIN)

    def report(self, handle: int) -> None:
        """Tells that a child has ended, once that is true of the namespace it made as well."""
        child = self.children.pop(handle)
        self.poll.unregister(handle)
        status = child.reap()
        remains = [pid for pid in list_children(os.getpid()) if os.getsid(pid) == child.pid]
        for pid in remains[:1]:
            os.kill(pid, signal.SIGKILL)
            self.watch(Child(child.number, pid, None, child.groups, status))
        if not remains:
            self.tell({"id": child.number, "status": status})

    def clear(self) -> None:
        for child in self.children.values():
            child.end()
        with suppress(ChildProcessError):
            while True:  # What they leave becomes ours and ends by itself.
                os.wait()
        for group in self.groups:
            remove_group(group)
        for view in self.views:
            libc.umount2(view.encode(), MNT_DETACH)
        if self.folder:
            remove_folder(self.folder)


def become(order: Order, files: list[int], stopped: int | None) -> NoReturn:
    """Turns this forked process into the program that was ordered, or into the reaper of it. Never returns."""
    try:
        os.setsid()
        arrange(files if stopped is None else [*files, stopped])
        if order["tree"]:
            run_with_reaper(order, len(files))
        prepare(order)
        os.execve(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:  # Nothing may run on in this copy of the supervisor.
        os.write(2, f"cannot start {order['argv'][0]}: {error}\n".encode())
    os._exit(FAILED)


def arrange(files: list[int]) -> None:
    """Gives the files the numbers 0, 1, 2, ... and closes every other one."""
    # Out of the way first, so that none is overwritten before it has its number.
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 256) for file in files]
    for index, file in enumerate(high):
        os.dup2(file, index)
    os.closerange(len(files), 1 << 20)


def run_with_reaper(order: Order, stopped: int) -> None:
    """Starts the program in a child, in which alone this returns; the reaper itself ends with it."""
    check_result(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    os.set_inheritable(stopped, False)
    pid = os.fork()
    if pid == 0:
        return
    # What the program says must end with the program.
    os.closerange(0, stopped)
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(stopped, select.POLLIN)
    poll.register(handle, select.POLLIN)
    poll.poll()
    os._exit(end_tree(pid))


def end_tree(first: int) -> int:
    """Kills all descendants until there are none; orphans have become children of this process. Returns how `first` ended."""
    status = FAILED
    me = os.getpid()
    while True:
        for pid in list_descendants(me):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == first:
            status = read_exit_status(ended)


def prepare(order: Order) -> None:
    """Drops the privileges of this process. The order matters: root last, except for the filters."""
    for join in order["joins"]:
        with open(join, "w") as group:
            group.write("0")
    rules = make_ruleset(order["confine"]) if order["confine"] else None
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so.
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["gid"], order["gid"], order["gid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    if order["tree"]:
        # Should the reaper itself be killed, the program ends at least. A change of user would have undone it.
        check_result(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    check_result(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.chdir(order["folder"])
    if rules is not None:
        check_result(libc.syscall(RESTRICT_SELF, rules, 0), "landlock_restrict_self")
        os.close(rules)
        install(bytes.fromhex(order["confine"]["filter"]))


def make_ruleset(confine: Order) -> int:
    """A Landlock ruleset: nothing may be touched but the paths named, nothing signalled or connected to outside."""
    version = read_landlock_version()
    every = (1 << RIGHTS.get(version, 16)) - 1
    words = [every]
    if version >= 4:
        words.append(0 if confine["network"] else TCP)
    if version >= 6:
        words.append(SCOPES)
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = check_result(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
    for rights, paths in ((READ, confine["read"]), (DEVICE, confine["devices"]), (every, confine["write"])):
        for path in paths:
            allow(rules, path, rights & every)
    return rules


def allow(rules: int, path: str, rights: int) -> None:
    """Adds a path to the ruleset; one that does not exist needs no rule."""
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(file).st_mode):
        rights &= OF_FILES
    rule = struct.pack("=Qi", rights, file)
    check_result(libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(file)


def read_landlock_version() -> int:
    """0 where there is no Landlock."""
    return max(0, int(libc.syscall(CREATE_RULESET, None, 0, VERSION_ONLY)))


def install(code: bytes) -> None:
    """Puts a filter on the system calls of this process and all it starts."""
    text = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    check_result(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, head, 0, 0), "seccomp")


def mount(source: str, target: str, flags: int) -> None:
    check_result(libc.mount(source.encode(), target.encode(), None, flags, None), f"mount {target}")


def check_result(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def read_exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def list_children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def end_child(parent: int, pid: int) -> None:
    """Kills a process if it is, and was, a child of `parent`: a number alone may belong to another one by now."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        if pid in list_children(parent):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def list_descendants(root: int) -> list[int]:
    """All processes below one, found by looking at all there are."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat") as file:
                below.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found = below.get(root, [])
    for pid in found:
        found += below.get(pid, [])
    return found


def remove_group(group: str) -> None:
    """Removes a control group. What is still in it is a program that the engine started beside us, and ends now."""
    for _ in range(100):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError:
            with suppress(OSError), open(f"{group}/cgroup.procs") as file:
                for pid in file.read().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)  # The kernel is not done with those that were in it.


def remove_folder(folder: str) -> None:
    """Removes the data, and of the rest only what is empty: a view that is still mounted is no copy but the thing itself."""
    os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", "--", f"{folder}/data"])
    with suppress(OSError):
        for name in os.listdir(f"{folder}/views"):
            os.rmdir(f"{folder}/views/{name}")
        os.rmdir(f"{folder}/views")
        os.unlink(f"{folder}/lock")
        os.rmdir(folder)


def main() -> None:
    # The first process of a namespace may outlive its parent by a moment. It is to become ours then, so that we know its end.
    check_result(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    Supervisor(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
