"""Settings of this process: config.toml in the home directory, the environment, flags; and `posthouse config`.

posthouse.model.settings defines what a setting may be; this module reads the sources, generates the flags of a
command from the registry (`relay.queue_max` is `--queue-max`), and shows each value with its source. A file that
cannot be read or names an unknown setting is an error, never ignored.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from cyclopts import Group, Parameter

from posthouse.cli.output import PLAIN, Output, table
from posthouse.files import home_directory
from posthouse.model.errors import error
from posthouse.model.setting import Setting
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import Resolved, Source, resolve_settings
from posthouse.model.user_hook import HOOK_KEY, UserHook, parse_hooks

CONFIG_NAME = "config.toml"


@dataclass(frozen=True, slots=True)
class Home:
    """The home directory of posthouse and the files in it."""

    path: Path

    @property
    def key(self) -> Path:
        """The key file of this user's node."""
        return self.path / "key.json"

    @property
    def config(self) -> Path:
        """The file of settings."""
        return self.path / CONFIG_NAME


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return the home directory that the environment names, or the default one."""
    return Home(home_directory(environ))


class Settings(dict[str, Resolved]):
    """Every setting by name, with typed access to the values; the registry has checked their types."""

    def text(self, name: str) -> str:
        """Return a text setting."""
        return str(self[name].value)

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None if the setting has no value."""
        return None if self[name].value is None else self.text(name)

    def integer(self, name: str) -> int:
        """Return an integer setting."""
        return int(str(self[name].value))

    def number(self, name: str) -> float:
        """Return a numeric setting."""
        return float(str(self[name].value))

    def is_on(self, name: str) -> bool:
        """Return a boolean setting."""
        return bool(self[name].value)

    def path(self, name: str) -> Path:
        """Return a path setting, with `~` expanded."""
        return Path(self.text(name)).expanduser()

    def optional_path(self, name: str) -> Path | None:
        """Return a path, or None if the setting has no value."""
        return None if self[name].value is None else self.path(name)


def load_settings(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    own: Mapping[str, Any] | None = None,
) -> Settings:
    """Return every setting with its value and source.

    `flags` are keyed by setting name. `own` is a parsed settings file that overrides the one in the home directory.
    """
    home = find_home(environ)
    file = read_settings_file(home.config)
    parse_hooks(file.pop(HOOK_KEY, []))
    for area, values in (own or {}).items():
        file[area] = {**file.get(area, {}), **values} if isinstance(values, dict) else values
    resolved = resolve_settings(file, environ, flags)
    return Settings({name: _resolve_in_home(value, home) for name, value in resolved.items()})


def load_hooks(environ: Mapping[str, str] = os.environ) -> tuple[UserHook, ...]:
    """Return the hooks of the settings file in the home directory."""
    return parse_hooks(read_settings_file(find_home(environ).config).get(HOOK_KEY, []))


def _resolve_in_home(value: Resolved, home: Home) -> Resolved:
    """Move a default below ~/.posthouse to the home directory in use, which POSTHOUSE_HOME may name."""
    if value.source is not Source.DEFAULT or not isinstance(value.value, str):
        return value
    inside = value.value.removeprefix("~/.posthouse/")
    return value if inside == value.value else replace(value, value=str(home.path / inside))


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return the parsed settings file, empty if it does not exist."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise error("config_unreadable", path=str(path), reason=reason) from failure


_SETTINGS_GROUP = Group("Settings", sort_key=5)


@dataclass(frozen=True)
class Flags:
    """Options that override settings; an option that is not given leaves its setting as it is."""

    def given(self) -> dict[str, Any]:
        """Return the values by setting name; None if the option was not given."""
        return {item.metadata["setting"]: getattr(self, item.name) for item in fields(self)}


def flags_of(*areas: str, without: str | None = None) -> type[Flags]:
    """Return a parameter type with an option for every setting of these areas, except `without`."""
    chosen = [setting for setting in SETTINGS.values() if setting.area in areas and setting.name != without]
    if {setting.area for setting in chosen} != set(areas):
        raise ValueError(f"not every area of {areas} has settings")
    columns = [(s.key, _hint(s), field(default=None, metadata={"setting": s.name})) for s in chosen]
    namespace = {"__module__": __name__}  # cyclopts takes a class without a module for a built-in type
    made = make_dataclass("Flags", columns, bases=(Flags,), namespace=namespace, frozen=True, kw_only=True)
    return Parameter(name="*", group=_SETTINGS_GROUP)(made)


def setting_tokens(given: dict[str, Any]) -> list[str]:
    """Return the command-line options that give another process these settings."""
    tokens: list[str] = []
    for name, value in given.items():
        flag = SETTINGS[name].flag
        if isinstance(value, bool):
            tokens.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            tokens += [flag, str(value)]
    return tokens


def _hint(setting: Setting) -> Any:
    kind: Any = Literal[setting.choices] if setting.choices else setting.type
    unit = f" In {setting.unit}." if setting.unit else ""
    default = "" if setting.default is None else f" [default: {setting.default}]"
    shown = Parameter(name=setting.flag, show_default=False, help=f"{setting.help}{unit}{default}")
    return Annotated[Optional[kind], shown]  # noqa: UP045 - `kind | None` does not work with a Literal made here


Pairs = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", negative=(), show_default=False, help="Show the settings as if NAME=VALUE were given as a flag."
    ),
]


def config(
    name: Annotated[str, Parameter(show_default=False, help="A setting, or a prefix of several names.")] = "",
    /,
    *,
    set_: Pairs = (),
    output: Output = PLAIN,
) -> None:
    """Show every setting: its value, source (default, file, environment or flag), unit and meaning.

    The settings file is config.toml in the posthouse home directory. An invalid value in any source is an error.

    For example:

        posthouse config
        posthouse config journal
        posthouse config relay.queue_max --set relay.queue_max=500 --json
    """
    values = load_settings(dict(split_pair(pair, "--set") for pair in set_))
    shown = [value for value in values.values() if value.setting.name.startswith(name)]
    if not shown:
        raise error("usage", text=f"there is no setting {name!r}", hint="Run `posthouse config` to list all settings.")
    path = find_home().config
    described = {"file": path, "settings": [_describe(value) for value in shown]}
    output.result(described, table(("setting", "value", "unit", "source", "meaning"), _rows(shown)))
    output.note(f"settings file: {path}{'' if path.exists() else ' (does not exist)'}")


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE, or raise a usage error that names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise error("usage", text=f"{option} {text!r} is not NAME=VALUE")
    return name, value


def _rows(shown: Sequence[Resolved]) -> list[tuple[str, str, str, str, str]]:
    return [(v.setting.name, _text(v.value), v.setting.unit, v.source, v.setting.help) for v in shown]


def _text(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe(value: Resolved) -> dict[str, Any]:
    setting = value.setting
    return {
        "name": setting.name,
        "value": value.value,
        "source": value.source,
        "default": setting.default,
        "unit": setting.unit,
        "help": setting.help,
        "environment": setting.environment,
        "flag": setting.flag,
    }
