"""/v1/meshes/{mesh}/fence-rules: which events of a mesh need the fence of which resource."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.fence_rules import FenceRule
from posthouse.model.limits import RESOURCE_MAX_BYTES
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import REPLACING_KIND, Done

Kind = Annotated[int, REPLACING_KIND]
Prefix = Annotated[
    str, Meta(description="How the d tag begins; empty for all events of the kind.", max_length=RESOURCE_MAX_BYTES)
]


class FenceRuleBody(msgspec.Struct, forbid_unknown_fields=True):
    """Events of a kind whose d tag begins with a prefix need the fence of a resource."""

    kind: Kind
    resource: Annotated[
        str,
        Meta(description="The resource; {d} stands for the d tag.", min_length=1, max_length=RESOURCE_MAX_BYTES),
    ]
    d_prefix: Prefix = ""


class FenceRuleList(msgspec.Struct):
    """The fence rules of a mesh, by kind and prefix."""

    rules: list[FenceRuleBody]


class FenceRuleQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A rule."""

    kind: Kind
    d_prefix: Prefix = ""


async def list_rules(call: RelayCall) -> HttpResponse:
    """List the rules."""
    rules = call.context.engine.fence_rules.rules(call.node, call.params["mesh"])
    return json_response(FenceRuleList([FenceRuleBody(rule.kind, rule.resource, rule.d_prefix) for rule in rules]))


async def save_rule(call: RelayCall) -> HttpResponse:
    """Set the rule of a kind and prefix."""
    node = call.node
    body = await call.body(FenceRuleBody)
    rule = FenceRule(body.kind, body.d_prefix, body.resource)
    await call.context.engine.fence_rules.save(node, call.params["mesh"], rule)
    return json_response(body)


async def remove_rule(call: RelayCall) -> HttpResponse:
    """Remove the rule of a kind and prefix."""
    node, rule = call.node, call.arguments(FenceRuleQuery)
    await call.context.engine.fence_rules.remove(node, call.params["mesh"], rule.kind, rule.d_prefix)
    return json_response(Done())


_PATH = "/v1/meshes/{mesh}/fence-rules"
FENCE_RULE_ROUTES = (
    Route("GET", _PATH, list_rules, "List fence rules", responses={200: FenceRuleList}),
    Route("POST", _PATH, save_rule, "Set a fence rule", bodies=(FenceRuleBody,), responses={200: FenceRuleBody}),
    Route("DELETE", _PATH, remove_rule, "Remove a fence rule", query=FenceRuleQuery, responses={200: Done}),
)
