"""A web page in a real browser tries to use a relay on the same machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from posthouse.relay.listen import Protection, parse_origins
from tests.relay.edge import PATIENCE_S, Author, Edge, running

if TYPE_CHECKING:
    from playwright.async_api import Browser

CHROMIUM = which("chromium")
PAGE = Path(__file__).with_name("hostile_page.html").read_text()
#: a name that an attacker points at this machine
REBOUND = "rebound.test"

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # a browser takes seconds to start: all tests share one
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run scripts/setup as root"),
    pytest.mark.xdist_group("browser"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
        )
        yield started
        await started.close()


@asynccontextmanager
async def hostile_site(author: Author) -> AsyncIterator[str]:
    """Serve the page, and sign for it; return the origin."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def sign(request: web.Request) -> web.Response:
        proof = author.proof(request.query["relay"], ("challenge", request.query["challenge"]))
        return web.json_response([["AUTH", proof], ["EVENT", author.event(content="from a web page")]])

    app = web.Application()
    app.add_routes([web.get("/", show), web.get("/sign", sign)])
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


async def outcome(browser: Browser, origin: str, edge: Edge) -> tuple[str, str]:
    """Open the page and return what became of its attempts on the stream and over HTTP."""
    page = await browser.new_page()
    await page.goto(f"{origin}/?relay={edge.server.address}")
    await page.wait_for_function("document.title !== 'waiting'", timeout=PATIENCE_S * 1_000)
    return await page.title(), await page.evaluate("askOverHttp()")


async def test_page_of_another_site_cannot_join_the_open_main(browser: Browser, tmp_path: Path) -> None:
    async with hostile_site(Author()) as origin, running(tmp_path / "relay") as edge:
        assert await outcome(browser, origin, edge) == ("refused", "blocked")
        assert edge.server.context.live.offered == 0


async def test_same_page_joins_if_its_origin_is_listed(browser: Browser, tmp_path: Path) -> None:
    async with hostile_site(Author()) as origin:
        protection = Protection(origins=parse_origins(origin))
        async with running(tmp_path / "relay", protection=protection) as edge:
            assert await outcome(browser, origin, edge) == ("joined", "body_invalid")
            assert edge.server.context.live.offered == 1


async def test_name_that_was_pointed_at_the_relay_gets_nothing_from_it(browser: Browser, tmp_path: Path) -> None:
    async with running(tmp_path / "relay") as edge:
        page = await browser.new_page()
        own = await page.goto(f"{edge.url}/v1/info")
        rebound = await page.goto(f"http://{REBOUND}:{edge.server.address.port}/v1/info")
        assert own is not None and rebound is not None
        assert (own.status, rebound.status) == (200, 403)
        assert (await rebound.json())["code"] == "host_refused"
