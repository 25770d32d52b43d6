"""The report page and its cards: one self-contained HTML file, without scripts or network access.

Each `..._cards` function returns the cards of one topic. Every chart is drawn for laptop, tablet and phone; colors
follow the light or dark mode of the system. posthouse.pipeline.report.markup escapes all text that comes from agents.
"""

from __future__ import annotations

from importlib.resources import files

from posthouse.pipeline.report import markup
from posthouse.pipeline.report.figures import Contention, Edge, Figures, Latency, Ranked, middle
from posthouse.pipeline.report.markup import (
    HALF_PX,
    WHOLE_PX,
    Markup,
    card,
    count,
    dollars,
    duration,
    element,
    fitted,
    fitting,
    nothing,
    ranked_bars,
    share,
    short_day,
    table,
    text,
    tile,
)
from posthouse.pipeline.report.svg_charts import Plane, Spans, legend, log_lines, matrix, stacked_columns

SOURCES = {"relay": "c1", "bus": "c2"}
_TRAFFIC_LEAD = "Accepted messages: by the relay between hosts, and by the bus on one host."


def traffic_cards(figures: Figures) -> list[Markup]:
    """Return the card of traffic."""
    if not figures.hours:
        return [card("Traffic", _TRAFFIC_LEAD, nothing("No message was accepted."), is_whole=True)]
    present = [source for source in SOURCES if any(hour.source == source for hour in figures.hours)]
    chart = fitting(lambda width, is_narrow: _traffic_chart(figures, present, width, is_narrow), WHOLE_PX)
    keys = legend([(SOURCES[source], source) for source in present])
    return [card("Traffic", _TRAFFIC_LEAD, keys, chart, is_whole=True)]


def _traffic_chart(figures: Figures, present: list[str], width: float, is_narrow: bool) -> Markup:
    spans = Spans(figures.hours[0].hour, figures.hours[-1].hour, 45 if is_narrow else 120)
    values = {source: [0.0] * spans.count for source in present}
    for hour in figures.hours:
        if hour.source in values:
            values[hour.source][spans.index(hour.hour)] += hour.messages
    series = [(source, SOURCES[source], values[source]) for source in present]
    plane = Plane(width, 190 if is_narrow else 230, left=40)
    title = f"Messages per {spans.step} h" if spans.step < 24 else "Messages per day"
    return stacked_columns(plane, title, series, spans.labels(), spans.words, count)


_OUTCOME_LEAD = "Each message counts once per reader, with the current state of its delivery."
_OUTCOME_NOTES = {
    "delivered": "confirmed by its reader, or handled",
    "waiting": "queued or in flight",
    "rejected": "the reader rejected it",
    "failed": "a handler failed, or the reader never confirmed it",
    "expired": "not delivered before its time to live ended",
    "blocked": "the reader blocks the sender",
    "removed": "purged by an operator, or replaced",
}


def outcome_cards(figures: Figures) -> list[Markup]:
    """Return the card of outcomes."""
    if not figures.outcomes:
        return [card("Delivery outcomes", _OUTCOME_LEAD, nothing("No deliveries yet."))]
    total = sum(row.value for row in figures.outcomes)
    rows = [Ranked(row.name, row.value, _OUTCOME_NOTES.get(row.name, "")) for row in figures.outcomes]
    rows.sort(key=lambda row: -row.value)
    return [
        card(
            "Delivery outcomes",
            _OUTCOME_LEAD,
            ranked_bars(rows, lambda value: f"{count(value)} · {share(value, total)}", "c3"),
        )
    ]


_LATENCY_LEAD = "From accepted to confirmed or handled, by hour of the message. Offline readers raise the p90 lines."
_LINES = (
    ("relay", "p50_ms", "c1", "relay p50"),
    ("relay", "p90_ms", "c3", "relay p90"),
    ("bus", "p50_ms", "c2", "bus p50"),
    ("bus", "p90_ms", "c5", "bus p90"),
)


def latency_cards(figures: Figures) -> list[Markup]:
    """Return the card of latency."""
    if not figures.latency:
        return [card("Delivery latency", _LATENCY_LEAD, nothing("No delivery has ended yet."))]
    sources = {row.source for row in figures.latency}
    lines = [line for line in _LINES if line[0] in sources]
    chart = fitting(lambda width, is_narrow: _latency_chart(figures, lines, width, is_narrow), HALF_PX)
    return [card("Delivery latency", _LATENCY_LEAD, legend([(line[2], line[3]) for line in lines]), chart)]


def _latency_chart(figures: Figures, lines: list[tuple[str, str, str, str]], width: float, is_narrow: bool) -> Markup:
    spans = Spans(figures.latency[0].hour, figures.latency[-1].hour, 45 if is_narrow else 90)
    words = [spans.words(index) for index in range(spans.count)]
    series = [
        (name, class_, _span_latencies(figures.latency, spans, source, figure))
        for source, figure, class_, name in lines
    ]
    plane = Plane(width, 220 if is_narrow else 250, left=52)
    return log_lines(plane, "Delivery latency", series, spans.labels(), words)


def _span_latencies(rows: tuple[Latency, ...], spans: Spans, source: str, figure: str) -> list[float | None]:
    """Return the median of the hours in each span, weighted by their deliveries."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(spans.count)]
    for row in rows:
        if row.source == source:
            found[spans.index(row.hour)].append((getattr(row, figure), row.deliveries))
    return [middle(each) for each in found]


_COST_LEAD = "Usage that messages report, by day and model."
_MAX_DAYS = 60
_CLASSES = ("c1", "c2", "c3", "c4", "c5", "c6")


def cost_cards(figures: Figures) -> list[Markup]:
    """Return the cards of costs."""
    if not figures.costs:
        return [card("Cost", _COST_LEAD, nothing("No message reported its usage."))]
    totals: dict[str, float] = {}
    for cost in figures.costs:
        totals[cost.model] = totals.get(cost.model, 0) + cost.cost_usd
    models = sorted(totals, key=lambda model: (model == "others", -totals[model], model))[: len(_CLASSES)]
    chart = fitting(lambda width, is_narrow: _cost_chart(figures, models, width, is_narrow), HALF_PX)
    keys = legend([(_CLASSES[at], f"{fitted(model, 24)} {dollars(totals[model])}") for at, model in enumerate(models)])
    return [
        card("Cost per day", _COST_LEAD, keys, chart),
        card("Cost by sender", "The senders with the highest cost.", ranked_bars(figures.spenders, dollars)),
    ]


def _cost_chart(figures: Figures, models: list[str], width: float, is_narrow: bool) -> Markup:
    days = sorted({cost.day for cost in figures.costs})[-_MAX_DAYS:]
    amounts = {(cost.day, cost.model): cost.cost_usd for cost in figures.costs}
    series = [
        (model, _CLASSES[at], [amounts.get((day, model), 0.0) for day in days]) for at, model in enumerate(models)
    ]
    labels = [(at, short_day(day)) for at, day in enumerate(days)]
    plane = Plane(width, 190 if is_narrow else 220, left=50)
    return stacked_columns(plane, "Cost per day", series, labels, lambda at: short_day(days[at]), dollars)


_REFUSAL_LEAD = "Refusals by limits and rules: by code, and the senders and subjects refused most often."


def refusal_cards(figures: Figures) -> list[Markup]:
    """Return the card of refusals."""
    if not figures.refusals:
        return [card("Refusals", _REFUSAL_LEAD, nothing("Nothing was refused."))]
    by_code = ranked_bars(figures.refusals, count, "c5")
    heading = element("p", text("Most often refused"), class_="lead gap")
    return [card("Refusals", _REFUSAL_LEAD, by_code, heading, ranked_bars(figures.refused, count, "c6"))]


_CONTENTION_LEAD = "Locks by total waiting time. Taken over: the lease of the holder expired."
_CONTENTION_HEADS = ("Resource", "Grants", "Mean wait", "Longest", "Taken over")
_MAX_CHARS = 32


def contention_cards(figures: Figures) -> list[Markup]:
    """Return the card of contention."""
    if not figures.contention:
        return [card("Contention", _CONTENTION_LEAD, nothing("No lock was taken."))]
    rows = [_contention_row(each) for each in figures.contention]
    return [
        card(
            "Contention",
            _CONTENTION_LEAD,
            element("div", table(_CONTENTION_HEADS, rows, frozenset({3})), class_="scroll"),
        )
    ]


def _contention_row(each: Contention) -> list[str]:
    mean = duration(each.wait_ms / each.waits) if each.waits else "–"
    longest = duration(each.wait_ms_max) if each.waits else "–"
    return [fitted(each.resource, _MAX_CHARS), count(each.grants), mean, longest, count(each.take_overs)]


_AUDIT_LEAD = "Recomputes every id, signature, delivery and lease from the lake."


def audit_cards(figures: Figures) -> list[Markup]:
    """Return the card of the audit."""
    audit = figures.audit
    if audit is None:
        verdict = element("p", text("Not audited in this report"), class_="verdict mute")
        return [card("Audit", _AUDIT_LEAD, verdict, element("p", text("Run posthouse pipeline audit."), class_="none"))]
    if not audit.findings:
        verdict = element("p", text("Nothing found"), class_="verdict good")
        checked = element("p", text(f"{count(audit.rows)} records checked."), class_="soft")
        return [card("Audit", _AUDIT_LEAD, verdict, checked)]
    total = sum(row.value for row in audit.findings)
    verdict = element("p", text(f"{count(total)} findings in {count(audit.rows)} records"), class_="verdict bad")
    rows = [[f"{row.name}: {row.note}", count(row.value)] for row in audit.findings]
    return [card("Audit", _AUDIT_LEAD, verdict, table(("Finding", "Count"), rows))]


_PAIR_TITLES = {"relay": "Who talks to whom, by relay", "bus": "Who talks to whom, on the bus"}
_PAIR_LEAD = "Deliveries per sender (row) and reader (column), for the busiest of each."


def pair_cards(figures: Figures) -> list[Markup]:
    """Return a card for each source that has pairs."""
    found = [(source, edges) for source, edges in figures.edges.items() if edges]
    if not found:
        return [card("Who talks to whom", _PAIR_LEAD, nothing("No deliveries yet."))]
    found.sort(key=lambda pair: pair[0] != "relay")
    return [_pair_card(_PAIR_TITLES.get(source, f"Who talks to whom, {source}"), edges) for source, edges in found]


def _pair_card(title: str, edges: tuple[Edge, ...]) -> Markup:
    def draw(width: float, is_narrow: bool) -> Markup:
        max_names, characters = (6, 12) if is_narrow else (10, 17)
        return matrix(width, title, _short_edges(edges), max_names, characters)

    return card(title, _PAIR_LEAD, fitting(draw, HALF_PX))


def _short_edges(edges: tuple[Edge, ...]) -> list[Edge]:
    """Drop the common first and last tokens of names, which make up most of a bus subject."""
    names = sorted({name for edge in edges for name in (edge.sender, edge.recipient)})
    shown = _shortened(names)
    return [Edge(shown[edge.sender], shown[edge.recipient], edge.deliveries) for edge in edges]


def _shortened(names: list[str]) -> dict[str, str]:
    """Return names without the first and last token that most of them share, if they stay distinct."""
    split = [name.split(".") for name in names]
    usual = [parts for parts in split if len(parts) == 3]
    if len(usual) * 2 <= len(names):
        return {name: name for name in names}
    first, last = usual[0][0], usual[0][-1]
    short = {
        name: parts[1] if len(parts) == 3 and (parts[0], parts[-1]) == (first, last) else name
        for name, parts in zip(names, split, strict=True)
    }
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_BEFORE = (traffic_cards, outcome_cards, latency_cards, cost_cards, refusal_cards)
_STACKED = (contention_cards, audit_cards)
_AFTER = (pair_cards,)


def render_page(figures: Figures) -> str:
    """Return the page."""
    style = files("posthouse.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", text("posthouse report")),
        element("style", Markup(style)),
    )
    stack = element("div", *[part for cards in _STACKED for part in cards(figures)], class_="stack")
    before = [part for cards in _BEFORE for part in cards(figures)]
    after = [part for cards in _AFTER for part in cards(figures)]
    grid = element("div", *before, stack, *after, class_="cards")
    body = element("body", element("main", _header(figures), _tiles(figures), grid, _footer(figures)))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _header(figures: Figures) -> Markup:
    if figures.hours:
        first, last = figures.hours[0].hour * 3600, (figures.hours[-1].hour + 1) * 3600
        period = f"{markup.moment(first)} to {markup.moment(last)}"
    else:
        period = "The lake holds no traffic yet"
    return element("header", element("h1", text("Agent activity")), element("p", text(period), class_="soft"))


def _tiles(figures: Figures) -> Markup:
    opened = sum(row.value for row in figures.outcomes)
    done = sum(row.value for row in figures.outcomes if row.name == "delivered")
    median_ms = middle((row.p50_ms, row.deliveries) for row in figures.latency)
    refused = sum(row.value for row in figures.refusals)
    grants = sum(row.grants for row in figures.contention)
    overs = sum(row.take_overs for row in figures.contention)
    return element(
        "ul",
        tile("Messages", markup.count(figures.messages), _by_source(figures)),
        tile("Delivered", markup.share(done, opened), f"of {markup.count(opened)} deliveries"),
        tile("Delivery latency", markup.duration(median_ms), "median hour"),
        tile("Cost", markup.dollars(figures.cost_usd), f"{markup.count(figures.tokens)} tokens"),
        tile("Refused", markup.count(refused), "by limits and rules"),
        tile("Locks granted", markup.count(grants), f"{markup.count(overs)} taken over"),
        class_="tiles",
    )


def _by_source(figures: Figures) -> str:
    sums: dict[str, int] = {}
    for hour in figures.hours:
        sums[hour.source] = sums.get(hour.source, 0) + hour.messages
    return (
        ", ".join(f"{markup.count(value)} {source}" for source, value in sorted(sums.items(), reverse=True)) or "none"
    )


def _footer(figures: Figures) -> Markup:
    made = f"Made by posthouse pipeline report on {markup.moment(figures.made_at_s)}. All times are UTC."
    return element("footer", element("p", text(made)))
