"""The one registry of settings, gathered from the area files beside it, in the order the reference shows them."""

from __future__ import annotations

from posthouse.model.settings.bus import BUS
from posthouse.model.settings.client import CLIENT
from posthouse.model.settings.daemon import DAEMON
from posthouse.model.settings.mcp import MCP
from posthouse.model.settings.pipeline import PIPELINE
from posthouse.model.settings.relay import RELAY
from posthouse.model.settings.setting import Setting
from posthouse.model.settings.storage import STORAGE


def _gather() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for setting in BUS + RELAY + CLIENT + DAEMON + MCP + PIPELINE + STORAGE:
        if setting.name in settings:
            raise ValueError(f"setting {setting.name} is declared twice")
        settings[setting.name] = setting
    return settings


SETTINGS: dict[str, Setting] = _gather()
