"""Which models can be asked: the settings `model`, `base_url`, `backend_key`, `aliases` and the tables `[providers.NAME]`."""

from typing import Literal

from msgspec import Struct, field

from mainspring.providers.compose import BackendOptions, Count

Kind = Literal["chat", "responses", "ollama", "gemini", "anthropic", "local", "scripted", "azure", "bedrock", "vertex"]
Api = Literal["chat", "responses"]


class ProviderSettings(BackendOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backend. Only what differs from the defaults of its kind needs to be set. See docs/models.md."""

    kind: Kind | None = None
    """The wire format it speaks; `local` runs a model on this machine, `scripted` plays a file. Default: the vendor's own for
    `openai`, `anthropic` and `gemini`, else `chat`."""
    base_url: str | None = None
    """Its address; for `chat` and `responses` usually ending in `/v1`."""
    key: str | None = None
    """Its key. Better leave it in the environment and name the variable in `key_env`."""
    key_env: str | None = None
    """The environment variable that holds its key."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers to send."""
    timeout: float = 600.0
    """How many seconds it may stay silent."""
    proxy: str | None = None
    """The HTTP proxy through which it is asked, `http://USER:PASSWORD@HOST:PORT`; empty for none. Default: what `HTTPS_PROXY`,
    `HTTP_PROXY` and `NO_PROXY` say. What is on this machine is asked directly."""
    ca_file: str | None = None
    """A file of certificates (PEM) that are trusted besides the system's."""
    model: str | None = None
    """The model that is asked if a request names only the provider; for `local` a name or a file, for `scripted` the file."""
    api: Api | None = None
    """For `azure`: which API of the resource is asked. Default: `chat`."""
    api_version: str | None = None
    """For `azure`: a dated version of the API, like `2024-10-21`. Default: the `/openai/v1` surface, which has none."""
    deployments: dict[str, str] = field(default_factory=dict)
    """For `azure`: the deployment of each model. A name that is not among them is taken for a deployment's."""
    profiles: dict[str, dict[str, bool | int | str]] = field(default_factory=dict)
    """Fields of profiles that hold whatever the backend shows, by model, `*` for all: `[providers.NAME.profiles."MODEL"]`. See
    docs/models.md."""
    region: str | None = None
    """For `bedrock` the region, like `us-east-1`; for `vertex` the location, like `global` or `us-east5`. Default: that of the
    environment or the AWS profile; `global`."""
    aws_profile: str | None = None
    """For `bedrock`: the profile of the AWS files whose keys are used. Default: what the environment has."""
    project: str | None = None
    """For `vertex`: the project of Google Cloud. Default: that of the environment or the credentials."""
    credentials_file: str | None = None
    """For `vertex`: a file with credentials of Google Cloud. Default: what the environment or the machine has."""
    attempts: Count = 3
    """How often a turn is tried, the first time included, if the backend fails before its first event."""
    failures: Count | None = 10
    """After how many failures in a row the circuit breaker opens: the backend is not asked for `cool_seconds`."""


class ModelSettings(Struct, frozen=True, kw_only=True):
    """Which models can be asked."""

    model: str | None = None
    """The model for requests that name none: `PROVIDER/MODEL`, an alias, `local`, or `scripted:FILE`."""
    base_url: str | None = None
    """An OpenAI-compatible backend that serves every model name."""
    backend_key: str | None = None
    """The backend's key."""
    providers: dict[str, ProviderSettings] = {}
    """Backends by name, each a table `[providers.NAME]`."""
    aliases: dict[str, str | tuple[str, ...]] = {}
    """Names for models; several models are tried in order until one answers."""
