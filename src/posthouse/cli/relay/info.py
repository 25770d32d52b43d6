"""`posthouse relay info`: who a relay is, and what it can do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import RelayUrl

_SHOWN = ("relay", "version", "epoch", "features", "is_test_clock")


def info(
    relay: Annotated[str | None, Parameter(show_default=False, help="Its address: HOST:PORT or a URL.")] = None,
    /,
    *,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show what a relay says of itself and its limits, and whether its key is the pinned one; needs no key.

    For example:

        posthouse relay info
        posthouse relay info relay.example:7420 --json
    """
    from posthouse.client import Pins, parse_relay_url

    url = reach.url() if relay is None else parse_relay_url(relay, allow_plain=reach.options().allow_plain)
    told = asyncio.run(_ask(url, reach))
    pinned = Pins.of_home().relay(url.origin)
    state = "not pinned" if pinned is None else "pinned" if pinned == told.get("relay") else f"CHANGED from {pinned}"
    lines = [f"url      {url.origin}", f"key      {state}"]
    lines += [f"{name:<8} {told.get(name)}" for name in _SHOWN if name in told]
    lines += [f"limit    {name} {value}" for name, value in dict(told.get("limits") or {}).items()]
    output.answer(told | {"url": url.origin, "pinned": pinned}, "\n".join(lines))


async def _ask(url: RelayUrl, reach: Reach) -> dict[str, Any]:
    from posthouse.client import Client, Pins
    from posthouse.keys import NodeKey

    # looking pins nothing and says nothing about this node
    async with Client(url, NodeKey.generate(), pins=Pins(None), options=reach.options()) as client:
        return await client.info()
