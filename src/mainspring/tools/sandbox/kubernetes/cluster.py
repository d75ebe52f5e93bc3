"""Which cluster to talk to, and as whom: the service account of this pod, or a kubeconfig.

Programs that fetch credentials, passwords and unverified certificates are refused in words. Connections are direct, without a
proxy.
"""

import os
import ssl
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import msgspec
import yaml
from msgspec import Struct, field
from yarl import URL

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Cluster(Struct, frozen=True):
    """`token_file` is read for every request, since tokens are replaced while we run."""

    server: URL
    tls: ssl.SSLContext | None
    namespace: str
    token: str | None = None
    token_file: Path | None = None

    def read_token(self) -> str | None:
        """Raises `SandboxError` if it cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise SandboxError(f"the token of the cluster cannot be read: {error}") from error


def find_cluster(settings: KubernetesSettings, account: Path = ACCOUNT) -> Cluster:
    """Raises `SandboxError` that says what is missing or not supported."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if settings.kubeconfig is None and host and (account / "token").exists():
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        own = (account / "namespace").read_text().strip() if (account / "namespace").exists() else "default"
        server = URL.build(scheme="https", host=host, port=int(port))
        return Cluster(server, _trust(str(account / "ca.crt"), None), settings.namespace or own, None, account / "token")
    named = settings.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return _read_kubeconfig(Path(named).expanduser(), settings)


class _ClusterEntry(Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(Struct, rename="kebab"):
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    exec: dict[str, object] | None = None
    auth_provider: dict[str, object] | None = None


class _Context(Struct):
    cluster: str
    user: str
    namespace: str = "default"


class _NamedCluster(Struct):
    name: str
    cluster: _ClusterEntry


class _NamedUser(Struct):
    name: str
    user: _User


class _NamedContext(Struct):
    name: str
    context: _Context


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


class _Kubeconfig(Struct, rename="kebab"):
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    current_context: str = ""


def _read_kubeconfig(path: Path, settings: KubernetesSettings) -> Cluster:
    try:
        config = msgspec.convert(yaml.safe_load(path.read_bytes()), _Kubeconfig)
        context = _find(config.contexts, settings.context or config.current_context, "context").context
        cluster = _find(config.clusters, context.cluster, "cluster").cluster
        user = _find(config.users, context.user, "user").user
        _refuse_unsupported(cluster, user)
        tls = _build_tls(path.parent, cluster, user)
    except FileNotFoundError as error:
        where = "this is no pod with a service account either; name a file by `kubeconfig` in the table [kubernetes]"
        raise SandboxError(f"there is no kubeconfig: {error.filename or path} is missing; {where}") from error
    except (OSError, ValueError, NotBase64, yaml.YAMLError, msgspec.ValidationError) as error:
        raise SandboxError(f"the kubeconfig {path} cannot be used: {error}") from error
    token_file = path.parent / user.token_file if user.token_file else None
    return Cluster(URL(cluster.server), tls, settings.namespace or context.namespace, user.token or None, token_file)


def _find(entries: Sequence[_Named], name: str, what: str) -> _Named:
    for entry in entries:
        if entry.name == name:
            return entry
    raise ValueError(f"it has no {what} `{name}`; it has: {', '.join(entry.name for entry in entries) or 'none'}")


def _refuse_unsupported(cluster: _ClusterEntry, user: _User) -> None:
    server = URL(cluster.server)
    refused = {
        "a program that fetches credentials (`exec`); use a token, or `tokenFile`": user.exec is not None,
        "`auth-provider`; use a token, or `tokenFile`": user.auth_provider is not None,
        "a password; use a token or a client certificate": bool(user.username),
        "`insecure-skip-tls-verify`; give the `certificate-authority`": cluster.insecure_skip_tls_verify,
        "`tls-server-name`; name the server as its certificate does": bool(cluster.tls_server_name),
        "`proxy-url`; connections are direct": bool(cluster.proxy_url),
        "a server without TLS that is not on this machine": server.scheme != "https" and server.host not in ("127.0.0.1", "::1"),
    }
    if found := [what for what, is_there in refused.items() if is_there]:
        raise ValueError(f"it has {found[0]}")


def _build_tls(folder: Path, cluster: _ClusterEntry, user: _User) -> ssl.SSLContext | None:
    if URL(cluster.server).scheme != "https":
        return None
    tls = _trust(
        str(folder / cluster.certificate_authority) if cluster.certificate_authority else None,
        b64decode(cluster.certificate_authority_data).decode() or None,
    )
    if user.client_certificate or user.client_certificate_data:
        # OpenSSL reads both from files only.
        with NamedTemporaryFile() as certificate, NamedTemporaryFile() as key:
            for file, name, data in (
                (certificate, user.client_certificate, user.client_certificate_data),
                (key, user.client_key, user.client_key_data),
            ):
                file.write(b64decode(data) if data else (folder / name).read_bytes())
                file.flush()
            tls.load_cert_chain(certificate.name, key.name)
    return tls


def _trust(ca_file: str | None, ca_data: str | None) -> ssl.SSLContext:
    """Trusts the cluster's authority alone, or the system's where none is named."""
    tls = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    tls.set_alpn_protocols(["http/1.1"])
    return tls
