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
from tests.mcp.conformance_suite import REVISIONS, find_unexplained, list_scenarios, run_revision, run_scenario, suite

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
# Of the first revision with sign-ins, for which the suite has no set of its own.
OLDER = ["auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"]
# Not required, since it came after the revisions were released.
LATER = "json-schema-2020-12-preservation"
# Extensions of the protocol, which no revision requires.
EXTENSIONS = [
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
]
# Of a draft, and in none of the sets.
NOT_RUN = {"sep-2640-": "skills that servers hand out: those of ours are files of the operator's, and none is read from servers"}
# Where the server is not to be trusted, our client ends with an error. The suite takes no notice of how a client ends.
REFUSALS = {
    "auth/scope-retry-limit",
    "auth/resource-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
}

unhappy: set[str] = set()


class ClientForker(StreamRequestHandler):
    def handle(self) -> None:
        arguments, env = json.loads(self.rfile.readline())
        with start([sys.executable, str(CLIENT), *arguments], env=env) as client:
            out, err = client.communicate()
        if client.wait() != 0:
            unhappy.add(env["MCP_CONFORMANCE_SCENARIO"])
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
def test_every_scenario_of_the_suite_is_run_or_has_a_reason_not_to(suite: list[str]) -> None:
    run = [*SCENARIOS["2025-11-25"], *SCENARIOS["2026-07-28"], *OLDER, *EXTENSIONS, LATER]
    assert find_unexplained(list_scenarios(suite, "client"), run, NOT_RUN) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OLDER)
def test_a_server_of_the_first_revision_with_sign_ins_is_signed_in_to(
    name: str, suite: list[str], client_command: str, tmp_path: Path
) -> None:
    unhappy.clear()
    assert (run_scenario(suite, name, client_command, tmp_path), unhappy) == ({}, set())


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes(revision: str, suite: list[str], client_command: str, tmp_path: Path) -> None:
    unhappy.clear()
    found = run_revision(suite, "client", ["--command", client_command], revision, tmp_path)
    assert found.required == {name: {} for name in SCENARIOS[revision]}
    assert found.others == {name: {} for name in (*EXTENSIONS, LATER)}
    assert unhappy == REFUSALS & set(SCENARIOS[revision])
