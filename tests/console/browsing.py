"""A person at the console: a real browser page that notes everything it complains about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.console.console_server import ConsoleServer

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
PATIENCE_MS = 30_000


class Visit:
    """One open page."""

    def __init__(self, page: Page, console: ConsoleServer) -> None:
        self.page = page
        self.console = console
        #: errors of scripts, refusals of the content security policy, dialogs
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda failure: self.complaints.append(str(failure)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(PATIENCE_MS)

    async def unlock(self) -> None:
        """Open the console with a fresh link."""
        await self.page.goto(self.console.new_link())
        await self.page.wait_for_selector("#page[data-ready]")

    async def open(self, path: str) -> None:
        """Open a page and wait for its content."""
        await self.page.goto(self.console.origin + path)
        await self.page.wait_for_selector("#page[data-ready]")

    async def text(self) -> str:
        """Return the visible text of the page."""
        return await self.page.inner_text("#page")

    async def says(self, words: str, where: str = "#page") -> None:
        """Wait until words are visible."""
        await self.page.wait_for_function(
            "([where, words]) => document.querySelector(where)?.innerText.includes(words)", arg=[where, words]
        )

    async def confirm(self, *, yes: bool = True) -> str:
        """Answer the dialog of a dangerous action; return its question."""
        await self.page.wait_for_selector("#confirm[open]")
        question = await self.page.inner_text("#confirm-text")
        await self.page.click("#confirm-yes" if yes else "#confirm-no")
        return question

    async def violations(self) -> list[str]:
        """Return what axe-core finds."""
        await self.page.evaluate(AXE)
        found: Any = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]


@asynccontextmanager
async def visit(browser: Browser, console: ConsoleServer, **options: Any) -> AsyncIterator[Visit]:
    """Open a browser profile of its own with the console unlocked; fails if the page complained."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, **options)
    try:
        visiting = Visit(await context.new_page(), console)
        await visiting.unlock()
        yield visiting
        elsewhere = [url for url in visiting.requests if not url.startswith(console.origin)]
        assert not (visiting.complaints or elsewhere), (visiting.complaints, elsewhere)
    finally:
        await context.close()
