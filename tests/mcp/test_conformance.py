"""The protocol's own conformance suite, with our connection as the client under test: all it requires of clients."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from threading import Thread

import pytest
from tests.kit.processes import start
from tests.mcp.conformance_suite import run_suite, suite

__all__ = ["suite"]

CLIENT = Path(__file__).parent / "conformance_client.py"
# The suite starts this, which has the client forked from a process that has imported everything; it ends as the client does.
RELAY = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.connect(sys.argv[1])
    door.sendall(json.dumps([sys.argv[2:], dict(os.environ)]).encode() + b"\\n")
    code, out, err = json.loads(door.makefile().readline())
sys.stdout.write(out), sys.stderr.write(err)
sys.exit(code)
"""

SIGN_INS = [
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
]
SCENARIOS = {
    "2025-11-25": ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", *SIGN_INS],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        *SIGN_INS,
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
    ],
}
# Not required, since it came after the revisions were released.
LATER = "json-schema-2020-12-preservation"
# Extensions of the protocol, which no revision requires.
MACHINES = ["auth/client-credentials-jwt", "auth/client-credentials-basic"]
NOT_OURS = {
    "auth/enterprise-managed-authorization": "needs an identity provider of the company's; people sign in to each server",
    "auth/dpop": "tokens that are bound to a key; no server is known that wants them",
    "auth/dpop-nonce": "as auth/dpop",
    "auth/wif-jwt-bearer": "needs a workload identity of a cloud; machines have client credentials",
}


class ClientForker(StreamRequestHandler):
    def handle(self) -> None:
        arguments, env = json.loads(self.rfile.readline())
        with start([sys.executable, str(CLIENT), *arguments], env=env) as client:
            out, err = client.communicate()
        self.wfile.write(json.dumps([client.wait(), out, err]).encode() + b"\n")


@pytest.fixture(scope="session")
def client_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The client's command line, without the URL."""
    folder = tmp_path_factory.mktemp("relay")
    relay, door = folder / "relay.py", folder / "door"
    relay.write_text(RELAY)
    with ThreadingUnixStreamServer(str(door), ClientForker) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield shlex.join([sys.executable, "-I", "-S", str(relay), str(door)])
        server.shutdown()
        serving.join()


@pytest.mark.slow
def test_the_list_of_scenarios_is_the_suites_own(suite: list[str]) -> None:
    for revision, scenarios in SCENARIOS.items():
        said = run_suite([*suite, "list", "--client", "--requirements", revision]).stdout
        required = said.partition("Client scenarios")[2].partition("Run and reported")[0]
        listed = [line.split()[1] for line in required.splitlines() if line.startswith("  - ")]
        assert listed == scenarios
        extensions = said.partition("extension (")[2].partition("added-after-release")[0]
        offered = [line.split()[1] for line in extensions.splitlines() if line.strip().startswith("- auth/")]
        assert offered == [*MACHINES, *NOT_OURS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        *[(revision, name) for revision, names in SCENARIOS.items() for name in [*names, LATER]],
        *[(None, name) for name in MACHINES],
    ],
)
def test_a_scenario_passes(revision: str | None, scenario: str, suite: list[str], client_command: str) -> None:
    options = ["--command", client_command, "--scenario", scenario, "--timeout", "60000"]
    options += [] if revision is None else ["--spec-version", revision]
    done = run_suite([*suite, "client", *options])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OVERALL: PASSED" in done.stdout + done.stderr
