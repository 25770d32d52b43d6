"""The page as text: whole, self-contained, and safe whatever agents call themselves."""

from __future__ import annotations

import re

from posthouse.pipeline.report.figures import AuditSummary, Figures, Ranked
from posthouse.pipeline.report.page import render_page
from tests.pipeline.report.sample import HOSTILE, NAMES, make_sample


def test_page_asks_nothing_of_the_network_and_holds_no_script() -> None:
    page = render_page(make_sample())
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"<(script|link|iframe|img|object)\b", page)
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_page_of_an_empty_lake_says_so_in_every_card() -> None:
    page = render_page(Figures(made_at_s=0))
    assert "The lake holds no traffic yet" in page
    for words in ("No message was accepted", "Nothing was refused", "No lock was taken", "Not audited"):
        assert words in page


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


def test_same_figures_make_the_same_page() -> None:
    assert render_page(make_sample()) == render_page(make_sample())
