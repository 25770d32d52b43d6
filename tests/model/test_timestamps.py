from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.errors import Refused


@given(st.datetimes(datetime(1970, 1, 1), datetime(2262, 4, 11, 23, 47, 16)))
def test_a_time_reads_back_to_its_millisecond(moment: datetime) -> None:
    ms = int(moment.replace(microsecond=0, tzinfo=UTC).timestamp()) * 1000 + moment.microsecond // 1000
    text = format_utc(ms * 1_000_000 + 999_999)
    assert text == moment.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert parse_utc(text) == ms * 1_000_000


def test_offsets_and_finer_fractions_are_read() -> None:
    assert parse_utc("2026-01-31T10:30:00.123456789+01:00") == parse_utc("2026-01-31T09:30:00Z") + 123_456_789


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T09:30:00",
        "2026-02-30T09:30:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31T09:30:00.Z",
        "2026-01-31T09:30:00Z\n",
        "٢٠٢٦-01-31T09:30:00Z",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_utc(text)
    assert caught.value.code == "value_invalid"
