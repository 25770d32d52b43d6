from __future__ import annotations

import pytest

from posthouse.client.failures import error_from, retry_after_s
from posthouse.model.errors import ERROR_CODES, Fatal, Refused, Transient, error

FIELDS = {"mesh": "m", "reason": "r", "limit": 1, "id": "i", "node": "n", "name": "x"}


def test_every_error_survives_its_way_as_a_problem() -> None:
    assert [code for code in sorted(ERROR_CODES) if not _survives(code)] == []


def _survives(code: str) -> bool:
    sent = error(code, hint="do this", **FIELDS)
    got = error_from(sent.problem(), "relay")
    expected = (type(sent), code, FIELDS, "do this", str(sent))
    return (type(got), got.code, got.fields, got.hint, str(got)) == expected


@pytest.mark.parametrize(("status", "kind"), [(400, Refused), (409, Refused), (429, Transient), (503, Transient)])
def test_unknown_code_keeps_its_text_and_its_status_decides_about_retries(status: int, kind: type[Exception]) -> None:
    problem = {"code": "moon_in_the_way", "status": status, "detail": "the {moon} is there", "hint": "wait", "phase": 3}
    got = error_from(problem, "relay")
    assert type(got) is kind
    assert (got.code, str(got), got.hint, got.fields) == (
        "moon_in_the_way",
        "the {moon} is there",
        "wait",
        {"phase": 3},
    )


@pytest.mark.parametrize("problem", [None, [], {}, {"code": 1}, "no"])
def test_malformed_problem_is_an_invalid_answer(problem: object) -> None:
    got = error_from(problem, "relay")
    assert isinstance(got, Fatal)
    assert got.code == "answer_invalid"


def test_retry_delay_is_the_one_the_relay_asks_for() -> None:
    assert retry_after_s(error("rate_limited", key="k", rate=1, retry_after_s=2.5)) == 2.5
    assert retry_after_s(error("rate_limited", key="k", rate=1)) == 0
    assert retry_after_s(error("rate_limited", key="k", rate=1, retry_after_s="soon")) == 0
