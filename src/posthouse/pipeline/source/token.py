"""The token with which workers read a relay: got on the driver, where the key stays.

A token is good for an hour; a run gets a new one each time it begins to read a source.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.pipeline.source.address import parse_source
from posthouse.pipeline.source.store import Access

if TYPE_CHECKING:
    from posthouse.client import ClientOptions
    from posthouse.keys import NodeKey


def access_with_key(url: str, key: NodeKey, options: ClientOptions | None = None) -> Access:
    """Return how workers reach a source: a file as it is, a relay with a token for this key."""
    address = parse_source(url)
    if not address.is_relay:
        return Access(address.url)
    import asyncio

    from posthouse.client import ClientOptions

    chosen = options or ClientOptions()
    token = asyncio.run(_get_token(address.url, key, chosen))
    return Access(address.url, token, _text(chosen.tls_ca))


async def _get_token(origin: str, key: NodeKey, options: ClientOptions) -> str:
    from posthouse.client import Pins, parse_relay_url
    from posthouse.client.requests import Requests
    from posthouse.client.signing import Signer
    from posthouse.client.transport import Transport
    from posthouse.model.clock import system_clock

    url = parse_relay_url(origin, allow_plain=options.allow_plain)
    pins = Pins.of_home()
    transport = Transport(url, options)
    try:
        requests = Requests(transport, Signer(key, system_clock()), lambda relay: pins.check_relay(url.origin, relay))
        return await requests.token()
    finally:
        await transport.close()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
