"""Tests that an OpenAPI document and its server agree: requests made from it, fitting or not, pass schemathesis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

_START_S = 20.0
#: what a request that fits the document may be answered with; 410: its mesh was deleted by an earlier request
_ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "410", "429", "503"]
_REFUSED = ["400", "401", "403", "404", "405", "406", "409", "410", "413", "415", "422", "429", "503"]
_CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": _ACCEPTED},
        "negative_data_rejection": {"expected-statuses": _REFUSED},
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
    }
}
Prepare = Callable[[schemathesis.Case[Any]], None]


class Served(NamedTuple):
    """A server to send requests to."""

    url: str
    token: str


class ServerThread:
    """A server on a thread of its own, because the client of schemathesis blocks."""

    def __init__(self, serve: Callable[[], AbstractAsyncContextManager[Served]]) -> None:
        self._serve = serve
        self._served: Served | None = None
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._is_ready.wait(_START_S) and self._served is not None
        return self._served

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)
        self._loop.close()

    async def _run(self) -> None:
        async with self._serve() as self._served:
            self._is_ready.set()
            await self._stop.wait()


def agreement_tests(
    document: Mapping[str, Any], rules_beyond_schemas: Mapping[str, str], prepare: Prepare = lambda _case: None
) -> dict[str, Any]:
    """Return one test for each operation by name; each needs a fixture `served`.

    Requests are made when a test runs: every worker of a run collects all tests, and would make all requests.
    `rules_beyond_schemas` has the operations that refuse some requests that fit the document with 400, and the rule
    that JSON Schema cannot express. One test each: of tests with equal ids, pytest-xdist runs one and drops the others
    silently.
    """
    schema = schemathesis.openapi.from_dict({**document}, config=schemathesis.Config.from_dict(_CONFIG))
    return {
        f"test_document_and_server_agree_about_{method}_{path}": _agreement_test(
            schema.include(path=path, method=method.upper()), rules_beyond_schemas, prepare
        )
        for path, item in document["paths"].items()
        for method in item
    }


def _agreement_test(operation: Any, rules_beyond_schemas: Mapping[str, str], prepare: Prepare) -> Any:
    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case[Any], served: Served) -> None:
        prepare(case)
        authorized = {"Authorization": f"Bearer {served.token}"}
        response = case.call(base_url=served.url, headers=authorized)
        contradicted: list[Any] = []
        if response.status_code == 207:  # a list of events is not refused as a whole: each has a result of its own
            contradicted = [negative_data_rejection]
        elif response.status_code == 400 and case.operation.label in rules_beyond_schemas:
            contradicted = [positive_data_acceptance]
        case.validate_response(response, headers=authorized, excluded_checks=contradicted)
        assert response.status_code < 500 or response.status_code == 503 or "extra_missing" in response.text

    def check_operation(served: Served) -> None:
        load_all_checks()
        [found] = get_all_tests(schema=operation, test_func=check, settings=None, given_kwargs=None)
        assert isinstance(found, Ok), f"{operation} is not described well: {found}"
        _, run = found.ok()
        run(served=served)

    return check_operation
