"""Does what deploy/Dockerfile says without a container engine, and tries out the result: `python scripts/replay_image.py FOLDER`.

The steps of the build stage are run in FOLDER: its absolute paths are there, and `python` is this interpreter, not that of the
base image. Then the command of the image runs as the image's user, if this one may be another, with nothing in its environment
but what the image sets; its own health check must succeed, it must stop when it is told to, and have written to /data alone.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATHS = ("/opt/mainspring", "/src", "/data")
SECONDS = 60


class Step(NamedTuple):
    name: str
    rest: str


def read_stages(text: str) -> list[list[Step]]:
    """The instructions of each stage, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    stages: list[list[Step]] = []
    for line in filter(None, joined.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append(Step(name, rest.strip()))
    return stages


def move_paths(text: str, folder: Path) -> str:
    """The text with the image's own paths inside of the folder."""
    return re.sub(rf"(?<![\w/])({'|'.join(PATHS)})(?=[/\s\"']|$)", lambda found: f"{folder}{found[1]}", text)


def is_sent(source: str) -> bool:
    """Whether .dockerignore lets this be sent to the engine."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return source in kept


def build(steps: list[Step], folder: Path) -> None:
    place = folder
    for step in steps:
        match step.name:
            case "WORKDIR":
                place = Path(move_paths(step.rest, folder))
                place.mkdir(parents=True)
            case "COPY":
                *sources, target = step.rest.split()
                for source in sources:
                    if not is_sent(source):
                        raise SystemExit(f"replay: .dockerignore leaves out {source}")
                    copy(ROOT / source, place, target)
            case "RUN":
                command = re.sub(r"(?<![\w/])python(?= -)", shlex.quote(sys.executable), move_paths(step.rest, folder))
                subprocess.run(["sh", "-euc", command], cwd=place, check=True, stdout=subprocess.DEVNULL)
            case "FROM":
                pass
            case other:
                raise SystemExit(f"replay: the build stage has {other}, which is not known here")


def copy(source: Path, place: Path, target: str) -> None:
    if source.is_dir():
        shutil.copytree(source, place / target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, place / target / source.name)


def read_environment(steps: list[Step], folder: Path) -> dict[str, str]:
    found: dict[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for step in steps:
        if step.name == "ENV":
            for pair in shlex.split(move_paths(step.rest.replace("=/", "= /"), folder).replace("= /", "=/")):
                name, _, value = pair.partition("=")
                found[name] = value.replace("$PATH", found["PATH"])
    return found


def try_out(steps: list[Step], folder: Path) -> None:
    by_name = {step.name: step.rest for step in steps}
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    user = int(by_name["USER"].partition(":")[0])
    if user == 0:
        raise SystemExit("replay: the image runs as root")
    data = folder / "data"
    data.mkdir()
    script = data / "script.json"
    script.write_text('{"turns": [{"say": "Hello."}]}')
    # A key, since the image listens to everybody.
    given = {"MAINSPRING_PORT": str(port), "MAINSPRING_API_KEY": "key", "MAINSPRING_MODEL": f"scripted:{script}"}
    environment = {**read_environment(steps, folder), **given}
    command = [*json.loads(by_name["ENTRYPOINT"]), *json.loads(by_name["CMD"])]
    health = json.loads(re.sub(r"^.*?CMD ", "", by_name["HEALTHCHECK"]).replace(":8080/", f":{port}/"))
    chosen = choose_user(user, folder)
    if chosen is not None:
        os.chown(data, user, user)
    before = list_files(folder)
    server = subprocess.Popen(command, cwd=data, env=environment, user=chosen, group=chosen)
    try:
        until = time.monotonic() + SECONDS
        while subprocess.run(health, env=environment, stderr=subprocess.DEVNULL, check=False, user=chosen).returncode:
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit("replay: the server did not become healthy")
            time.sleep(0.2)
    finally:
        server.send_signal(signal.Signals[by_name["STOPSIGNAL"]])
        code = server.wait(SECONDS)
    if code:
        raise SystemExit(f"replay: the server ended with {code}")
    if written := list_files(folder) - before:
        raise SystemExit(f"replay: it wrote to its root: {sorted(written)[:3]}")


def choose_user(user: int, folder: Path) -> int | None:
    """The user, or None for the present one, if that may not become another or its Python is private."""
    try:
        subprocess.run([str(folder / "opt/mainspring/bin/python"), "-c", ""], check=True, user=user)
    except PermissionError:
        return None
    return user


def list_files(folder: Path) -> set[str]:
    """All files but those of /data."""
    return {str(path) for path in (folder / "opt").rglob("*")} | {str(path) for path in folder.iterdir()}


def main(folder: Path) -> None:
    first, last = read_stages((ROOT / "deploy/Dockerfile").read_text())
    build(first, folder)
    shutil.rmtree(folder / "src")
    # Its user must be able to look into a temporary folder of ours.
    for path in (folder, folder.parent):
        if Path(tempfile.gettempdir()) in path.parents:
            path.chmod(0o755)
    try_out(last, folder)
    who = "as its own user" if choose_user(65532, folder) is not None else "(not tried as its own user)"
    size = sum([path.stat().st_size for path in (folder / "opt").rglob("*") if path.is_file() and not path.is_symlink()])
    print(f"the image adds {size / 1e6:.0f} MB to its base; it is healthy {who}, and stops when it is told to")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
