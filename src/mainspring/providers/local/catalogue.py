"""The local models that are recommended, and which of them suits this machine: `catalogue.toml`."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from mainspring.providers.local.hub import HubFile

GB = 1 << 30


class CatalogueModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model that can call tools, and what it needs."""

    name: str
    repo: str
    file: str
    megabytes: int
    memory_gb: int
    licence: str
    good_for: str

    @property
    def source(self) -> HubFile:
        return HubFile(self.repo, self.file)

    def fits(self, memory: int) -> bool:
        """Whether so many bytes of memory are enough. Machines tell a little less than they are sold with."""
        return self.memory_gb * GB * 0.9 <= memory

    def tell(self) -> str:
        """`qwen3-4b, 2.5 GB, Apache-2.0`."""
        return f"{self.name}, {self.megabytes / 1000:.1f} GB, {self.licence}"


@cache
def load_catalogue() -> dict[str, CatalogueModel]:
    """The models by name, the least able first."""
    read = msgspec.toml.decode(Path(__file__).with_name("catalogue.toml").read_bytes(), type=dict[str, list[CatalogueModel]])
    return {model.name: model for model in read["model"]}


def pick_model(memory: int, is_there: Callable[[CatalogueModel], bool] = lambda _: True) -> CatalogueModel | None:
    """The ablest model for that many bytes of memory, None if all need more."""
    fitting = [model for model in load_catalogue().values() if model.fits(memory) and is_there(model)]
    return fitting[-1] if fitting else None


def measure_memory() -> int:
    """The bytes of memory of this machine, or of the control group that we are in."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory
