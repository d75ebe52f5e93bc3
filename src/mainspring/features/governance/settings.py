"""The table `[governance]`: what calls may do."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mainspring.core.autonomy import Level

Positive = Annotated[int, Meta(ge=1)]


class AccessList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is allowed and what is denied. What is in neither list needs approval, or is denied."""

    allowed: tuple[str, ...] = ()
    """Entries that are allowed."""
    denied: tuple[str, ...] = ()
    """Entries that are denied, whatever `allowed` says."""

    def __post_init__(self) -> None:
        for name, entries in (("allowed", self.allowed), ("denied", self.denied)):
            if any(not entry.strip() for entry in entries):
                raise ValueError(f"`{name}` has an entry that is empty; leave it out")


class GovernanceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What calls may do. What the table leaves out is not restricted. See docs/governance.md."""

    rules: dict[str, Literal["allow", "ask", "deny"]] = {}
    """Verdicts by `tool:operation`, `tool`, or a pattern with `*`; the most specific counts."""
    level: Level = "full"
    """`read-only`, `supervised` (a person is asked before anything but reading), `standard` or `full`; or its number, 0 to 3."""
    supervised: Literal["ask", "log"] = "ask"
    """Whether a supervised call waits for a person, or is only logged."""
    network_reads: bool = False
    """Whether reading from the network counts as reading."""
    per_minute: Positive | None = None
    """Calls of server tools per minute, for each caller; 60 if only `burst` is set."""
    burst: Positive | None = None
    """Calls within a second or so; 10 if only `per_minute` is set."""
    commands: AccessList | None = None
    """Programs that shell commands may run, or a program and its first words."""
    paths: AccessList | None = None
    """Folders that files must be in, and patterns of files that are denied."""
    domains: AccessList | None = None
    """Domains that may be reached, with those below them, and those that may not."""
    scan_inputs: bool = False
    """Flag inputs that read like orders to the model, in the log and the audit. They are not refused."""

    def __post_init__(self) -> None:
        if self.paths is not None and not self.paths.allowed:
            raise ValueError("`paths` needs at least one folder in `allowed`")
