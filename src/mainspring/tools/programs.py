"""Which programs start others, as data: to allow one of these is to allow anything.

The list is for the common ones that an operator may put on an allow-list without a second thought. It cannot be complete, and
need not be: a program that nobody allowed needs approval anyway, and the sandbox is the boundary.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They start nothing and touch no file.
BUILTINS: Final = _words(
    ": true false echo printf pwd cd pushd popd dirs test [ exit return break continue shift wait times umask read mapfile"
    " readarray getopts unset type set"
)

# Each runs what its arguments, its input or a file say.
_ALWAYS: Final = _words(
    "eval exec source . command builtin enable alias trap hash bind complete compgen fc shopt jobs"
    " let declare typeset local export readonly"  # quoted or escaped, so that they are no part of the grammar
    " sh bash dash zsh ksh ash fish csh tcsh rbash busybox toybox"
    " env xargs parallel sudo doas su runuser nohup timeout nice ionice setsid stdbuf time watch chroot unshare nsenter setarch"
    " flock script strace ltrace gdb lldb expect screen tmux at batch crontab systemd-run ssh start-stop-daemon taskset chrt"
    " vi vim nvim view ex ed emacs nano less more man pager top m4 npx pipx uvx bunx bun deno ld.so ld-linux-x86-64.so.2 rlwrap"
    " socat nc ncat netcat telnet setpriv capsh prlimit numactl choom uclampset coresched runcon pkexec sg bwrap firejail"
    " fakeroot faketime unbuffer dbus-run-session ssh-agent dumb-init tini gosu su-exec run-parts xvfb-run perf valgrind"
    " hyperfine entr"
)
# They run a file that is named, which is what they are allowed for; code in an option or from a pipe is something else.
_INTERPRETERS: Final = re.compile(r"(?:python|pypy|perl|ruby|node|nodejs|php|lua|luajit|Rscript|tclsh|osascript)[\d.]*")
_OPTIONS: Final = {
    "find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprintf", "-fprint0", "-fls"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "tar": ("-I", "-F", "--to-command", "--checkpoint-action", "--use-compress-program", "--info-script", "--new-volume-script",
            "--rsh-command", "--rmt-command", "--remove-files"),
    "git": ("-c", "--config-env", "--exec-path", "--upload-pack", "--receive-pack", "--exec", "-O", "--open-files-in-pager",
            "--ext-diff", "--textconv", "--output", "-x", "config", "submodule", "bisect", "difftool", "mergetool",
            "filter-branch"),
    "rg": ("--pre", "--hostname-bin"),
    "sort": ("--compress-program",),
    "split": ("--filter",),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "scp": ("-S", "-o"),
    "sftp": ("-S", "-o"),
    "zip": ("-T", "-TT", "--unzip-command"),
    "curl": ("-K", "--config"),
    "wget": ("--use-askpass", "--config", "-e", "--execute"),
    "make": ("--eval", "-E", "SHELL", ".SHELLFLAGS"),
    "jq": ("-f", "--from-file"),
    "mapfile": ("-C",),
    "readarray": ("-C",),
    "wait": ("-p",),
}  # fmt: skip
_SET = re.compile(r"-[eux]*o?|pipefail")
_SED_SCRIPT = re.compile(r"(?:[0-9,$]*[pdq=]|s([/|,#:])(?:(?!\1)[^\n;{}])*\1(?:(?!\1)[^\n;{}])*\1[gpiI0-9]*)(?:;(?=.)|$)")
_AWK_DANGER = re.compile(r"system|getline|[|>@]")


# Both the rules for commands and every layer of a budget ask about the same words.
@lru_cache(maxsize=1024)
def explain_reentry(words: Sequence[str | None], granted: int = 1) -> str | None:
    """Why these words may start more than the program they begin with; None if they do not, as far as is known.

    So many of the words at the beginning have been granted as they are.
    """
    name = basename(words[0] or "")
    if name in _ALWAYS:
        return None if granted > 1 else f"`{name}` runs whatever it is told to"
    if name == "set":
        return None if all(_SET.fullmatch(word or "") for word in words[1:]) else "`set` may change what the words mean"
    if _INTERPRETERS.fullmatch(name):
        return None if granted > 1 else _judge_interpreter(name, words)
    if name in ("sed", "gsed", "awk", "gawk", "mawk", "nawk"):
        return _judge_script(name, words)
    return _judge_options(name, words[max(granted, 1) :])


def basename(name: str) -> str:
    return name.rpartition("/")[2]


def _judge_options(name: str, words: Sequence[str | None]) -> str | None:
    known = [word for word in words if word is not None]
    if (options := _OPTIONS.get(name)) is None:
        return None
    if len(known) < len(words):
        return f"`{name}` can start programs, and not all of its options are known"
    # The first word of tar may be its options, without the dash.
    bare = [f"-{known[0].lstrip('-')}", *known[1:]] if name == "tar" and known and not known[0].startswith("--") else known
    found = next((word for word in bare if any(_is_option(word, option) for option in options)), None)
    return None if found is None else f"`{name} {found.partition('=')[0]}` starts or does more than it shows"


def _judge_interpreter(name: str, words: Sequence[str | None]) -> str | None:
    first = words[1] if len(words) > 1 else "-"
    if first is None or (first.startswith(("-", "/dev/", "/proc/")) and first not in ("-V", "--version", "-h", "--help")):
        return f"`{name}` without a file runs code from its options or its input"
    return None


def _judge_script(name: str, words: Sequence[str | None]) -> str | None:
    """sed and awk are languages that can start programs: their text must be one that surely does not."""
    known = [word for word in words[1:] if word is not None]
    if len(known) < len(words) - 1:
        return f"`{name}` can start programs, and not all of its script is known"
    if "awk" in name:
        options = [word for word in known if word.startswith("-") and not word.startswith(("-F", "-v"))]
        return f"this `{name}` script may start programs" if options or any(_AWK_DANGER.search(word) for word in known) else None
    options = [word for word in known if word.startswith("-") and word not in ("-n", "-E", "-r", "-e", "-i", "-s")]
    after = known[known.index("-e") + 1 :] if "-e" in known else [word for word in known if not word.startswith("-")]
    rest = _SED_SCRIPT.sub("", after[0]) if after else ""
    return f"this `{name}` script may start programs" if options or rest or known.count("-e") > 1 else None


def _is_option(word: str, option: str) -> bool:
    """Whether a word is this option: alone, with a value, shortened as GNU programs take it, or among other letters."""
    given = word.partition("=")[0]
    if option.startswith("--"):
        return len(given) > 2 and given.startswith("--") and option.startswith(given)
    if len(option) == 2:
        return word.startswith("-") and not word.startswith("--") and option[1] in word
    return given == option
