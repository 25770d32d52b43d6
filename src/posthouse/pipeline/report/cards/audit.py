"""The audit: whether history proves itself."""

from __future__ import annotations

from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.markup import Markup, element, text
from posthouse.pipeline.report.parts import card, table
from posthouse.pipeline.report.words import count

_LEAD = "Every id, signature, delivery and lease re-derived from the lake."


def cards(figures: Figures) -> list[Markup]:
    """Return the card of the audit."""
    audit = figures.audit
    if audit is None:
        verdict = element("p", text("Not audited in this report"), class_="verdict mute")
        return [card("Audit", _LEAD, verdict, element("p", text("Run posthouse pipeline audit."), class_="none"))]
    if not audit.findings:
        verdict = element("p", text("Nothing found"), class_="verdict good")
        return [
            card("Audit", _LEAD, verdict, element("p", text(f"{count(audit.rows)} records proved."), class_="soft"))
        ]
    total = sum(row.value for row in audit.findings)
    verdict = element("p", text(f"{count(total)} findings in {count(audit.rows)} records"), class_="verdict bad")
    rows = [[f"{row.name}: {row.note}", count(row.value)] for row in audit.findings]
    return [card("Audit", _LEAD, verdict, table(("Finding", "How many"), rows))]
