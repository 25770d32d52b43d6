from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import posthouse
from posthouse.model.errors import AREAS, ERROR_CODES, Fatal, Refused, Transient, error


def test_every_code_is_well_formed_and_explained() -> None:
    for spec in ERROR_CODES.values():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", spec.code)
        assert 400 <= spec.status <= 599
        assert spec.text
        assert spec.hint.endswith((".", "?"))
        assert spec.describe({})
    assert sum(len(area) for area in AREAS.values()) == len(ERROR_CODES)


def test_code_raises_every_error_of_the_registry() -> None:
    sources = Path(posthouse.__file__).parent
    registry = sources / "model" / "codes"
    texts = [path.read_text() for path in sources.rglob("*.py") if not path.is_relative_to(registry)]
    named = {code for text in texts for code in re.findall(r'"([a-z][a-z0-9_]*)"', text)}
    assert sorted(ERROR_CODES.keys() - named) == []


def test_the_registry_picks_the_class() -> None:
    classes = {"subject_invalid": Refused, "store_busy": Transient, "store_failed": Fatal}
    for code, expected in classes.items():
        assert type(error(code)) is expected


def test_an_error_shows_its_fields_and_a_question_mark_for_those_it_lacks() -> None:
    assert str(error("value_invalid", name="ttl")) == "ttl is invalid: ?"
    assert str(error("value_invalid", name="ttl", reason="too big")) == "ttl is invalid: too big"


def test_an_unregistered_code_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        error("no_such_code")


def test_a_problem_has_the_fixed_members_and_the_fields() -> None:
    problem = error("held", holder="ada", remaining_ms=5).problem()
    assert problem["status"] == 409
    assert problem["code"] == "held"
    assert problem["holder"] == "ada"
    assert problem["type"] == "urn:posthouse:error:held"
    assert "ada" in problem["detail"]


def test_an_error_survives_pickling() -> None:
    original = error("held", hint="Wait.", holder="ada", remaining_ms=5)
    copy = pickle.loads(pickle.dumps(original))
    assert (type(copy), str(copy), copy.fields, copy.hint) == (Refused, str(original), original.fields, "Wait.")
