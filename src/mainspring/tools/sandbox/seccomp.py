"""The seccomp filter: the system calls that sandboxed programs may not make.

A deny list, not an allow list: programs of all kinds must run, and namespaces or Landlock already isolate them. The filter
removes parts of the kernel that no tool needs and that escapes use. Denied calls fail with EPERM; `clone3` fails with ENOSYS,
because its flags are in memory where no filter sees them, and the C library then falls back to `clone`, whose flags are
inspected.
"""

import errno
import platform
import struct
from collections.abc import Sequence

from msgspec import Struct

from mainspring.core.errors import SandboxError


class Profile(Struct, frozen=True):
    """What a filter leaves open beyond the fixed list."""

    families: tuple[int, ...]
    """The address families of which a socket may be made."""
    signals: bool = True
    metadata: bool = True
    """Owner, mode, times and attributes of files named by their path."""
    others: bool = True
    """What reaches processes and files by a number or a name that, without namespaces, are the host's."""


class Machine(Struct, frozen=True):
    audit: int
    column: int
    foreign: int | None = None
    """Numbers from here on belong to another calling convention (x32) and would slip past the list."""


AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

MACHINES = {"x86_64": Machine(0xC000003E, 0, 0x40000000), "aarch64": Machine(0xC00000B7, 1)}

# Name: number on x86_64, number on aarch64; None where a machine has no such call.
Table = dict[str, tuple[int | None, int | None]]

REFUSED: Table = {
    # looking into or reaching for other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    # files by handle, past every path check
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # large and often broken parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "modify_ldt": (154, None),
    # the machine itself
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
    # remains of old kernels
    "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None), "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
}  # fmt: skip
SIGNALS: Table = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
METADATA: Table = {
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "setxattrat": (463, 463), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "removexattrat": (466, 466), "file_setattr": (469, 469), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None),
}  # fmt: skip
OTHERS: Table = {
    # memory, queues and semaphores that any process of the same user can open, and that outlive their maker
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # how fast others of the same user run
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    # what happens in folders that cannot be read
    "inotify_add_watch": (254, 27),
}  # fmt: skip
CLONE, CLONE3, SOCKET, IOCTL, UTIMENSAT, PRLIMIT = (56, 220), (435, 435), (41, 198), (16, 29), (280, 88), (302, 261)

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# They put words into the terminal somebody else reads from.
TERMINAL_INPUT = (0x5412, 0x541C)

# Classic BPF: instruction codes, results, and where `struct seccomp_data` keeps what is asked.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
REFUSE, ABSENT = FAIL | errno.EPERM, FAIL | errno.ENOSYS

Instruction = tuple[int, int, int, int]

# Refuses unless the loaded word is zero.
ZERO: list[Instruction] = [(EQUAL, 1, 0, 0), (RETURN, 0, 0, REFUSE)]


def build_filter(profile: Profile, machine: str | None = None) -> bytes:
    """The filter as the kernel takes it. Raises `SandboxError` on a processor whose call numbers are not listed."""
    name = machine or platform.machine()
    known = MACHINES.get(name)
    if known is None:
        raise SandboxError(f"no system call filter for the processor `{name}`; known: {', '.join(MACHINES)}")
    lines: list[Instruction] = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, known.audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if known.foreign is not None:
        lines += _end_if(AT_LEAST, known.foreign, ABSENT)
    lines += _end_if(EQUAL, CLONE3[known.column], ABSENT)
    for call in _list_refused(profile):
        number = call[known.column]
        if number is not None:
            lines += _end_if(EQUAL, number, REFUSE)
    lines += _inspect(CLONE[known.column], 0, _end_if(ANY_BIT, NEW_NAMESPACES, REFUSE))
    lines += _inspect(IOCTL[known.column], 1, [line for code in TERMINAL_INPUT for line in _end_if(EQUAL, code, REFUSE)])
    lines += _inspect(SOCKET[known.column], 0, _filter_sockets(profile.families))
    if not profile.metadata:
        lines += _inspect(UTIMENSAT[known.column], 1, _refuse_pointers(ARGUMENTS + 12))
    if not profile.others:
        lines += _inspect(PRLIMIT[known.column], 0, ZERO)
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _list_refused(profile: Profile) -> list[tuple[int | None, int | None]]:
    optional = ((SIGNALS, profile.signals), (METADATA, profile.metadata), (OTHERS, profile.others))
    tables = [REFUSED, *(table for table, is_open in optional if not is_open)]
    return [numbers for table in tables for numbers in table.values()]


def _end_if(test: int, value: int, result: int) -> list[Instruction]:
    """Ends with `result` if the loaded word passes the test."""
    return [(test, 0, 1, value), (RETURN, 0, 0, result)]


def _inspect(number: int, argument: int, checks: Sequence[Instruction]) -> list[Instruction]:
    """Runs the checks on an argument's low half if the call is this one; what they do not refuse is allowed."""
    body = [(LOAD, 0, 0, ARGUMENTS + 8 * argument), *checks, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(body), number), *body]


def _refuse_pointers(upper: int) -> list[Instruction]:
    """Refuses unless the pointer is null: then the file is an open one. Its upper half counts as much as the loaded one."""
    return [*ZERO, (LOAD, 0, 0, upper), *ZERO]


def _filter_sockets(families: Sequence[int]) -> list[Instruction]:
    return [line for family in families for line in _end_if(EQUAL, family, ALLOW)] + [(RETURN, 0, 0, REFUSE)]
