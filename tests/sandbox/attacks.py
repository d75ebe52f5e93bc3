"""Attempts to get out of a sandbox, as programs that say ESCAPED if they did. Each is harmless should it succeed.

`ESCAPES` also succeed for an ordinary user without a sandbox, which shows that the attempt itself works. `FORBIDDEN` fail for any
ordinary user, and are there because a sandbox started by root, or one that hands out a user namespace, would let them through.
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

SECRET = "belongs-to-the-host"


class Bait(Struct, frozen=True):
    """What the host has that a program might want."""

    file: str
    folder: str
    tcp: int
    udp: int
    abstract: str
    path: str
    victim: int
    memory: int
    neighbour: str

    @property
    def code(self) -> str:
        return f"import types\nbait = types.SimpleNamespace(**{msgspec.to_builtins(self)!r})\n{PRELUDE}"


PRELUDE = """
import ctypes, errno, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def syscall(x86, arm, *arguments):
    result = libc.syscall(x86 if X86 else arm, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def refused(x86, arm, *arguments):
    '''Whether the filter answers, not the call itself.'''
    try:
        syscall(x86, arm, *arguments)
    except OSError as error:
        return error.errno == errno.EPERM
    return False
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as end:
        end.settimeout(3)
        end.connect(address)
"""

ESCAPES = {
    "read a file of the host": "assert 'belongs' in open(bait.file).read()",
    "read the accounts of the host": "assert 'root:' in open('/etc/passwd').read()",
    "write to a file of the host": "open(bait.file, 'a').close()",
    "make a file in a folder of the host": "open(bait.folder + '/made', 'w').close(); os.unlink(bait.folder + '/made')",
    "read through a link": "os.symlink(bait.file, 'link'); assert 'belongs' in open('link').read()",
    "write through a link": "os.symlink(bait.folder, 'folder'); open('folder/made', 'w').close(); os.unlink('folder/made')",
    "take in a file of the host by a hard link": "os.link(bait.file, 'hard'); assert 'belongs' in open('hard').read()",
    "move a file of the host": "os.rename(bait.folder + '/moved', 'mine'); os.rename('mine', bait.folder + '/moved')",
    "empty a file of the host by name": "os.truncate(bait.folder + '/emptied', 0)",
    "read the workspace of another lease": "assert 'belongs' in open(bait.neighbour).read()",
    "write to the workspace of another lease": "open(bait.neighbour, 'a').close()",
    "list the host's files": "assert any(name.startswith('mainspring') for name in os.listdir('/tmp'))",
    "connect to the host's loopback": "connect(socket.AF_INET, ('127.0.0.1', bait.tcp))",
    "connect to the host's loopback by IPv6": "connect(socket.AF_INET6, ('::ffff:127.0.0.1', bait.tcp))",
    "send a datagram to the host": (
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:\n"
        "    end.settimeout(0.5)\n"
        "    end.connect(('127.0.0.1', bait.udp))\n"
        "    end.send(b'hello')\n"
        "    try:\n"
        "        end.recv(1)  # refused if nobody is there, else silence\n"
        "    except TimeoutError:\n"
        "        pass"
    ),
    "connect to an abstract unix socket": "connect(socket.AF_UNIX, chr(0) + bait.abstract)",
    "connect to a unix socket with a path": "connect(socket.AF_UNIX, bait.path)",
    "see a process of the host": "assert 'belongs' in open(f'/proc/{bait.victim}/environ').read()",
    "signal a process of the host": "os.kill(bait.victim, signal.SIGCONT)",
    "signal a process of the host by handle": "signal.pidfd_send_signal(os.pidfd_open(bait.victim), signal.SIGCONT)",
    "limit a process of the host": (
        "import resource\n"
        "limit = resource.prlimit(bait.victim, resource.RLIMIT_CORE)\n"
        "resource.prlimit(bait.victim, resource.RLIMIT_CORE, limit)"
    ),
    "slow down a process of the host": "os.setpriority(os.PRIO_PROCESS, bait.victim, 19)",
    "bind a process of the host to a processor": "os.sched_setaffinity(bait.victim, os.sched_getaffinity(0))",
    "read memory that the host shares": (
        "libc.shmat.restype = ctypes.c_void_p\n"
        "found = libc.shmget(bait.memory, 0, 0)\n"
        "assert found >= 0\n"
        "assert b'belongs' in ctypes.string_at(libc.shmat(found, None, 0o10000), 32)"
    ),
    "watch a folder of the host": (
        "watch = libc.inotify_init()\nassert libc.inotify_add_watch(watch, bait.folder.encode(), 0x100) >= 0"
    ),
    "look into another process": (
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.pause()\n"
        "try:\n"
        "    syscall(101, 117, 0x4206, child, 0, 0)\n"
        "finally:\n"
        "    os.kill(child, 9)"
    ),
    "make a user namespace": "assert libc.unshare(0x10000000) == 0",
    "make a user namespace by clone": "pid = syscall(56, 220, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)",
    "become root in a namespace and mount": (
        "assert libc.unshare(0x10020000) == 0\nassert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0"
    ),
    "use the kernel's keyrings": "assert not refused(250, 219, 0, -3, 0)",
    "use io_uring": "assert not refused(425, 425, 1, ctypes.create_string_buffer(120))",
    "make a file handle": "assert not refused(303, 264, -100, b'.', None, None, 0)",
    "compare processes": "assert not refused(312, 272, os.getpid(), os.getpid(), 2, 0, 0)",
    "use the new mount calls": "assert not refused(432, 432, -1, 0, 0) or not refused(428, 428, -100, b'.', 0)",
    "type into a terminal": "assert not refused(16, 29, 0, 0x5412, b'x')",
    "clone with flags in memory": (
        "try:\n    syscall(435, 435, None, 0)\nexcept OSError as error:\n    assert error.errno != errno.ENOSYS"
    ),
}

FORBIDDEN = {
    "read the passwords of the host": "open('/etc/shadow').read()",
    "set what the kernel runs on a crash": "open('/proc/sys/kernel/core_pattern', 'w')",
    "trigger the kernel": "open('/proc/sysrq-trigger', 'w')",
    "read the kernel's memory": "open('/proc/kcore', 'rb').read(1)",
    "mount": "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "change the root folder": "os.chroot('.')",
    "make a folder in the root": "os.mkdir('/made-by-a-test')",
    "change the system": "open('/usr/bin/made-by-a-test', 'w')",
    "change the interpreter": "open(sys.prefix + '/lib/made-by-a-test', 'w')",
    "become root": "os.setuid(0)",
    "make a raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "reach the metadata of a cloud": "connect(socket.AF_INET, ('169.254.169.254', 80))",
    "see the engine's secrets": (
        "def read(path):\n"
        "    try:\n"
        "        return open(path).read()\n"
        "    except OSError:\n"
        "        return ''\n"
        "texts = [read(f'/proc/{pid}/environ') for pid in ['self', *range(1, 400)]] + list(os.environ.values())\n"
        "assert any('kept-by-the-engine' in text for text in texts)"
    ),
    "gain rights by a program": "assert libc.prctl(39, 0, 0, 0, 0) == 0",
    "have a capability": (
        "head, data = struct.pack('=Ii', 0x20080522, 0), ctypes.create_string_buffer(24)\n"
        "syscall(125, 90, head, data)\n"
        "assert any(data.raw)"
    ),
    "inherit an open file": (
        "import stat\n"
        "def kind(number):\n"
        "    try:\n"
        "        return os.fstat(number).st_mode\n"
        "    except OSError:\n"
        "        return 0\n"
        "assert any(stat.S_ISREG(kind(n)) or stat.S_ISDIR(kind(n)) for n in range(3, 1024)) or any(map(kind, range(4, 1024)))"
    ),
    "make a kernel crypto socket": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "use a socket family that has no namespaces": "socket.socket(40, socket.SOCK_STREAM)",
    "call by the numbers of another convention": (
        "import mmap\n"
        "assert X86\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"
        "function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "assert function() > 0"
    ),
}


def attack(bait: Bait, code: str) -> str:
    """A program that tries, says ESCAPED, or says why not."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return (
        f"{bait.code}\ntry:\n{body}\nexcept Exception as error:\n    print('held:', repr(error))\nelse:\n    print('ESCAPED')\n"
    )


@contextmanager
def laid_out(user: int | None, neighbour: Path) -> Iterator[Bait]:
    """Lays out the bait, as the sandbox's own user where that makes it easier to take."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mainspring-bait-", dir="/tmp")))
        folder.chmod(0o777)
        for name in ("file", "moved", "emptied"):
            (folder / name).write_text(SECRET)
            (folder / name).chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=500))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        abstract, path = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        name = f"mainspring-{os.urandom(6).hex()}"
        abstract.bind(f"\0{name}")
        path.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        for listener in (abstract, path):
            listener.listen(500)
        victim = stack.enter_context(sleeper(user))
        yield Bait(
            file=str(folder / "file"),
            folder=str(folder),
            tcp=tcp.getsockname()[1],
            udp=udp.getsockname()[1],
            abstract=name,
            path=str(folder / "socket"),
            victim=victim.pid,
            memory=stack.enter_context(shared_memory()),
            neighbour=str(neighbour),
        )


@contextmanager
def shared_memory() -> Iterator[int]:
    """System V memory that anybody may read; gives its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = int.from_bytes(os.urandom(3))
    number = libc.shmget(key, 4096, 0o1000 | 0o666)
    assert number >= 0, os.strerror(ctypes.get_errno())
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, SECRET.encode(), len(SECRET))
    try:
        yield key
    finally:
        libc.shmdt(ctypes.c_void_p(address))
        libc.shmctl(number, 0, None)


@contextmanager
def sleeper(user: int | None) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the host to be attacked."""
    process = subprocess.Popen(
        ["/bin/sleep", "600"], env={"WHOSE": SECRET}, user=user, group=user, extra_groups=[] if user else None
    )
    try:
        yield process
        assert process.poll() is None, "the victim lives"
    finally:
        process.kill()
        process.wait()
