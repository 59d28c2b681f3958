"""Settings: one table of fields, read once at the start from flags, environment and a YAML file."""

from tokenwire.settings.groups import (
    AccessSettings,
    AdapterSettings,
    ChatSettings,
    EngineSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    NetworkSettings,
    OutputSettings,
    RemoteSettings,
    Settings,
)
from tokenwire.settings.option import SettingsError
from tokenwire.settings.sources import Loaded, Parser, load, make_parser

__all__ = [
    "AccessSettings",
    "AdapterSettings",
    "ChatSettings",
    "EngineSettings",
    "LimitSettings",
    "Loaded",
    "LogSettings",
    "ModelSettings",
    "NetworkSettings",
    "OutputSettings",
    "Parser",
    "RemoteSettings",
    "Settings",
    "SettingsError",
    "load",
    "make_parser",
]
