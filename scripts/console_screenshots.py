"""Take the pictures of docs/images: every page of the console, with a demo team whose agents talk.

    python -m scripts.console_screenshots [DIRECTORY] [--dark]

The team is the one of tests/console, so the pictures show what the tests see.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from shutil import which

from playwright.async_api import Browser, async_playwright

from tests.console.demo_team import demo_team

ROOT = Path(__file__).resolve().parents[1]
SIZE = (1280, 860)


async def main(directory: Path, schemes: list[str]) -> None:
    """Take every picture in some colour schemes."""
    with tempfile.TemporaryDirectory(prefix="console-") as folder:
        async with (
            demo_team(Path(folder)) as team,
            team.console(sample_s=0.3) as console,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
            threads = await console.context.upstream.daemon.threads()
            longest = max(threads, key=lambda each: each.message_count)
            crossing = next(each for each in threads if each.subject.startswith("Can you run"))
            pages = {
                "team": "/team",
                "conversations": "/conversations",
                "conversation": f"/conversations/{longest.id}",
                "message": f"/messages/{crossing.id}",
                "queues": "/queues",
                "locks": "/locks",
                "live": "/live",
                "health": "/health",
            }
            for number in range(1, 25):  # something to draw
                text = f"Board two: {number * 17} of 412 tests passed"
                await team.say("tester", "planner@atlas", text, crossing.last.message_id)
                await asyncio.sleep(0.1 + 0.3 * (number % 3 == 0))
            for scheme in schemes:
                await _take(browser, console.new_link(), console.origin, pages, directory, scheme)
            await browser.close()


async def _take(browser: Browser, link: str, origin: str, pages: dict[str, str], directory: Path, scheme: str) -> None:
    width, height = SIZE
    page = await browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    await page.goto(link)
    await page.wait_for_selector("#page[data-ready]")
    for name, path in pages.items():
        await page.goto(origin + path)
        await page.wait_for_selector("#page[data-ready]")
        await page.wait_for_selector("#stream[data-state=on]")
        suffix = "" if scheme == "light" else f"-{scheme}"
        await page.screenshot(path=directory / f"console-{name}{suffix}.png")
    await page.close()


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    wanted = ["light", "dark"] if "--dark" in sys.argv else ["light"]
    target = Path(given[0]) if given else ROOT / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target, wanted))
