"""Requests generated from the OpenAPI document: none of them, valid or nearly valid, gets a 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from posthouse.relay.openapi import ROUTES, describe_routes
from tests.relay.edge import running

SCHEMA = schemathesis.openapi.from_dict({**describe_routes([route for route in ROUTES if route.path != "/v1/stream"])})


class Running:
    """A relay on a thread of its own, because the contract's client blocks."""

    def __init__(self, data_dir: Path) -> None:
        self.url = ""
        self.token = ""
        self._data_dir = data_dir
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()

    async def _serve(self) -> None:
        async with running(self._data_dir) as edge:
            self.url, self.token = edge.url, await edge.token(edge.admin)
            self._ready.set()
            await self._stop.wait()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("contract") / "relay") as started:
        yield started


@SCHEMA.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_relay_fail(case: schemathesis.Case[Any], relay: Running) -> None:
    response = case.call(base_url=relay.url, headers={"Authorization": f"Bearer {relay.token}"})
    case.validate_response(response, checks=[not_a_server_error, content_type_conformance, status_code_conformance])
    assert response.status_code < 500 or response.json()["code"] in ("extra_missing",)
