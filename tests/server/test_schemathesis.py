"""Every operation of the OpenAPI document, with whatever fits the document and whatever does not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.world import written
from tests.server.process import serving

ROOT = Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # many routes, on cores that others use too
def test_no_request_gets_an_answer_that_the_document_does_not_describe(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    # Whatever the input is, also if nobody can read it.
    (tmp_path / "turns.json").write_text(json.dumps({"turns": [{"say": "Hello there."}], "repeat": True}))
    with serving(tmp_path, [], "--model", "scripted:turns.json", env={"MAINSPRING_AGENTS": "agents"}) as served:
        # A process of its own: what its libraries warn of is not ours to answer for.
        command = [sys.executable, "-m", "schemathesis.cli", "run", served.url.removesuffix("/v1") + "/openapi.json"]
        command += ["--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing,stateful", "--max-examples", "5"]
        command += ["--seed", "1", "--request-timeout", "30", "--no-color", "--warnings", "off"]
        hooks = {"SCHEMATHESIS_HOOKS": "tests.server.meaning", "PYTHONPATH": str(ROOT)}
        run = subprocess.run(command, cwd=tmp_path, env={**os.environ, **hooks}, capture_output=True, text=True, timeout=800)
        assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
        assert served.process.poll() is None
    assert re.search(r"\b(\d+) selected / \1 total", run.stdout), run.stdout
