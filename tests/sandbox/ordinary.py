"""An engine that is not root: its sandboxed programs run as the same user as it does. Says what they could do.

python ordinary.py FILE
"""

import asyncio
import json
import sys

from mainspring.tools.sandbox.probe import Mode, find_escapes, open_sandbox

CHANGES = {
    "mode": "os.chmod({file!r}, 0o600)",
    "times": "os.utime({file!r}, (0, 0))",
    "owner": "os.chown({file!r}, os.getuid(), os.getgid())",
    "content": "os.truncate({file!r}, 0)",
}


async def main() -> None:
    told: dict[str, dict[str, object]] = {}
    modes: tuple[Mode, ...] = ("bwrap", "landlock", "unsafe")
    for mode in modes:
        async with open_sandbox(mode, warm=0) as sandbox, sandbox.acquire() as lease:
            done = [name for name, code in CHANGES.items() if not (await lease.execute(changing(code))).exit.is_error]
            health = await sandbox.health()
            told[mode] = {"changed": done, "escapes": await find_escapes(sandbox), "uid": health.uid}
    print(json.dumps(told))


def changing(code: str) -> str:
    return f"import os\n{code.format(file=sys.argv[1])}"


asyncio.run(main())
