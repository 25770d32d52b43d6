"""The router: which route answers a method and the segments of a path.

Fixed segments win over parameters, so `/v1/events/count` is not an event id. A path that exists under another method is
405 and says which; only d may be an empty segment, because a d tag may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posthouse.model.errors import error
from posthouse.relay.http.route import Route


@dataclass(frozen=True, slots=True)
class Found:
    """A route and the values of its path's parameters."""

    route: Route
    params: dict[str, str]


class Router:
    """Finds routes in a table."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[Route]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.segments), []).append(route)
        for same in self._by_length.values():
            same.sort(key=_parameters)

    def find(self, method: str, segments: Sequence[str]) -> Found:
        """Return the route, or raise route_unknown or method_not_allowed."""
        wanted = "GET" if method == "HEAD" else method
        path: str | None = None
        allowed: list[str] = []
        for route in self._by_length.get(len(segments), ()):
            params = _match(route, segments)
            if params is None:
                continue
            if route.method == wanted:
                return Found(route, params)
            path = path or route.path
            if route.path == path:
                allowed.append(route.method)
        if path is None:
            raise error("route_unknown", path="/" + "/".join(segments)[:200])
        raise error("method_not_allowed", method=method[:20], allowed=", ".join(allowed))


def _parameters(route: Route) -> int:
    return sum(segment.startswith("{") for segment in route.segments)


def _match(route: Route, segments: Sequence[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for pattern, segment in zip(route.segments, segments, strict=True):
        if pattern.startswith("{"):
            if not segment and pattern != "{d}":
                return None
            params[pattern[1:-1]] = segment
        elif pattern != segment:
            return None
    return params
