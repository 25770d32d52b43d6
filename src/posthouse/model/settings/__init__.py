"""Settings: what can be configured, and where each value comes from."""

from posthouse.model.settings.registry import SETTINGS
from posthouse.model.settings.resolve import Resolved, Source, resolve
from posthouse.model.settings.setting import Setting

__all__ = ["SETTINGS", "Resolved", "Setting", "Source", "resolve"]
