"""Settings of the table `[temporal]`."""

from typing import Annotated

from msgspec import Meta, Struct


class TemporalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the Temporal cluster of `dispatcher = "temporal"` is; see docs/scale-out.md."""

    address: str = "127.0.0.1:7233"
    """Host and port of its frontend."""
    namespace: str = "default"
    """The namespace of the workflows."""
    task_queue: str = "mainspring"
    """The task queue that servers put runs into and workers take them from."""
    api_key: str | None = None
    """An API key; the one of the environment, `TEMPORAL_API_KEY`, if not given. With one, TLS is used."""
    tls: bool = False
    """Use TLS without an API key, too."""
    heartbeat_seconds: Annotated[float, Meta(ge=1, le=300)] = 3.0
    """After how long without a sign of life a run is given to another worker."""
    deployment: str | None = None
    """The name of the Worker Deployment, for Temporal's worker versioning; without it, workers are unversioned."""
    build_id: str | None = None
    """The build of this worker within the deployment; the version of Mainspring if not given."""
