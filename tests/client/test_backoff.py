from __future__ import annotations

from itertools import pairwise

from posthouse.client.failures import Backoff


def test_delays_double_up_to_the_bound_and_start_over_after_a_success() -> None:
    backoff = Backoff(first_s=1, max_s=8)
    waits = [backoff.next_s() for _ in range(200)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8], strict=False):
        assert longest / 2 <= wait <= longest
    assert max(waits) <= 8
    backoff.reset()
    assert backoff.next_s() <= 1


def test_delays_of_two_clients_differ() -> None:
    one, two = ([Backoff(1, 8).next_s() for _ in range(20)] for _ in range(2))
    assert one != two
    assert all(a != b for a, b in pairwise(one))
