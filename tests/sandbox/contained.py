"""An engine in a container: a system call filter around it refuses namespaces and mounts. Says which sandbox it found."""

import asyncio
import json

from mainspring.tools.sandbox.probe import find_escapes, open_sandbox
from mainspring.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_UNIX, Profile, build_filter
from mainspring.tools.sandbox.supervisor import PR_SET_NO_NEW_PRIVS, check_result, install, libc


async def main() -> None:
    async with open_sandbox("auto", warm=0) as sandbox, sandbox.acquire() as lease:
        health = await sandbox.health()
        said = (await lease.execute("print('fine')")).stdout
        found = await find_escapes(sandbox)
    print(json.dumps({"backend": health.backend, "refused": health.refused, "said": said, "escapes": found}))


check_result(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
install(build_filter(Profile((AF_UNIX, AF_INET, AF_INET6))))
asyncio.run(main())
