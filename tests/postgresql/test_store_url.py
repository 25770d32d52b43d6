from __future__ import annotations

import pytest

from posthouse.postgresql.store_url import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db.example/posthouse", "postgresql://db.example/posthouse"),
        ("postgresql://ann:secret@db.example:5432/posthouse?password=secret", "postgresql://db.example:5432/posthouse"),
        (
            "postgresql://ann:secret@one:5432,[2001:db8::1]:5433/posthouse",
            "postgresql://one:5432,[2001:db8::1]:5433/posthouse",
        ),
        ("postgresql://ann:sec/ret@db.example/posthouse#secret", "postgresql://db.example/posthouse"),
        ("postgresql:///posthouse?host=/run/postgresql", "postgresql:///posthouse"),
    ],
)
def test_shown_url_has_the_hosts_and_the_database_and_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown
