"""The settings in force, each with where it is from, for those who look after a server."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import asdict

from mainspring.app.settings import FILE, Settings, find_settings_type
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node
from mainspring.definitions.reader import read_text
from mainspring.definitions.toml import parse_toml
from mainspring.features.config.settings_page import hide_secrets
from mainspring.features.system.routes import SettingInForce, SettingList, Source


def list_settings(settings: Settings, file: Path | None, environment: Mapping[str, str] = os.environ) -> SettingList:
    """Every setting; one that is neither in the environment nor in the file, and not as by default, is the command line's."""
    path = file or Path(FILE)
    try:
        written = set(cast(dict[str, Node], parse_toml(path, read_text(path)).root.value)) if path.exists() else set()
    except InvalidRequest:  # it has changed since
        written = set()
    defaults, shown = asdict(find_settings_type()()), hide_secrets("", msgspec.to_builtins(settings))

    def find_source(name: str, value: object) -> Source:
        if f"MAINSPRING_{name.upper()}" in environment:
            return "environment"
        if name in written:
            return "file"
        return "default" if value == defaults[name] else "command line"

    data = [SettingInForce(name, shown.get(name), find_source(name, value)) for name, value in asdict(settings).items()]
    return SettingList(data, str(path) if written else None)
