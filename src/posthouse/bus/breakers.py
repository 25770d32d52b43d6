"""Looking at breakers and closing them by hand; the rules are in posthouse.model.breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.bus.page import Page, breaker_of
from posthouse.bus.results import BreakerView, Endpoint
from posthouse.bus.statements import SQL
from posthouse.model.breaker import BreakerState

if TYPE_CHECKING:
    from posthouse.bus.session import Session


def list_breakers(session: Session) -> list[BreakerView]:
    """Return the breaker of every endpoint, by subject; what another boot remembered is void."""

    def work(page: Page) -> list[BreakerView]:
        rows: Any = page.db.execute(SQL.breakers).fetchall()
        return [_view(subject, hash_, breaker_of(*columns), page.boot_id) for subject, hash_, *columns in rows]

    return session.ledger.run(work)


def reset_breaker(session: Session, endpoint: Endpoint) -> None:
    """Close a breaker, whatever it has counted."""

    def work(page: Page) -> None:
        counters = page.endpoint(endpoint.number)
        if counters is not None:
            counters.set_breaker(BreakerState(boot_id=page.boot_id))
            body = {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}
            page.tx.append("bus.breaker_reset", ref=endpoint.subject, body=body)

    session.ledger.run(work)


def _view(subject: str, hash_: str, state: BreakerState, boot_id: str) -> BreakerView:
    if state.boot_id != boot_id:
        state = BreakerState()
    return BreakerView(subject, hash_, state.circuit, state.failures, state.successes, state.probes)
