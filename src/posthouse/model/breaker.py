"""The circuit breaker of an endpoint, as pure transitions over a frozen state.

    CLOSED ── failure_threshold failures in a row ──> OPEN
    OPEN ── cooldown over, next publish ──> HALF_OPEN, which allows half_open_probe_count probes at a time
    HALF_OPEN ── a failure ──> OPEN;  success_to_close successes ──> CLOSED

Times are boot times under a boot id; a state of another boot counts as CLOSED. A probe whose process has died never
reports, so its slot is free again after another cooldown. The caller stores the state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.reliability import CircuitBreaker


class Circuit(enum.StrEnum):
    """The three states of a breaker."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The stored state of one endpoint."""

    circuit: Circuit = Circuit.CLOSED
    #: failures in a row while CLOSED
    failures: int = 0
    #: successes since HALF_OPEN
    successes: int = 0
    #: admitted probes that have not reported yet
    probes: int = 0
    #: boot time of the opening, or of the last probe
    since_boot_ns: int = 0
    boot_id: str = ""


def admit(state: BreakerState, config: CircuitBreaker, now_ns: int, boot_id: str) -> tuple[BreakerState, bool]:
    """Decide one publish: return the state after it, and True if it is admitted."""
    state = _of_this_boot(state, boot_id)
    if not config.enabled or state.circuit is Circuit.CLOSED:
        return state, True
    has_cooled = now_ns - state.since_boot_ns >= config.cooldown_ms * MILLISECOND_NS
    if state.circuit is Circuit.OPEN:
        if not has_cooled:
            return state, False
        return BreakerState(Circuit.HALF_OPEN, probes=1, since_boot_ns=now_ns, boot_id=boot_id), True
    probes = 0 if has_cooled else state.probes
    if probes >= config.half_open_probe_count:
        return state, False
    return replace(state, probes=probes + 1, since_boot_ns=now_ns), True


def cooled_at_ns(state: BreakerState, config: CircuitBreaker) -> int:
    """Return the boot time at which the cooldown ends: from then on a publish may be admitted as a probe."""
    return state.since_boot_ns + config.cooldown_ms * MILLISECOND_NS


def withdraw(state: BreakerState) -> BreakerState:
    """Return the state without the slot of a probe that was admitted here but refused by a later rule."""
    return replace(state, probes=max(0, state.probes - 1))


def record_failure(state: BreakerState, config: CircuitBreaker, now_ns: int, boot_id: str) -> BreakerState:
    """Return the state after a failed handler or write; late failures do not prolong an open circuit."""
    state = _of_this_boot(state, boot_id)
    if not config.enabled or state.circuit is Circuit.OPEN:
        return state
    opened = BreakerState(Circuit.OPEN, since_boot_ns=now_ns, boot_id=boot_id)
    if state.circuit is Circuit.HALF_OPEN or state.failures + 1 >= config.failure_threshold:
        return opened
    return replace(state, failures=state.failures + 1, boot_id=boot_id)


def record_success(state: BreakerState, config: CircuitBreaker, boot_id: str) -> BreakerState:
    """Return the state after a success; while OPEN it is outdated and ignored."""
    state = _of_this_boot(state, boot_id)
    if not config.enabled or state.circuit is Circuit.OPEN:
        return state
    if state.circuit is Circuit.CLOSED:
        return state if state.failures == 0 else BreakerState(boot_id=boot_id)
    if state.successes + 1 >= config.success_to_close:
        return BreakerState(boot_id=boot_id)
    return replace(withdraw(state), successes=state.successes + 1)


def refusal_text(endpoint_hash: str) -> str:
    """Return the text of a refusal; programs may match it, so it must not change."""
    return f"circuit open for endpoint {endpoint_hash}"


def _of_this_boot(state: BreakerState, boot_id: str) -> BreakerState:
    return state if state.boot_id == boot_id else BreakerState(boot_id=boot_id)
