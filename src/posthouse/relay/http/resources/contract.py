"""/openapi.json: the contract itself; it holds nothing of this relay, so anybody may read it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from posthouse.answer import Answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route


async def contract(call: Call) -> Answer:
    """Return the OpenAPI document of this version."""
    return Answer(200, _document())


@lru_cache(maxsize=1)
def _document() -> bytes:
    from posthouse.relay.http.openapi import describe, encode
    from posthouse.relay.http.table import ROUTES

    return encode(describe(ROUTES))


ROUTES = (
    Route("GET", "/openapi.json", contract, "Read the OpenAPI document", Access.ANYBODY, answers={200: dict[str, Any]}),
)
