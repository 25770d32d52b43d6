"""Every page and every action in a real browser, with a team whose agents talk; hostile texts, two roles, thieves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from posthouse.client.metric_samples import Series
from posthouse.console.access import LINK_TTL_S
from posthouse.console.console_server import ConsoleServer
from posthouse.console.live_feed import LiveFeed
from posthouse.journal.read import read_after
from posthouse.model.api import ClusterRelay, ClusterState
from posthouse.model.clock import FakeClock, system_clock
from posthouse.model.limits import DAY_S, KIB
from posthouse.model.mesh_limits import AgeLimit, MeshLimits, OnFull
from posthouse.pipeline.audit.finding import Finding, LastAudit, read_last_audit, save_last_audit
from tests.console.browsing import PATIENCE_MS, Visit, visit
from tests.console.demo_team import FROM_THE_BUS, READER_KEY, Team, demo_team
from tests.daemon.hosts import eventually
from tests.daemon.test_inbox import item
from tests.daemon.test_requeue import dead_row
from tests.relay.webhooks.receivers import receiving

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
    "/live": ("planner@atlas", "message", "an answer"),
    "/health": ("connected", "dead letters", "Refused events"),
}


PICTURES = Path(__file__).parents[2] / "docs" / "images"
#: `POSTHOUSE_PICTURES=docs/images` takes the pictures of the documentation again
KEPT_PICTURES = os.environ.get("POSTHOUSE_PICTURES")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_shows_the_team_is_accessible_and_has_a_picture_in_docs(
    browser: Browser, team: Team, console: ConsoleServer, scheme: str, tmp_path: Path
) -> None:
    assert team.admin is not None
    threads = await console.context.upstream.daemon.threads(limit=100)
    by_subject = {each.subject: each.id for each in threads}
    subject = "Build 2.4.0 from the release branch"
    pages = {path[1:]: (path, words) for path, words in PAGES.items()} | {
        "conversation": (f"/conversations/{by_subject[subject]}", (subject, "Your answer", "Budget left")),
        "message": (f"/messages/{by_subject[FROM_THE_BUS]}", ("Timeline", "accepted")),
    }
    folder = tmp_path if KEPT_PICTURES is None or scheme == "dark" else Path(KEPT_PICTURES)
    limits = MeshLimits(max_events=400, max_bytes=512 * KIB, max_age=(AgeLimit(1, 9_999, 90 * DAY_S),))
    await team.admin.meshes.set_limits("main", limits)
    await draw_curves(team, console, 60 if KEPT_PICTURES else 2)
    async with visit(browser, console, color_scheme=scheme) as person:
        for name, (path, words) in pages.items():
            await person.open(path)
            text = await person.text()
            assert [each for each in words if each not in text] == [], (path, text)
            await person.page.wait_for_selector("#stream[data-state=on]")
            await person.page.screenshot(path=folder / f"console-{name}.png", full_page=name == "health")
            assert await person.violations() == [], path
    await team.admin.meshes.set_limits("main", MeshLimits())
    assert {each.name for each in PICTURES.glob("console-*.png")} == {f"console-{name}.png" for name in pages}


async def draw_curves(team: Team, console: ConsoleServer, samples: int) -> None:
    """Let agents talk, now more and now less, while the console takes samples of metrics."""
    taken = console.context.upstream.samples.relay.samples
    threads = await console.context.upstream.daemon.threads(limit=100)
    asked = next(each.last.message_id for each in threads if each.subject.startswith("Can you run"))
    for number in range(samples):
        for _ in range(number % 5 if number % 12 < 8 else 0):
            await team.say("tester", "planner@atlas", f"Board two: {number * 7} of 412 tests passed", asked)
        newest_s = taken[-1][0] if taken else 0.0
        await eventually(_asked(taken), lambda found, newest_s=newest_s: bool(found) and found[-1][0] > newest_s)  # type: ignore[misc]


async def test_team_lists_agents_that_asked_as_waiting_and_nothing_that_will_never_be_answered(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    await eventually(team.program("planner").bodies, lambda found: any("will not arrive" in b for b in found))
    withdrawn = await team.say("planner", "reviewer@atlas", "Is it too late?")
    async with visit(browser, console) as person:
        await person.open("/team")
        await person.says("Please look at the change of the retry logic", "#waiting")
        await person.says("Is it too late?", "#waiting")
        await team.program("planner").post("/v1/messages/withdraw", id=withdrawn)
        await person.open("/team")
        waiting = await person.page.inner_text("#waiting")
        assert "will not arrive" not in waiting and "Is it too late?" not in waiting
        assert "The nightly report" not in waiting, "its reader rejected it"
        await person.open("/conversations")
        threads = await person.page.eval_on_selector_all("#threads li", "all => all.map((each) => each.innerText)")
        assert ["rejected" in each for each in threads if "nightly" in each] == [True]


BAR_ENDS = "all => all.map((bar) => bar.getBBox()).map((box) => [box.x, box.x + box.width])"


async def test_the_path_of_a_message_begins_on_the_bus_of_its_host(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    threads = await console.context.upstream.daemon.threads(limit=100)
    message = next(each for each in threads if each.subject == FROM_THE_BUS)
    async with visit(browser, console) as person:
        await person.open(f"/messages/{message.id}")
        lanes = await person.page.eval_on_selector_all(".timeline .lane", "all => all.map((each) => each.innerText)")
        assert lanes[:2] == ["bus", "outbox"] and {"bus", "outbox", "relay"} <= set(lanes)
        await person.says("published to mesh.main.out.", "#timeline")
        bars = await person.page.eval_on_selector_all(".track rect", BAR_ENDS)
        assert len(bars) == len(lanes) and all(0 <= start < end <= 100.1 for start, end in bars)


async def test_live_shows_mail_between_agents_of_one_host(browser: Browser, team: Team, console: ConsoleServer) -> None:
    async with visit(browser, console) as person:
        await person.open("/live?source=daemon&kind=message&text=reviewer")
        await person.page.wait_for_selector("#stream[data-state=on]")
        await team.say("builder", "reviewer@atlas", "between ourselves")
        await person.says("builder@atlas")
        assert "between ourselves" not in await person.text()


async def test_health_shows_webhooks_and_which_of_them_need_attention(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    assert team.admin is not None
    webhooks = team.admin.webhooks
    async with receiving() as receiver, visit(browser, console) as person:
        await person.open("/health")
        assert await person.page.query_selector("#webhooks") is None
        receiver.answer = lambda _request: 410
        added = await webhooks.add("main", f"{receiver.url}/secret-path")
        try:
            await team.admin.publish("for the webhook", kind=1)
            await eventually(lambda: webhooks.get(added.webhook.id), lambda found: found.webhook.state == "ended")
            await person.open("/health")
            await person.says("ended", "#webhooks")
            await person.says("The webhook to 127.0.0.1 is ended", "#warnings")
            assert "secret-path" not in await person.page.content()
            assert await person.violations() == []
        finally:
            await webhooks.remove(added.webhook.id)


async def test_health_shows_what_the_last_audit_found(browser: Browser, console: ConsoleServer, tmp_path: Path) -> None:
    upstream, now_ns = console.context.upstream, system_clock().wall_ns()
    upstream.read_last_audit = lambda: read_last_audit(tmp_path)
    try:
        async with visit(browser, console) as person:
            await person.open("/health")
            assert "Audit of the history" not in await person.text()
            save_last_audit(tmp_path, LastAudit(now_ns, 1_200, 340, {}, []))
            await person.open("/health")
            await person.says("1,200 records and 340 events were checked: no findings.")
            finding = Finding("seq_gap", "relay", "e1", HOSTILE, 12, "records 12 to 14 are missing")
            save_last_audit(tmp_path, LastAudit(now_ns, 1_200, 340, {"seq_gap": 3}, [finding]))
            await person.open("/health")
            await person.says("records are missing between two existing records")
            await person.says("The last audit of the history has findings: 3.", "#warnings")
            await person.page.click("#audit summary")
            await person.says("records 12 to 14 are missing", "#audit")
            assert await person.violations() == []
            assert await person.page.evaluate("window.hacked") is None
    finally:
        upstream.read_last_audit = lambda: None


async def test_health_shows_what_the_mesh_stores_its_limits_and_when_it_is_full(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    assert team.admin is not None
    usage = await team.admin.meshes.usage("main")
    async with visit(browser, console) as person:
        await person.open("/health")
        await person.says("No limit is set: everything is kept.", "#retention")
        await person.says("last sweep of retention", "#retention")
        age = AgeLimit(1, 9_999, 30 * 86_400)
        await team.admin.meshes.set_limits("main", MeshLimits(max_events=usage.events + 1_000, max_age=(age,)))
        try:
            await person.open("/health")
            await person.says(f"of {usage.events + 1_000:,}", "#retention")
            await person.says("Events of kind 1 to 9999 are kept for 30 d.", "#retention")
            await person.says("until the clock of the relay has been steady for an hour", "#retention")
            assert await person.page.get_attribute("#retention meter", "max") == str(usage.events + 1_000)
            assert "is full" not in await person.page.inner_text("#warnings")
            await team.admin.meshes.set_limits("main", MeshLimits(max_events=1, on_full=OnFull.DROP_OLDEST))
            await person.open("/health")
            await person.says("The mesh main is full and drops its oldest events.", "#warnings")
            assert await person.violations() == []
            assert await person.page.query_selector("#cluster") is None, "the relay is alone"
        finally:
            await team.admin.meshes.set_limits("main", MeshLimits())


async def test_health_shows_the_leader_the_followers_and_a_relay_that_is_lost(
    browser: Browser, console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = console.context.upstream.relay.archive
    lost = ClusterRelay("c", "http://10.0.0.3:7420", 7, 12.5, is_self=False, is_leader=False, is_alive=False)
    relays = [
        ClusterRelay("a", "http://10.0.0.1:7420", 4_210, 0.2, is_self=True, is_leader=True, is_alive=True),
        ClusterRelay("b", "http://10.0.0.2:7420", 4_198, 0.4, is_self=False, is_leader=False, is_alive=True),
        lost,
    ]

    async def answer() -> ClusterState:
        return ClusterState("a", leader, 3, relays)

    leader: str | None = "a"
    monkeypatch.setattr(archive, "cluster", answer)
    async with visit(browser, console) as person:
        await person.open("/health")
        rows = await person.page.eval_on_selector_all("#cluster tbody tr", "all => all.map((row) => row.innerText)")
        assert [("leader" in row, "alive" in row, "answers this console" in row) for row in rows] == [
            (True, True, True),
            (False, True, False),
            (False, False, False),
        ]
        await person.says("4,210", "#cluster")
        await person.says("The relay http://10.0.0.3:7420 has been silent for 12 s.", "#warnings")
        assert await person.violations() == []
        leader = None
        await person.open("/health")
        await person.says("No relay is the leader", "#warnings")


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
        bodies = await eventually(
            team.program("reviewer").bodies, lambda found: any("honest" in (b or "") for b in found)
        )
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
    assert await via_console(team, "outbox.queued") == 2


async def via_console(team: Team, kind: str) -> int:
    """Return how many records of a kind in the stores of atlas say that they come from the console."""
    host = team.hosts["atlas"]
    stores = (host.mesh.outbox.store, host.daemon.agents.store)
    found: list[Any] = [await store.pool.run(lambda db: list(read_after(db, 0, 1_000, [kind]))) for store in stores]
    return len([each for records in found for each in records if each.decoded_body().get("via") == "console"])


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
    assert await via_console(team, "outbox.aborted") == 2  # the dropped row, and the one that a new row replaces


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
    assert await via_console(team, "reservation.ended") == 1
    assert (await team.hosts["atlas"].get("/v1/reservations"))["items"] == []


async def test_a_person_without_a_mouse_confirms_and_cancels_and_stays_where_the_page_was(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    held = await team.program("tester").post("/v1/locks/acquire", resource="board/three", lease_ms=300_000)
    assert held.status == 200
    async with visit(browser, console) as person:
        await person.open("/locks")
        keyboard = person.page.keyboard
        await keyboard.press("Tab")
        assert await person.page.evaluate("document.activeElement.className") == "skip"
        await keyboard.press("Enter")
        await _press_until(person, "Tab", "Break board/three")
        await keyboard.press("Enter")
        await person.page.wait_for_selector("#confirm[open]")
        assert await person.page.evaluate("document.activeElement.id") == "confirm-no"
        await keyboard.press("Escape")
        await person.page.wait_for_selector("#confirm:not([open])", state="hidden")
        await keyboard.press("Enter")
        await person.page.wait_for_selector("#confirm[open]")
        await keyboard.press("Tab")
        await keyboard.press("Enter")
        await person.says("The lease of board/three was ended.", "#notice")
        await person.page.wait_for_function("() => document.activeElement.id === 'held'")


async def test_a_question_that_follows_a_cancelled_one_at_once_is_answered(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    held = await team.program("tester").post("/v1/locks/acquire", resource="board/four", lease_ms=300_000)
    assert held.status == 200
    async with visit(browser, console) as person:
        await person.open("/locks")
        await person.page.evaluate(
            """() => {
                const button = document.querySelector("[aria-label='Break board/four']");
                button.click();
                document.getElementById("confirm").close();
                button.click();
            }"""
        )
        await person.page.click("#confirm-yes")
        await person.says("The lease of board/four was ended.", "#notice")


async def _press_until(person: Visit, key: str, label: str) -> None:
    """Press a key until an element with a label has the focus."""
    for _ in range(60):
        await person.page.keyboard.press(key)
        if await person.page.evaluate("document.activeElement.getAttribute('aria-label')") == label:
            return
    raise AssertionError(f"the keyboard does not reach {label}")


async def test_hostile_texts_are_shown_and_never_obeyed(browser: Browser, team: Team, console: ConsoleServer) -> None:
    await team.hosts["borealis"].post("/v1/agents", name="docs", summary=HOSTILE[:190])
    long = HOSTILE + "w" * 100_000  # more than relays take by default: another relay may have allowed it
    received = item(90_000, sender=team.hosts["borealis"].node)._replace(body=long, from_agent="tester")
    await team.hosts["atlas"].mesh.inbox.put([received])
    message = received.message_id
    resource = "<b onmouseover=alert(1)>x</b>"
    await team.program("builder").post("/v1/locks/acquire", resource=resource, lease_ms=60_000)
    async with visit(browser, console) as person:
        for path in ("/team", "/conversations", f"/conversations/{message}", f"/messages/{message}", "/locks", "/live"):
            await person.open(path)
            assert await person.page.evaluate("window.hacked") is None
            assert await person.page.query_selector("#page img, #page script, #page b[onmouseover]") is None
        await person.open(f"/messages/{message}")
        text = await person.text()
        assert "<script>window.hacked=1</script>" in text and "{{7*7}}" in text and "w" * 100_000 in text
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


async def test_pages_cost_the_relay_one_subscriber_and_hidden_ones_have_no_stream(
    browser: Browser, team: Team, console: ConsoleServer
) -> None:
    async def subscriptions() -> float:
        series = Series()
        series.add(0, await team.admin.archive.metrics())  # type: ignore[union-attr]
        return series.value("posthouse_relay_subscriptions") or 0

    streams, before = console.context.streams, await subscriptions()
    assert before >= 1
    await eventually(_asked_count(streams), lambda count: count == 0)  # those of pages that were closed before
    async with visit(browser, console) as one, visit(browser, console) as two:
        await two.open("/live")
        for person in (one, two):
            await person.page.wait_for_selector("#stream[data-state=on]")
        assert (streams.count, await subscriptions()) == (2, before)
        for person in (one, two):
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
        assert "already used" in await page.inner_text(".locked")
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
        with pytest.raises(Exception, match="does not belong to this console"):
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
