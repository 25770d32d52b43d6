"""Every page and every action in a real browser, with a team whose agents talk; hostile texts, two roles, thieves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from posthouse.console.access import LINK_TTL_S
from posthouse.console.console_server import ConsoleServer
from posthouse.console.live_feed import LiveFeed
from posthouse.model.clock import FakeClock
from tests.console.browsing import PATIENCE_MS, Visit, visit
from tests.console.demo_team import READER_KEY, Team, demo_team
from tests.daemon.hosts import eventually
from tests.daemon.test_requeue import dead_row

if TYPE_CHECKING:
    from playwright.async_api import Browser

CHROMIUM = which("chromium")
HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> \u202egnp.exe\u202c \x07\x1b[31m {{7*7}}'
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # a browser and a team take seconds to start: all tests share them
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run scripts/setup as root"),
    pytest.mark.xdist_group("browser"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Team]:
    async with demo_team(tmp_path_factory.mktemp("team")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(team: Team) -> AsyncIterator[ConsoleServer]:
    async with team.console(sample_s=0.2) as running:
        yield running


async def records(team: Team, *types: str) -> list[Any]:
    """Return the newest records of the relay's journal."""
    assert team.admin is not None
    return (await team.admin.archive.newest_records(types=types, limit=20)).records


PAGES = {
    "/team": ("planner", "Who talks to whom", "Splits the release into tasks"),
    "/conversations": ("Build 2.4.0 from the release branch", "planner@atlas", "calls left"),
    "/queues": ("cassini", "unknown schema version 1", "the topic is archived"),
    "/locks": ("deploy/production", "builder@atlas", "reading the retry logic", "acquired"),
    "/live": ("#releases", "message", "profile"),
    "/health": ("connected", "dead letters", "Refused events"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_shows_the_team_and_is_accessible(
    browser: Browser, team: Team, console: ConsoleServer, scheme: str
) -> None:
    thread = (await console.context.upstream.daemon.threads(limit=100))[-1]
    paths = PAGES | {
        f"/conversations/{thread.id}": (thread.subject, "Your answer"),
        f"/messages/{thread.id}": ("Timeline", "accepted"),
    }
    await eventually(_asked(console.context.upstream.samples.relay.samples), bool)
    async with visit(browser, console, color_scheme=scheme) as person:
        for path, words in paths.items():
            await person.open(path)
            text = await person.text()
            assert [each for each in words if each not in text] == [], (path, text)
            assert await person.violations() == [], path


def _asked(value: Any) -> Any:
    async def ask() -> Any:
        return value

    return ask


#: elements that stick out of the window, unless they are inside of something that scrolls
TOO_WIDE = """[...document.querySelectorAll('#page *')].filter((each) => !each.closest('.scroll, svg, .last, .waits')
  && each.getBoundingClientRect().right > window.innerWidth + 1).map((each) => each.outerHTML.slice(0, 120))"""


async def test_pages_work_on_a_phone(browser: Browser, console: ConsoleServer) -> None:
    async with visit(browser, console) as person:
        await person.page.set_viewport_size({"width": 390, "height": 844})
        for path in PAGES:
            await person.open(path)
            assert await person.page.evaluate(TOO_WIDE) == [], path


async def test_a_person_writes_and_answers_and_the_outbox_says_via_console(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    async with visit(browser, console) as person:
        await person.open("/conversations")
        await person.page.click("summary")
        await person.page.fill("[name=to]", "reviewer@atlas")
        await person.page.fill("[name=message]", "Is the release safe?\nBe honest.")
        await person.page.click("text=Send")
        await person.says("Sent to reviewer@atlas.", "#notice")
        bodies = await eventually(team.program("reviewer").bodies, lambda found: any("honest" in b for b in found))
        assert "Is the release safe?\nBe honest." in bodies
        question = next(
            each
            for each in (await team.program("reviewer").get("/v1/inbox", limit=100))["items"]
            if "honest" in (each["body"] or "")
        )
        await team.program("reviewer").send(team.hosts["atlas"].node, "It is.", reply_to_id=question["message_id"])
        await person.open(f"/conversations/{question['message_id']}")
        await person.says("It is.")
        await person.page.fill("[name=message]", "Thank you.")
        await person.page.click("text=Answer >> nth=-1")
        await person.says("Thank you.", "#messages")
    outbox = team.hosts["atlas"].mesh.outbox.store
    queued = [
        each.decoded_body()
        for each in await outbox.pool.run(_newest_queued)
        if each.decoded_body().get("via") == "console"
    ]
    assert len(queued) == 2


def _newest_queued(db: Any) -> Any:
    from posthouse.journal.read import read_after

    return read_after(db, 0, 1_000, ["outbox.queued"])


async def test_dead_letters_are_requeued_and_purged_only_after_a_confirmation(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    async with visit(browser, console) as person:
        await person.open("/queues")
        await person.page.check("[name=delivery]")
        await person.page.click("#rows >> text=Purge ticked")
        assert "removed for good" in await person.confirm(yes=False)
        await person.page.click("#rows >> text=Requeue ticked")
        await person.says("1 requeued.", "#notice")
        await person.says("No dead letters.")
        await person.open("/queues?state=open")
        await person.page.check("[data-all] >> nth=0")
        await person.page.click("#rows >> text=Purge ticked")
        await person.confirm()
        await person.says("5 purged.", "#notice")
        await person.says("No messages in this state.")
    [requeued] = await records(team, "delivery.requeued")
    purged = await records(team, "delivery.purged")
    assert {each.body["via"] for each in [requeued, *purged]} == {"console"}
    assert requeued.actor == team.hosts["atlas"].node
    assert sum(len(each.body["ids"]) for each in purged) == 5


async def test_rows_of_the_outbox_are_requeued_and_dropped(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    host = team.hosts["atlas"]
    await dead_row(host, "to-drop", READER_KEY.node)
    async with visit(browser, console) as person:
        await person.open("/queues")
        row = await host.row("to-drop")
        await person.page.check(f"[name=row][value='{row['id']}']")
        await person.page.click("#outbox >> text=Drop ticked")
        await person.confirm()
        await person.says("1 dropped.", "#notice")
        assert (await host.row("to-drop"))["status"] == "aborted"
        await person.open("/queues")
        await person.page.check("#outbox [data-all]")
        await person.page.click("#outbox >> text=Requeue ticked")
        await person.says("1 requeued.", "#notice")
        await person.says("No rows with the status dead.")


async def test_an_admin_breaks_a_lock_and_releases_a_path(browser: Browser, team: Team, console: ConsoleServer) -> None:
    async with visit(browser, console) as person:
        await person.open("/locks")
        await person.page.click("[aria-label='Break board/two']")
        assert "may still be working" in await person.confirm()
        await person.says("The lease of board/two was ended.", "#notice")
        await person.says("via console", "#history")
        await person.page.click("[aria-label^='Release ']")
        await person.confirm()
        await person.says("was released.", "#notice")
        await person.says("No path is reserved.")
    [broken] = await records(team, "lock.broken")
    assert (broken.ref, broken.body["via"], broken.actor) == ("board/two", "console", team.hosts["atlas"].node)


async def test_hostile_texts_are_shown_and_never_obeyed(browser: Browser, team: Team, console: ConsoleServer) -> None:
    await team.hosts["borealis"].post("/v1/agents", name="docs", summary=HOSTILE[:190])
    long = HOSTILE + "w" * 40_000
    message = await team.say("tester", "planner@atlas", long)
    await eventually(team.program("planner").bodies, lambda bodies: long in bodies)
    resource = "<b onmouseover=alert(1)>x</b>"
    await team.program("builder").post("/v1/locks/acquire", resource=resource, lease_ms=60_000)
    async with visit(browser, console) as person:
        for path in ("/team", "/conversations", f"/conversations/{message}", f"/messages/{message}", "/locks", "/live"):
            await person.open(path)
            assert await person.page.evaluate("window.hacked") is None
            assert await person.page.query_selector("#page img, #page script, #page b[onmouseover]") is None
        await person.open(f"/messages/{message}")
        text = await person.text()
        assert "<script>window.hacked=1</script>" in text and "{{7*7}}" in text and "w" * 40_000 in text
        assert not {"\u202e", "\x07", "\x1b"} & set(await person.page.inner_html("#page"))
        await person.open("/locks")
        assert resource in await person.text()
        await person.page.click(f"[aria-label='Break {resource}']")
        assert resource in await person.confirm()
        await person.says(f"The lease of {resource} was ended.", "#notice")
        await person.open("/conversations")
        await person.page.click("summary")
        await person.page.fill("[name=to]", "<i>nobody</i>@atlas")
        await person.page.fill("[name=message]", "x" * 100_000)
        await person.page.click("text=Send")
        await person.page.wait_for_selector("#notice .bad")
        assert await person.page.query_selector("#notice i") is None
        person.complaints = [each for each in person.complaints if " 400" not in each and "status of 4" not in each]


async def test_live_resumes_without_a_gap_after_a_pause_and_a_restart_of_the_relay(
    browser: Browser, team: Team
) -> None:
    small = LiveFeed(kept=5)
    async with team.console(feed=small) as console, visit(browser, console) as person:
        await person.open("/live?source=relay&kind=message&text=releases")
        await person.page.wait_for_selector("#stream[data-state=on]")
        first = await person.page.eval_on_selector_all("#rows tr", "all => all.length")
        await team.say("planner", "#releases", "before the pause")
        await _rows(person, first + 1)
        await person.page.click("#pause")
        await person.page.wait_for_selector("#stream[data-state=paused]")
        before = small.newest
        for number in range(12):  # more than the feed keeps
            await team.say("planner", "#releases", f"note {number}")
        await eventually(_asked_newest(small), lambda newest: newest > before + 5)
        await person.page.click("#pause")
        await _rows(person, first + 13)
        await team.house.down()
        await team.house.up()
        await team.say("planner", "#releases", "after the restart")
        await _rows(person, first + 14)
        seen = await person.page.eval_on_selector_all("#rows a[href^='/messages/']", "all => all.map(a => a.href)")
        assert len(seen) == len(set(seen)) == first + 14


def _asked_newest(feed: LiveFeed) -> Any:
    async def ask() -> int:
        return feed.newest

    return ask


async def _rows(person: Visit, count: int) -> None:
    await person.page.wait_for_function(
        "count => document.querySelectorAll('#rows tr').length >= count", arg=count, timeout=PATIENCE_MS
    )


async def test_a_page_that_is_hidden_has_no_stream(browser: Browser, console: ConsoleServer) -> None:
    streams = console.context.streams
    async with visit(browser, console) as person:
        await person.page.wait_for_selector("#stream[data-state=on]")
        assert streams.count == 1
        await person.page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        await eventually(_asked_count(streams), lambda count: count == 0)


def _asked_count(streams: Any) -> Any:
    async def ask() -> int:
        return int(streams.count)

    return ask


async def test_an_old_or_used_link_opens_nothing(browser: Browser, team: Team) -> None:
    clock = FakeClock()
    async with team.console(clock=clock) as console:
        context = await browser.new_context()
        page = await context.new_page()
        old, used = console.new_link(), console.new_link()
        console.context.access.exchange(used.partition("#link=")[2])
        await page.goto(used)
        await page.wait_for_selector(".locked")
        assert "used before" in await page.inner_text(".locked")
        clock.advance(LINK_TTL_S)
        await page.goto("about:blank")
        await page.goto(old)
        await page.wait_for_selector(".locked")
        assert "link" not in page.url.partition("#")[2]
        assert await page.evaluate("localStorage.length") == 0
        await context.close()


async def test_a_member_sees_less_and_cannot_act_as_an_admin(browser: Browser, team: Team) -> None:
    async with team.console("borealis") as console, visit(browser, console) as person:
        await person.open("/queues")
        assert "You see your own queue" in await person.text()
        await person.open("/locks")
        assert await person.page.query_selector("text=Break") is None
        assert await person.page.query_selector("#history") is None
        token = await person.page.evaluate("localStorage.getItem('posthouse-console-token')")
        said = await person.page.request.post(
            f"{console.origin}/act/locks/break",
            headers={"Authorization": f"Bearer {token}", "Origin": console.origin},
            form={"resource": "deploy/production"},
        )
        assert (said.status, "right_missing" in await said.text()) == (403, True)
        await person.open("/team")
        await person.says("tester")
    async with team.console("atlas") as admins:
        with pytest.raises(Exception, match="not one of this console"):
            admins.context.access.check(token)


THIEF = """<!doctype html><title>waiting</title><iframe id=frame src="{origin}/team"></iframe><script>
(async () => {
  const found = [];
  const frame = document.getElementById("frame");
  await new Promise((done) => frame.addEventListener("load", done));
  try { found.push(frame.contentWindow.localStorage.length); } catch { found.push("blocked"); }
  found.push(localStorage.getItem("posthouse-console-token"));
  for (const [path, options] of [["/data/team", {}], ["/data/team", {credentials: "include"}],
      ["/session", {method: "POST", body: "{}"}], ["/act/send", {method: "POST", mode: "no-cors", body: "to=x"}]]) {
    try { const said = await fetch("{origin}" + path, options); found.push(await said.text()); }
    catch { found.push("blocked"); }
  }
  const opened = window.open("{origin}/team");
  let is_open = true;
  while (is_open) {
    try { is_open = opened.localStorage !== null && !opened.closed; } catch { is_open = false; }
    await new Promise((done) => setTimeout(done, 10));
  }
  found.push("blocked");
  document.title = JSON.stringify(found);
})();
</script>"""


async def test_another_server_of_the_machine_gets_neither_token_nor_content(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    cookies: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        return web.Response(text=THIEF.replace("{origin}", console.origin), content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/", serve)])
    sent = len((await team.hosts["atlas"].get("/v1/outbox", limit=500))["items"])
    async with TestServer(app, host="127.0.0.1") as server:
        context = await browser.new_context()
        person = Visit(await context.new_page(), console)
        await person.unlock()  # the same browser profile has a token of the console
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{server.port}/")
        await page.wait_for_function("document.title !== 'waiting'")
        assert await page.title() == '["blocked",null,"blocked","blocked","blocked","blocked","blocked"]'
        assert cookies == [""]
        await context.close()
    assert len((await team.hosts["atlas"].get("/v1/outbox", limit=500))["items"]) == sent
