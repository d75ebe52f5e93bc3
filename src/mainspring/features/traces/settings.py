"""The table `[otel]`: what an OpenTelemetry collector is sent."""

from msgspec import Struct


class OtelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an OpenTelemetry collector is sent. The standard variables `OTEL_*` hold, too. See docs/tracing.md."""

    endpoint: str | None = None
    """Its address for OTLP over HTTP, such as `http://127.0.0.1:4318`; or `OTEL_EXPORTER_OTLP_ENDPOINT`; or nothing is sent."""
    content: bool = False
    """Send what was said as well: prompts, answers, arguments and results of calls."""
