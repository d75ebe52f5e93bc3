"""The sources of the console: their types are right, nothing in the lock names a host, and what browsers load is small."""

import gzip
import json
import shutil
import subprocess

import pytest
from scripts.console_types import FILE, write_types
from tests.kit.processes import ROOT

from mainspring.features.console.routes import BUILD_COMMAND, FILES

CONSOLE = ROOT / "console"
MOST_BYTES = 200_000


def test_the_types_of_the_sources_are_right() -> None:
    compiler = CONSOLE / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists() or shutil.which("node") is None:
        pytest.skip("TypeScript is not installed; scripts/setup dev installs it")
    done = subprocess.run(["node", str(compiler), "--noEmit"], cwd=CONSOLE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_types_of_answers_are_those_of_the_openapi_document() -> None:
    assert FILE.read_text() == write_types(), "python -m scripts.console_types writes it anew"


def test_the_lock_has_hashes_and_no_addresses() -> None:
    packages = json.loads((CONSOLE / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []


def test_all_that_browsers_load_is_at_most_200_kilobytes_compressed() -> None:
    files = [file for file in FILES.iterdir() if file.name.endswith((".js", ".css"))] if FILES.is_dir() else []
    if not files:
        pytest.skip(f"the console is not built; {BUILD_COMMAND} builds it")
    assert sum([len(gzip.compress(file.read_bytes())) for file in files]) <= MOST_BYTES
