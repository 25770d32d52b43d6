"""What pages compute: who waits, rates and quantiles of metrics, the graph, texts without tricks."""

from __future__ import annotations

from typing import Any

from posthouse.client.daemon.local_api import Participant, ThreadMessage, ThreadSummary
from posthouse.client.metric_samples import Series
from posthouse.console.pictures import GRAPH_HEIGHT, GRAPH_WIDTH, Vertex, draw_graph, draw_spark
from posthouse.console.rendering import Renderer, plain, seconds
from posthouse.console.team_page import Party, waiting_parties
from posthouse.model.clock import FakeClock, format_utc
from posthouse.model.limits import SECOND_NS

ANN, BEN, ZOE = Party("n1", "ann"), Party("n1", "ben"), Party("n2", "zoe")


def thread(first: Party, author: Party, reader: Party, at: str = "2026-01-01T00:00:00.000Z", **more: Any) -> Any:
    given: dict[str, Any] = {"state": "confirmed", "is_own": author.node == "n1"} | more
    last = ThreadMessage("m", None, at, author.node, None, author.agent, reader.node, reader.agent, "x", **given)
    return ThreadSummary("t", "s", (Participant(first.node, None, first.agent),), 2, last)


def test_an_agent_waits_if_it_began_the_thread_and_has_the_last_word() -> None:
    earlier = "2025-12-31T00:00:00.000Z"
    waits = waiting_parties([thread(ANN, ANN, ZOE), thread(BEN, BEN, ANN, earlier)], {})
    assert [(each.party, each.on) for each in waits] == [(BEN, ANN), (ANN, ZOE)]
    over = [
        thread(ANN, BEN, ANN),  # an answer
        thread(ZOE, ZOE, ANN),  # of another host
        thread(ANN, ANN, ZOE, state="answered"),
        thread(ANN, ANN, ZOE, state="dead"),
        thread(ANN, ANN, Party("#topic")),
        thread(ANN, ANN, ANN),
        thread(Party("n1"), Party("n1"), ANN, expects_answer=False),  # a notice of the host
    ]
    assert waiting_parties(over, {}) == []
    asked = [thread(ANN, ANN, ZOE, state="sent")]
    assert len(waiting_parties(asked, {"m": "sent"})) == 1
    assert [each for each in ("rejected", "dead", "expired") if waiting_parties(asked, {"m": each})] == []


def test_rates_survive_a_restart_of_the_relay_and_quantiles_come_from_buckets() -> None:
    series = Series()
    for at_s, total in ((0, 10), (10, 30), (20, 5)):
        series.add(at_s, f'# HELP x\nx_total{{code="a"}} {total}\nx_total{{code="b\\"}}"}} 0\n')
    assert series.rates("x_total") == [2.0, 0.5]
    assert series.by_label("x_total", "code") == {"a": 5.0, 'b\\"}': 0.0}
    series.add(30, 'h_bucket{le="0.001"} 50\nh_bucket{le="0.1"} 98\nh_bucket{le="+Inf"} 100\n')
    assert (series.quantile("h", 0.5), series.quantile("h", 0.95), series.quantile("h", 0.99)) == (
        0.001,
        0.1,
        float("inf"),
    )
    assert series.quantile("nothing", 0.5) is None and series.value("nothing") is None


def test_a_graph_keeps_everything_inside_of_its_picture_and_the_busiest_of_many() -> None:
    vertices = [Vertex(str(number), f"agent {number}", "agent") for number in range(60)]
    counts = {(str(number), str((number + 1) % 60)): number + 1 for number in range(60)}
    graph = draw_graph(vertices, counts)
    assert (len(graph.vertices), graph.hidden) == (24, 36)
    assert {"59", "58"} <= {each.key for each in graph.vertices}
    assert all(0 < each.x < GRAPH_WIDTH and 0 < each.y < GRAPH_HEIGHT for each in graph.vertices)
    assert {arrow.weight for arrow in graph.arrows} <= {1, 2, 3, 4, 5}
    assert draw_graph(vertices[:1], {("0", "0"): 3}).arrows == []
    assert draw_spark([1.0]) is None and draw_spark([0.0, 0.0]) is not None


def test_text_of_others_keeps_its_lines_and_loses_what_a_browser_would_obey() -> None:
    assert plain("a\nb\tc") == "a\nb\tc"
    assert plain("x\x00\x1b\u202ey\u2066\x9f") == "x��" + "�y��"
    clock = FakeClock()
    renderer = Renderer(clock)
    assert "&lt;b&gt;" in renderer.text("notice.html", text="<b>", failures=())
    assert ">1 min</time>" in renderer.ago(format_utc(clock.wall_ns() - 61 * SECOND_NS))
    assert (seconds(0.0025), seconds(0), seconds(None), seconds(90_000)) == ("2 ms", "0 s", "–", "1 d")
