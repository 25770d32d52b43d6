"""Figures as people read them: counts, shares, durations, dollars, days."""

from __future__ import annotations

from datetime import UTC, date, datetime

_NODE_PREFIX = "ed25519:"
_KEY_DIGITS = 8


def count(value: float) -> str:
    """Return 1,234 or 12.3k or 4.5M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    if abs(value) >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """Return a percentage, never 100 % or 0 % when it is not."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 99.9 < percent < 100:
        return "99.9 %"
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent % 1 else f"{percent:.0f} %"


def duration(ms: float | None) -> str:
    """Return a time span in the unit that fits it."""
    if ms is None:
        return "–"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= size:
            value = ms / size
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{ms:.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:.1f} ms"


def dollars(value: float) -> str:
    """Return an amount of money."""
    if value and abs(value) < 0.01:
        return "<$0.01"
    return f"${value:,.2f}" if abs(value) < 10_000 else f"${value:,.0f}"


def short_day(day: str) -> str:
    """Return 2 Mar for 2026-03-02."""
    found = date.fromisoformat(day)
    return f"{found.day} {found:%b}"


def moment(at_s: float) -> str:
    """Return a time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%-d %B %Y, %H:%M UTC")


def name_of(who: str, names: dict[str, str]) -> str:
    """Return what to call a node or a subject: its name, else the beginning of its key."""
    if who in names:
        return names[who]
    if who.startswith(_NODE_PREFIX):
        return f"{who[len(_NODE_PREFIX) :][:_KEY_DIGITS]}…"
    return who


def fitted(name: str, characters: int) -> str:
    """Return a name that takes at most so many characters."""
    return name if len(name) <= characters else f"{name[: max(1, characters - 1)]}…"
