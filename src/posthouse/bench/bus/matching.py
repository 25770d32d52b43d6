"""Matching a subject against many subscriptions: the cost must not grow with their number."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from posthouse.bench.bus.terms import Scale, median, median_ratio
from posthouse.model.trie import PatternTrie

FEW, MANY = 100, 10_000
_LOOKUPS = 5_000


def measure(scale: Scale) -> dict[str, Any]:
    """Alternate look-ups in a small and a large trie; return microseconds per look-up and the ratio."""
    few, many = _trie(FEW), _trie(MANY)
    small: list[float] = []
    large: list[float] = []
    for _ in range(scale.rounds):
        small.append(_microseconds(few))
        large.append(_microseconds(many))
    return {
        "subscriptions": MANY,
        "match_100_us": round(median(small), 3),
        "match_10000_us": round(median(large), 3),
        "ratio": median_ratio(large, small),
    }


def _trie(count: int) -> PatternTrie[int]:
    """Four kinds of patterns in equal parts, spread over teams and agents."""
    trie: PatternTrie[int] = PatternTrie()
    for number in range(count):
        team, agent = f"team{number % 97}", f"agent{number}"
        pattern = (f"{team}.{agent}.in", f"{team}.*.log{number}", f"{team}.{agent}.>", f"*.{agent}.in")[number % 4]
        trie.add(pattern, number)
    return trie


def _microseconds(trie: PatternTrie[int]) -> float:
    subjects = [f"team{number % 97}.agent{number}.in" for number in range(FEW)]
    start = perf_counter()
    for number in range(_LOOKUPS):
        trie.match(subjects[number % FEW])
    return (perf_counter() - start) / _LOOKUPS * 1e6
