"""OGX (which was Llama Stack) and LiteLLM beside Mainspring, as somebody would install them who needs the Responses API.

Each is installed from the package registry into an environment of its own, and stands between the same backend and MCP server:
OGX with its SQLite stores, LiteLLM's proxy without a database, so it stores nothing. What cannot be had is told and left out.
"""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from bench.processes import free_port, process
from bench.targets import Surroundings, Target

INSTALL_SECONDS, START_SECONDS = 600, 180
# Beside OGX itself what its `responses` cannot start without.
OGX_PACKAGES = ["ogx", "aiohttp", "chardet", "faiss-cpu", "numpy", "pypdf", "python-multipart"]
OGX = """
version: 2
distro_name: bench
apis: [inference, responses, tool_runtime, vector_io, files, file_processors]
providers:
  inference:
  - {{provider_id: vllm, provider_type: "remote::vllm", config: {{base_url: "{backend}", api_token: fake}}}}
  responses:
  - provider_id: builtin
    provider_type: inline::builtin
    config: {{persistence: {{responses: {{table_name: responses, backend: sql}}}}}}
  vector_io:
  - {{provider_id: faiss, provider_type: "inline::faiss", config: {{persistence: {{namespace: faiss, backend: kv}}}}}}
  files:
  - provider_id: files
    provider_type: inline::localfs
    config: {{storage_dir: files, metadata_store: {{table_name: files, backend: sql}}}}
  file_processors:
  - {{provider_id: auto, provider_type: "inline::auto"}}
  tool_runtime:
  - {{provider_id: file-search, provider_type: "inline::file-search"}}
  - {{provider_id: mcp, provider_type: "remote::model-context-protocol"}}
storage:
  backends:
    kv: {{type: kv_sqlite, db_path: kv.db}}
    sql: {{type: sql_sqlite, db_path: sql.db}}
  stores:
    metadata: {{namespace: registry, backend: kv}}
    inference: {{table_name: inference, backend: sql}}
    conversations: {{table_name: conversations, backend: sql}}
    prompts: {{table_name: prompts, backend: sql}}
    connectors: {{table_name: connectors, backend: sql}}
registered_resources:
  models:
  - {{metadata: {{}}, model_id: m, provider_id: vllm, provider_model_id: m, model_type: llm}}
server: {{port: {port}}}
"""
# By the name of a vendor whose backends speak Chat Completions only; for others it asks for their own Responses API.
LITELLM = """
model_list:
  - model_name: m
    litellm_params: {{model: deepseek/m, api_base: "{backend}", api_key: fake}}
"""


@contextmanager
def peers(ports: Surroundings, folder: Path | None) -> Iterator[list[Target]]:
    """Those that can be had. Environments in `folder` are used again; without one they are thrown away."""
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(TemporaryDirectory(prefix="mainspring-peers-")))
        found = []
        for start in (start_litellm, start_ogx):
            try:
                found.append(start(place.absolute(), ports, stack))
            except (RuntimeError, subprocess.SubprocessError, OSError) as error:
                print(f"{start.__name__.removeprefix('start_')} cannot be had: {error}", flush=True)
        yield found


def start_ogx(place: Path, ports: Surroundings, stack: ExitStack) -> Target:
    binary = install(place / "ogx", OGX_PACKAGES, find_python((3, 12)))
    port, folder = free_port(), make_folder(stack)
    (folder / "config.yaml").write_text(OGX.format(backend=f"http://127.0.0.1:{ports.backend}/v1", port=port))
    command = [str(binary / "ogx"), "run", "config.yaml", "--port", str(port), "--insecure"]
    # It fetches a table of tokens when it starts. LiteLLM brings the same file, for those who cannot reach it.
    tables = next(iter((place / "litellm").glob("lib/*/site-packages/litellm/litellm_core_utils/tokenizers")), folder)
    return start("ogx", command, folder, port, "vllm/m", ports, stack, {"TIKTOKEN_CACHE_DIR": str(tables)})


def start_litellm(place: Path, ports: Surroundings, stack: ExitStack) -> Target:
    binary = install(place / "litellm", ["litellm[proxy]"], find_python((3, 11)))
    port, folder = free_port(), make_folder(stack)
    (folder / "config.yaml").write_text(LITELLM.format(backend=f"http://127.0.0.1:{ports.backend}/v1"))
    # It fetches no table of prices; asks for no key, on this machine and for a moment; and takes equal pieces for what they are.
    offline = {
        "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    command = [str(binary / "litellm"), "--config", "config.yaml", "--port", str(port), "--num_workers", "1"]
    return start("litellm", command, folder, port, "m", ports, stack, offline)


def make_folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(TemporaryDirectory(prefix="mainspring-peer-", ignore_cleanup_errors=True)))


def start(
    name: str, command: list[str], folder: Path, port: int, model: str, ports: Surroundings, stack: ExitStack, env: dict[str, str]
) -> Target:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OTEL_SDK_DISABLED": "true", **env}
    log = stack.enter_context((folder / "log").open("w"))
    started = stack.enter_context(process(*command, cwd=str(folder), env=environment, output=log))
    target = Target(name, started.pid, f"http://127.0.0.1:{port}/v1", model=model, mcp=ports.mcp)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with urllib.request.urlopen(f"{target.base}/models", timeout=5):
                return target
        except urllib.error.HTTPError:
            return target
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"it does not start: {(folder / 'log').read_text()[-1500:]}")


def install(place: Path, packages: list[str], python: str, bare: Sequence[str] = ()) -> Path:
    """The folder of commands of an environment with these packages; those that are `bare` come without what they ask for."""
    binary = place / "bin"
    if not (place / "complete").exists():
        print(f"installing {packages[0]} into {place}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", place], check=True, timeout=120)
        for wanted in [packages, *[["--no-deps", name] for name in bare]]:
            command = [str(binary / "python"), "-m", "pip", "install", "--quiet", "--no-input", *wanted]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            if done.returncode:
                raise RuntimeError(f"pip: {done.stderr[-600:]}")
        (place / "complete").touch()
    return binary


def find_python(version: tuple[int, int]) -> str:
    names = [which(f"python3.{minor}") for minor in range(14, version[1] - 1, -1)]
    ours = [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")]
    for name in [*names, *sorted(ours, reverse=True)]:
        wanted = f"import sys, venv, ensurepip; sys.exit(not {version} <= sys.version_info < (3, 14))"
        if name and subprocess.run([name, "-c", wanted], capture_output=True, timeout=30).returncode == 0:
            return name
    raise RuntimeError(f"it needs Python {version[0]}.{version[1]} or newer, and there is none here")
