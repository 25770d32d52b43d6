"""Fence rules of a mesh: admins set them, members see them.

A rule takes effect for every event that is authorized after its commit; events that are stored already stay. The
rules themselves are in posthouse.model.fence_rules.
"""

from __future__ import annotations

from collections.abc import Callable

from posthouse.model.errors import error
from posthouse.model.fence_rules import FenceRule, validate_fence_rule
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.meshes.administration import MeshChanges
from posthouse.relay.store.protocol import Unit

MAX_RULES = 100  # of one mesh: every replacing event is compared with all of them
Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class FenceRules:
    """Lists and changes the fence rules of meshes; the first argument is the node that asks."""

    def __init__(self, changes: MeshChanges) -> None:
        self._changes = changes
        self._meshes = changes.meshes

    def rules(self, actor: str, mesh: str) -> list[FenceRule]:
        """Return the rules by kind and prefix; members need them to write."""
        found = self._meshes.require(actor, mesh, Right.READ)
        return [found.fence_rules[key] for key in sorted(found.fence_rules)]

    async def save(self, actor: str, mesh: str, rule: FenceRule) -> None:
        """Set the rule of a kind and prefix; admins only."""
        validate_fence_rule(rule)
        key = (rule.kind, rule.d_prefix)

        def prepare() -> Change:
            rules = self._meshes.require(actor, mesh, Right.ADMINISTER).fence_rules
            if key not in rules and len(rules) >= MAX_RULES:
                raise error("mesh_row_limit", mesh=mesh, count=len(rules), what="fence rules")

            def write(unit: Unit) -> None:
                unit.save_fence_rule(mesh, rule)
                body = {"kind": rule.kind, "d_prefix": rule.d_prefix, "resource": rule.resource}
                unit.append("mesh.fence_rule_set", mesh=mesh, actor=actor, ref=mesh, body=body)

            return write, lambda _: rules.__setitem__(key, rule)

        await self._changes.make(prepare)

    async def remove(self, actor: str, mesh: str, kind: int, d_prefix: str) -> None:
        """Remove the rule of a kind and prefix; admins only."""

        def prepare() -> Change:
            rules = self._meshes.require(actor, mesh, Right.ADMINISTER).fence_rules
            if (kind, d_prefix) not in rules:
                raise error("fence_rule_unknown", kind=kind, d_prefix=d_prefix, mesh=mesh)

            def write(unit: Unit) -> None:
                unit.remove_fence_rule(mesh, kind, d_prefix)
                body = {"kind": kind, "d_prefix": d_prefix}
                unit.append("mesh.fence_rule_removed", mesh=mesh, actor=actor, ref=mesh, body=body)

            return write, lambda _: rules.__delitem__((kind, d_prefix))

        await self._changes.make(prepare)
