"""The text format of metrics, read back by the parser of Prometheus's own client library."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from posthouse.model.metric import HistogramValue, Metric, Values, render_metrics

REQUESTS = Metric("requests_total", "counter", 'Requests by "route"\nand \\.', ("route", "status"))
OPEN = Metric("open_connections", "gauge", "Connections.")
SECONDS = Metric("wait_seconds", "histogram", "Waits.", buckets=(0.5, 2.0))
LABEL = st.text(st.characters(codec="utf-8"), max_size=8)


def samples_of(text: str, kind: str) -> list[Sample]:
    (family,) = text_string_to_metric_families(text)
    assert family.type == kind
    return family.samples


@given(st.dictionaries(st.tuples(LABEL, LABEL), st.floats(min_value=0), max_size=4))
def test_any_label_and_number_is_read_back(values: Values) -> None:
    text = render_metrics([REQUESTS], lambda _metric: values)
    found = {(each.labels["route"], each.labels["status"]): each.value for each in samples_of(text, "counter")}
    assert found == values
    (family,) = text_string_to_metric_families(text)
    assert family.documentation == REQUESTS.help


def test_a_metric_without_labels_has_a_name_and_a_number() -> None:
    assert render_metrics([OPEN], lambda _metric: {(): 3}) == (
        "# HELP open_connections Connections.\n# TYPE open_connections gauge\nopen_connections 3.0\n"
    )


def test_each_bucket_of_a_histogram_counts_the_smaller_ones_too() -> None:
    found = samples_of(render_metrics([SECONDS], lambda _metric: HistogramValue([2, 0, 1], 7.25)), "histogram")
    assert [(each.name, each.labels.get("le"), each.value) for each in found] == [
        ("wait_seconds_bucket", "0.5", 2),
        ("wait_seconds_bucket", "2.0", 2),
        ("wait_seconds_bucket", "+Inf", 3),
        ("wait_seconds_count", None, 3),
        ("wait_seconds_sum", None, 7.25),
    ]
    assert math.isinf(float(found[2].labels["le"]))
