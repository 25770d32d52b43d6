"""Refusals as tests state them: by code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from posthouse.model.errors import PosthouseError, Refused


@contextmanager
def refused(code: str, reason: str = "") -> Iterator[list[PosthouseError]]:
    """Expect a refusal with this code whose text contains `reason`; the error is in the list afterwards."""
    errors: list[PosthouseError] = []
    with pytest.raises(Refused) as caught:
        yield errors
    assert caught.value.code == code
    assert reason in str(caught.value)
    errors.append(caught.value)
