"""Expecting a refusal by its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from posthouse.model.errors import PosthouseError


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Fail unless the body raises the error of this code."""
    with pytest.raises(PosthouseError) as caught:
        yield
    assert caught.value.code == code, caught.value
