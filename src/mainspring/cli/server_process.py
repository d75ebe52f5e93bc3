"""The server's own process. It replaces that of the command line, whose libraries would take up memory for as long as it runs.

The settings come through a pipe whose number is the argument: they may hold keys, which nobody else shall see.
"""

import os
import sys
from typing import NoReturn

import msgspec

from mainspring.app.settings import Settings
from mainspring.cli.exit import answered, leave
from mainspring.cli.plain import accept_any_text


def become_server(settings: Settings) -> NoReturn:
    """Replaces this process by one that only serves."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as pipe:
        # Settings are far smaller than what a pipe holds unread.
        pipe.write(msgspec.json.encode(settings))
    os.set_inheritable(ours, True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "mainspring.cli.server_process", str(ours)])


def serve() -> int:
    from mainspring.app.serve import serve

    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        settings = msgspec.json.decode(pipe.read(), type=Settings)
    return serve(settings)


if __name__ == "__main__":
    accept_any_text()
    try:
        leave(answered(serve))
    except KeyboardInterrupt:
        sys.exit(130)
