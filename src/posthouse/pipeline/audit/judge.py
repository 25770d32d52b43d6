"""Judging: the steps of each key, in the order they were written, go to a judge of their rule.

Wants steps sorted by rule, key, depth, seq and rank, and holds one judge at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.line import ALL, Line, Lines, Place
from posthouse.pipeline.audit.rule import Judge, Rule, Step
from posthouse.pipeline.audit.rules.registry import RULES
from posthouse.pipeline.audit.scatter import Scattered

_NOWHERE = Line("", "", 0, 0, 0)


def judge_steps(lines: Lines, steps: Iterable[Scattered]) -> Iterator[Finding]:
    """Yield what the judges find, and the reports of blocks of the sequence."""
    judge: Judge | None = None
    at: tuple[int, str] = (-1, "")
    rule = RULES[0]
    for step in steps:
        if step[:2] != at:
            if judge is not None:
                yield from judge.end()
            at, rule = (step.rule, step.key), RULES[step.rule]
            judge = _seat(lines, rule, step)
        assert judge is not None
        place = lines.places.get(step.epoch) or Place(step.epoch, 0, ALL, "unknown")
        is_lost = step.seq > place.live_through
        if _is_heard(rule, judge.line, step, is_lost=is_lost):
            yield from judge.take(Step(step.epoch, step.depth, step.seq, is_lost, step.at_ns, step.part))
    if judge is not None:
        yield from judge.end()


def _seat(lines: Lines, rule: Rule, step: Scattered) -> Judge:
    if rule.is_shared:
        judge = rule.judge(_NOWHERE, step.key)
        judge.lines = tuple(lines.lines.values())
        return judge
    if rule.from_beginning and rule.name == "sequence":
        place = lines.places[step.epoch]
        return rule.judge(lines.lines[place.root], step.key)
    root, _, key = step.key.partition("\x1f")
    return rule.judge(lines.lines[root], key)


def _is_heard(rule: Rule, line: Line, step: Scattered, *, is_lost: bool) -> bool:
    if is_lost and not rule.sees_lost:
        return False
    if rule.from_beginning or rule.is_shared:
        return True
    return line.base_seq is not None and step.seq >= line.base_seq
