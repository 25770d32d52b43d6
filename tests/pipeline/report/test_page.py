"""The page as text: whole, self-contained, and safe whatever agents call themselves."""

from __future__ import annotations

import re

from posthouse.pipeline.report.figures import AuditSummary, Figures, FoundDetail, Hour, Latency, Ranked
from posthouse.pipeline.report.page import render_page
from tests.pipeline.report.sample import HOSTILE, NAMES, make_sample


def test_page_asks_nothing_of_the_network_and_holds_no_script() -> None:
    page = render_page(make_sample())
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"<(script|link|iframe|img|object)\b", page)
    assert not re.search(r"src=|url\(|@import", page)
    assert set(re.findall(r'href="(.)', page)) == {"#"}  # links lead to other places of the page only


def test_page_of_an_empty_lake_says_so_in_every_card() -> None:
    page = render_page(Figures(made_at_s=0))
    assert "The lake holds no traffic yet" in page
    for words in ("No message was accepted", "Nothing was refused", "No lock was taken", "Not audited"):
        assert words in page


def test_mail_between_agents_of_one_host_is_part_of_the_traffic() -> None:
    page = render_page(Figures(made_at_s=0, hours=(Hour(500_000, "host", 8, 0, 0, 0),)))
    card = page[page.index("<h2>Traffic") : page.index("<h2>Delivery outcomes")]
    assert "relay</span>" not in card and 'class="c4"' in card and "host</span>" in card


def test_hostile_names_are_shown_and_never_become_markup() -> None:
    page = render_page(make_sample(names=(*HOSTILE, *NAMES)))
    assert "<script>" not in page and "<img" not in page and "<h1>gone" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page and "\x1b" not in page


def test_findings_of_the_audit_are_named_with_their_number() -> None:
    audit = AuditSummary(1_000, (Ranked("signature_invalid", 3, "the signature of an event is not its author's"),))
    page = render_page(make_sample(audit=audit))
    assert "3 findings in 1,000 records" in page
    assert "signature_invalid" in page
    assert "Nothing found" in render_page(make_sample(audit=AuditSummary(1_000)))


def test_finding_and_slow_answer_link_to_the_trace_of_their_message() -> None:
    known, unknown = f"{1:064x}", f"{77:064x}"
    details = (FoundDetail("event_twice", "twice", known), FoundDetail("seq_gap", "a gap", unknown))
    page = render_page(make_sample(audit=AuditSummary(10, (Ranked("event_twice", 1),), details)))
    assert page.count(f'href="#trace-{known}"') == 2 and f'id="trace-{known}"' in page
    assert f"posthouse trace {known}" in page and f"trace-{unknown}" not in page


def test_period_is_compared_with_the_one_before_in_words_and_verdicts() -> None:
    page = render_page(make_sample())
    assert "+4 % vs. the previous period" in page
    assert 'class="change better">-33 % vs.' in page  # latency
    assert 'class="change worse">+27 % vs.' in page  # cost
    alone = render_page(Figures(made_at_s=0))
    assert "the previous period" not in alone


def test_page_says_what_it_is_limited_to() -> None:
    assert "agent claude@laptop" in render_page(Figures(made_at_s=0, limits=("mesh main", "agent claude@laptop")))


def test_same_figures_make_the_same_page() -> None:
    assert render_page(make_sample()) == render_page(make_sample())


def test_latency_charts_of_all_sources_have_the_same_hours() -> None:
    relay = tuple(Latency(500_000 + hour, "relay", 1, 5.0, 6.0, 7.0) for hour in range(72))
    bus = tuple(Latency(500_000 + hour, "bus", 1, 5.0, 6.0, 7.0) for hour in range(30, 40))
    page = render_page(Figures(made_at_s=0, latency=(*relay, *bus)))
    card = page[page.index("<h2>Delivery latency") : page.index("<h2>Agents")]
    of_relay, of_bus = card.split("bus, median")
    days = re.compile(r'<text x="([\d.]+)"[^>]*>(\d+ [A-Z][a-z]{2})<')
    assert days.findall(of_bus) == days.findall(of_relay) != []
