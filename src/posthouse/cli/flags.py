"""Settings as options of a command, made from their registry: `relay.queue_max` is `--queue-max` of the relay.

A command takes them as one parameter and hands `given()` to `posthouse.cli.settings.load`:

    if TYPE_CHECKING:
        from posthouse.cli.flags import Flags as RelayFlags
    else:
        RelayFlags = flags_of("relay")

    def up(*, flags: RelayFlags | None = None, output: Output = PLAIN) -> None: ...
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, Optional

from cyclopts import Group, Parameter

from posthouse.model.settings import SETTINGS, Setting

_GROUP = Group("Settings", sort_key=5)


@dataclass(frozen=True)
class Flags:
    """The options that were given; a setting without one keeps what file and environment say."""

    def given(self) -> dict[str, Any]:
        """Return the values by setting name; None where the option was not used."""
        return {item.metadata["setting"]: getattr(self, item.name) for item in fields(self)}


def flags_of(*areas: str) -> type[Flags]:
    """Make the parameter type with an option for every setting of these areas."""
    chosen = [setting for setting in SETTINGS.values() if setting.area in areas]
    if {setting.area for setting in chosen} != set(areas):
        raise ValueError(f"not every area of {areas} has settings")
    columns = [(s.key, _hint(s), field(default=None, metadata={"setting": s.name})) for s in chosen]
    place = {"__module__": __name__}  # without one it looks like a built-in type, which has no options
    made = make_dataclass("Flags", columns, bases=(Flags,), namespace=place, frozen=True, kw_only=True)
    return Parameter(name="*", group=_GROUP)(made)


def setting_tokens(given: dict[str, Any]) -> list[str]:
    """Return the options that say the same to another process."""
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
