"""A network of namespaces: each process of a test in one of its own, and a router between them and the tests that can lose
packets.

Unlike what a proxy holds back (`tests.kit.link`), nobody takes what is sent: TCP sends it again, more and more seldom, and
whoever waits in silence is never told that the other end is gone. It needs root and iproute2.

`enter_network` puts this thread into a namespace first, so the machine's own network is not touched. There the database has one
address and the tests another one, and so has each process: what is lost is lost between the two addresses for the database alone.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.kit.link import Direction

ALL = "10.77.0.0/16"
"""Where processes come from to the database."""
DATABASE = "10.77.0.1"
TESTS = "10.78.0.1"
_CLONE_NEWNET = 0x40000000
_PACKET_BITS = 12_000


def can_have_networks() -> bool:
    """Whether such a network is permitted here, and there are the programs that make it."""
    if any(shutil.which(program) is None for program in ("ip", "ss", "tc", "nsenter", "unshare")):
        return False
    script = "ip link add name a0 type veth peer name a1 && ip rule add to 10.0.0.1 blackhole"
    return subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, check=False).returncode == 0


def enter_network() -> None:
    """This thread, and whatever it starts, has a network of its own from now on."""
    _call("unshare", _CLONE_NEWNET)


def _call(name: str, *values: int) -> None:
    """A function of the C library that Python has none for."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*values) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Namespace:
    """An empty network, there until `close` or the end of this process."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "sh", "-c", "echo; read -r end"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"\n"
        self.pid = self._process.pid
        self.enter: Sequence[str] = ("nsenter", f"--net=/proc/{self.pid}/ns/net")

    def join(self) -> None:
        """This thread is in it from now on: what it opens is at this end."""
        with open(f"/proc/{self.pid}/ns/net") as file:
            _call("setns", file.fileno(), _CLONE_NEWNET)

    def run(self, script: str) -> None:
        _run([*self.enter, "sh", "-ec", script])

    def close(self) -> None:
        self._process.communicate()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


class Cable:
    """A process's way to the database, as a `Link` is one, and to the tests, which nothing happens to."""

    def __init__(self, router: Namespace, number: int) -> None:
        self._router, self._number = router, number
        self.end = Namespace()
        self._towards_database, self.address = f"10.77.{number}.2", f"10.78.{number}.2"
        self._rules: list[str] = []
        self._is_refusing, self._delay = False, 0.0
        router.run(f"""
            ip link add name port{number} type veth peer name cable netns {self.end.pid}
            ip address add 10.77.{number}.1/24 dev port{number}
            ip address add 10.78.{number}.1/24 dev port{number}
            ip link set port{number} up
        """)
        self.end.run(f"""
            ip link set lo up
            ip address add {self._towards_database}/24 dev cable
            ip address add {self.address}/24 dev cable
            ip link set cable up
            ip route add {DATABASE} via 10.77.{number}.1 src {self._towards_database}
            ip route add default via 10.78.{number}.1 src {self.address}
        """)

    def hold(self, *directions: Direction) -> None:
        """Loses what is sent in these directions."""
        for direction in directions:
            self._add(f"{'from' if direction == 'questions' else 'to'} {self._towards_database} blackhole")

    def release(self) -> None:
        """Nothing is lost any more; TCP finds out when it tries again."""
        for rule in self._rules:
            self._router.run(f"ip rule delete {rule}")
        self._rules.clear()

    def cut(self) -> None:
        """Resets all connections to the database."""
        self.end.run(f"ss --kill --tcp --no-header dst {DATABASE}")
        _run(["ss", "--kill", "--tcp", "--no-header", "dst", self._towards_database])  # where the tests are

    @property
    def is_refusing(self) -> bool:
        """Whether the router says that the database cannot be reached."""
        return self._is_refusing

    @is_refusing.setter
    def is_refusing(self, is_so: bool) -> None:
        if is_so != self._is_refusing:
            self._is_refusing = is_so
            self._router.run(f"ip rule {'add' if is_so else 'delete'} from {self._towards_database} unreachable")

    @property
    def delay(self) -> float:
        """How many seconds a full packet takes: the line is that slow."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        if seconds != self._delay:
            self._delay = seconds
            shape = f"replace dev cable root tbf rate {int(_PACKET_BITS / seconds)}bit burst 3000 limit 500000" if seconds else ""
            self.end.run(f"tc qdisc {shape or 'delete dev cable root'}")

    def close(self) -> None:
        self.end.close()

    def _add(self, rule: str) -> None:
        if rule not in self._rules:
            self._rules.append(rule)
            self._router.run(f"ip rule add {rule}")


class Network:
    """The router, and the tests' end of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._router = Namespace()
        stack.callback(self._router.close)
        self._count = 0
        here = f"""
            ip link set lo up
            ip link add name tests type veth peer name tests netns {self._router.pid}
            ip address add {DATABASE}/24 dev tests
            ip address add {TESTS}/24 dev tests
            ip link set tests up
            ip route add {ALL} via 10.77.0.254 src {DATABASE}
            ip route add 10.78.0.0/16 via 10.78.0.254 src {TESTS}
        """
        _run(["sh", "-ec", here])
        self._router.run("""
            ip address add 10.77.0.254/24 dev tests
            ip address add 10.78.0.254/24 dev tests
            ip link set tests up
            echo 1 > /proc/sys/net/ipv4/ip_forward
        """)

    def connect(self) -> Cable:
        """A new namespace."""
        self._count += 1
        cable = Cable(self._router, self._count)
        self._stack.callback(cable.close)
        return cable


@contextmanager
def running_network() -> Iterator[Network]:
    """To be used after `enter_network`, once in a namespace."""
    with ExitStack() as stack:
        yield Network(stack)
