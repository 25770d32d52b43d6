"""The page of settings, from posthouse.model.settings."""

from __future__ import annotations

from itertools import groupby

from posthouse.model.setting import Setting
from posthouse.model.settings import SETTINGS
from scripts.reference.markdown import code, table

_INTRO = """\
A setting has one name in three places: `journal.keep_days` is `keep_days` in the table `[journal]` of
`~/.posthouse/config.toml`, `POSTHOUSE_JOURNAL_KEEP_DAYS` in the environment, and `--keep-days` where a command
takes it. A flag wins over the environment, the environment over the file, the file over the default.
`posthouse config` shows every value and its source. An invalid value is refused wherever it comes from.
"""


def render() -> str:
    """Return the body of the page."""
    areas = groupby(SETTINGS.values(), key=lambda setting: setting.area)
    return "\n".join([_INTRO, *(f"## {area}\n\n{_area(list(settings))}" for area, settings in areas)])


def _area(settings: list[Setting]) -> str:
    columns = ("setting", "default", "unit", "allowed", "environment", "flag", "meaning")
    return table(columns, [_row(setting) for setting in settings])


def _row(setting: Setting) -> tuple[str, ...]:
    return (
        code(setting.name),
        "" if setting.default is None else code(_plain(setting.default)),
        setting.unit,
        _allowed(setting),
        code(setting.environment),
        code(setting.flag),
        f"{setting.help} Applies on SIGHUP." if setting.is_live else setting.help,
    )


def _allowed(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(map(code, setting.choices))
    if setting.min is None or setting.max is None:
        return {"bool": "true, false", "str": "text"}.get(setting.type.__name__, "")
    return f"{_plain(setting.min)} to {_plain(setting.max)}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
