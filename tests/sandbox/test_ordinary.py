"""An engine that is not root, whose own files belong to the very user that sandboxed programs run as."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mainspring.tools.sandbox.places import find_system_python, is_reachable
from mainspring.tools.sandbox.workspace_files import Owner

SCRIPT = Path(__file__).with_name("ordinary.py")
USER = 25_000


def interpreter() -> str:
    """One that the user can start and that has the version our libraries were built for."""
    base = Path(sys.base_prefix)
    if os.getuid() != 0 or is_reachable(base / "bin", Owner(USER, USER)):
        return sys.executable
    found = find_system_python()
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    if found is None or subprocess.run([found.executable, "-c", version]).returncode:
        pytest.skip("no interpreter of our version that an ordinary user can start")
    return found.executable


@pytest.mark.slow
def test_programs_get_at_nothing_of_an_engine_that_is_the_same_user() -> None:
    user = USER if os.getuid() == 0 else None
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        file = folder / "own"
        file.write_text("belongs to the engine")
        for path in (folder, file):
            os.chown(path, user or -1, user or -1)
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [interpreter(), str(SCRIPT), str(file)],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
    for mode in ("bwrap", "landlock"):
        assert told[mode] == {"changed": [], "escapes": [], "uid": user or os.getuid()}
    assert told["unsafe"]["changed"] == ["mode", "times", "owner", "content"], "as the attempts would without a sandbox"
