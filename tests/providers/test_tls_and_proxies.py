"""Backends with certificates of their own, and behind proxies, as the settings say."""

import ssl
from pathlib import Path

import pytest
from tests.net.servers import answering, make_certificates, proxying
from tests.providers.backend import QUESTION

from mainspring.core.errors import InvalidRequest, Misconfigured, ProviderError, Unavailable
from mainspring.core.events import TurnEnded
from mainspring.features.models.backends import make_provider
from mainspring.features.models.settings import ProviderSettings
from mainspring.providers.chat.provider import Chat
from mainspring.providers.credentials import fetch_credential

NOON = b'{"choices": [{"message": {"content": "noon"}, "finish_reason": "stop"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(NOON), NOON)
KEY = "sk-very-secret-key"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def last_event(backend: ProviderSettings) -> object:
    provider = make_provider("clock", backend, environment={})
    try:
        return [event async for event in provider.stream(QUESTION)][-1]
    finally:
        await provider.close()


async def test_a_backend_behind_a_proxy_with_a_certificate_of_its_own_answers(authority: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, tls = authority
    async with answering(ANSWER, tls=tls) as server, proxying() as proxy:
        url = f"https://clock.example:{server.port}/v1"
        proxied = f"http://me:hidden@127.0.0.1:{proxy.port}"
        backend = ProviderSettings(kind="chat", base_url=url, key=KEY, ca_file=str(ca_file), proxy=proxied)
        assert isinstance(await last_event(backend), TurnEnded)
    assert proxy.asked[0][0].startswith(b"CONNECT clock.example:%d " % server.port)
    assert f"Authorization: Bearer {KEY}".encode() in server.asked[0][0]
    assert KEY.encode() not in proxy.asked[0][0]


async def test_failures_on_the_way_name_no_secret(authority: tuple[Path, ssl.SSLContext]) -> None:
    errors: list[ProviderError] = []
    async with answering(ANSWER, tls=authority[1]) as server, proxying(b"403 Forbidden") as proxy:
        near, far = f"https://me:hidden-pass@127.0.0.1:{server.port}/v1", f"https://clock.example:{server.port}/v1"
        proxied = f"http://me:hidden-pass@127.0.0.1:{proxy.port}"
        for url, way in ((near, None), (far, proxied)):
            backend = ProviderSettings(kind="chat", base_url=url, key=KEY, proxy=way, attempts=1)
            with pytest.raises(ProviderError) as caught:
                await last_event(backend)
            errors.append(caught.value)
    assert [type(error) for error in errors] == [Misconfigured, Unavailable]
    assert "CERTIFICATE_VERIFY_FAILED" in errors[0].message
    assert "403" in errors[1].message
    for error in errors:
        for secret in (KEY, "hidden-pass"):
            assert secret not in error.message


async def test_credentials_in_the_clear_pass_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxying() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(Unavailable):
            await fetch_credential("http://metadata.invalid/token", hint="ask the operator")
        assert proxy.asked == []


@pytest.mark.parametrize("made", ["missing", "empty"])
def test_a_file_without_certificates_is_refused_at_once(tmp_path: Path, made: str) -> None:
    if made == "empty":
        (tmp_path / "ca.pem").write_text("")
    with pytest.raises(InvalidRequest, match=r"ca\.pem") as caught:
        Chat("https://localhost/v1", ca_file=str(tmp_path / "ca.pem"))
    assert caught.value.param == "ca_file"


def test_what_is_no_proxy_is_refused_at_once_without_its_password() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Chat("https://localhost/v1", proxy="socks5://me:hidden-pass@localhost:1080")
    assert caught.value.param == "proxy"
    assert "hidden-pass" not in caught.value.message
