"""The card of the audit, and the traces of messages that other cards link to.

A trace is hidden until a link to it is followed: the style sheet shows the target of the address, so no script is
needed. On paper all traces are shown.
"""

from __future__ import annotations

from datetime import UTC, datetime

from posthouse.model.limits import SECOND_NS
from posthouse.pipeline.report.figures import AuditSummary, Figures, Trace
from posthouse.pipeline.report.markup import Markup, card, count, element, fitted, table, text

_AUDIT_LEAD = "Recomputes every id, signature, delivery, lease and Merkle seal of the lake."
_DETAIL_CHARS = 160


def audit_cards(figures: Figures) -> list[Markup]:
    """Return the card of the audit."""
    audit = figures.audit
    if audit is None:
        verdict = element("p", text("Not audited in this report"), class_="verdict mute")
        return [card("Audit", _AUDIT_LEAD, verdict, element("p", text("Run posthouse pipeline audit."), class_="none"))]
    checked = f"{count(audit.rows)} records, {count(audit.events)} events and {count(audit.seals)} seals checked."
    if not audit.findings:
        verdict = element("p", text("Nothing found"), class_="verdict good")
        return [card("Audit", _AUDIT_LEAD, verdict, element("p", text(checked), class_="soft"))]
    total = sum(row.value for row in audit.findings)
    verdict = element("p", text(f"{count(total)} findings in {count(audit.rows)} records"), class_="verdict bad")
    rows = [[f"{row.name}: {row.note}", count(row.value)] for row in audit.findings]
    return [card("Audit", _AUDIT_LEAD, verdict, table(("Finding", "Count"), rows), *_details(figures, audit))]


def _details(figures: Figures, audit: AuditSummary) -> list[Markup]:
    if not audit.details:
        return []
    rows = [
        [f"{each.code}: {fitted(each.detail, _DETAIL_CHARS)}", trace_link(figures, each.message_id)]
        for each in audit.details
    ]
    return [element("p", text("The first findings"), class_="lead gap"), table(("Detail", ""), rows)]


def trace_link(figures: Figures, message_id: str) -> str:
    """Return a link to the trace of a message; empty if the page has none."""
    if not any(each.message_id == message_id for each in figures.traces):
        return ""
    return element("a", text("trace"), href=f"#{_anchor(message_id)}")


def trace_cards(figures: Figures) -> list[Markup]:
    """Return the traces, each as a separate section."""
    return [_trace(each) for each in figures.traces]


def _trace(trace: Trace) -> Markup:
    rows = [[_time(step.at_ns), step.what, step.who] for step in trace.steps]
    lead = "The records about this message, oldest first. The same in a terminal:"
    command = element("code", text(f"posthouse trace {trace.message_id}"))
    return element(
        "section",
        element("h2", text("Trace of a message")),
        element("p", text(lead), Markup(" "), command, class_="lead"),
        element("div", table(("Time (UTC)", "Record", "Node"), rows, is_text=True), class_="scroll"),
        element("p", element("a", text("Back to the top"), href="#top"), class_="back"),
        id=_anchor(trace.message_id),
        class_="trace whole",
    )


def _anchor(message_id: str) -> str:
    return f"trace-{message_id}"


def _time(at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ns % SECOND_NS // 1_000_000:03d}"
