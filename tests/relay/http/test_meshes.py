"""Meshes over HTTP: what each role may, and how an invite makes a member."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from tests.relay.edge import Author, Edge

MESH = "/v1/meshes/team"


async def make_mesh(edge: Edge, owner: Author) -> str:
    token = await edge.token(owner)
    reply = await edge.post("/v1/meshes", {"name": "team", "open": False}, token)
    assert (reply.status, reply.value) == (201, {"name": "team", "open": False, "creator": owner.node})
    return token


async def test_creator_administers_and_strangers_see_nothing(edge: Edge, author: Author) -> None:
    owner = await make_mesh(edge, author)
    members = (await edge.get(f"{MESH}/members", owner)).value["members"]
    assert [(member["node"], member["role"]) for member in members] == [(author.node, "admin")]
    stranger = await edge.token(Author())
    for part in ("members", "access", "topics", "subscriptions", "blocks"):
        reply = await edge.get(f"{MESH}/{part}", stranger)
        assert (reply.status, reply.code) == (403, "not_member"), part
    assert (await edge.post("/v1/meshes", {"name": "team"}, owner)).status == 409


async def test_admin_opens_a_mesh_to_every_key_and_closes_it_again(edge: Edge, author: Author) -> None:
    owner, stranger = await make_mesh(edge, author), Author()
    opened = await edge.post(MESH, {"open": True}, owner)
    assert (opened.status, opened.value) == (200, {"name": "team", "open": True, "creator": author.node})
    assert (await edge.post("/v1/events", stranger.event(tags=[("mesh", "team")]))).status == 201
    assert (await edge.post(MESH, {"open": False}, await edge.token(stranger))).status == 403
    assert (await edge.post(MESH, {"open": False}, owner)).value["open"] is False
    assert (await edge.post("/v1/events", stranger.event(tags=[("mesh", "team")]))).code == "not_member"


async def test_each_role_has_its_rights_and_no_more(edge: Edge, author: Author) -> None:
    owner = await make_mesh(edge, author)
    people = {role: Author() for role in ("reader", "member", "admin")}
    for role, person in people.items():
        body = {"node": person.node, "name": f"the-{role}", "role": role}
        assert (await edge.post(f"{MESH}/members", body, owner)).value == body
    tokens = {role: await edge.token(person) for role, person in people.items()}
    for role, token in tokens.items():
        published = await edge.post("/v1/events", people[role].event(tags=[("mesh", "team")]))
        assert published.status == (403 if role == "reader" else 201), role
        topic = await edge.post(f"{MESH}/topics", {"name": f"of-{role}"}, token)
        assert topic.status == (403 if role == "reader" else 201), role
        assert (await edge.get("/v1/events?mesh=team", token)).status == 200
        assert (await edge.post(f"{MESH}/subscriptions", {"pattern": ">"}, token)).status == 200
        invite = await edge.post(f"{MESH}/invites", {}, token)
        assert invite.status == (201 if role == "admin" else 403), role


async def test_access_row_narrows_and_its_removal_gives_back(edge: Edge, author: Author) -> None:
    owner = await make_mesh(edge, author)
    member = Author()
    await edge.post(f"{MESH}/members", {"node": member.node, "name": "m", "role": "member"}, owner)
    row = {"node": "*", "read": "allow", "write": "deny", "lock": "allow"}
    assert (await edge.post(f"{MESH}/access", row, owner)).value == row
    assert (await edge.get(f"{MESH}/access", owner)).value == {"access": [row]}
    assert (await edge.post("/v1/events", member.event(tags=[("mesh", "team")]))).status == 403
    assert (await edge.send("DELETE", f"{MESH}/access?node=*", token=owner)).value == {"ok": True}
    assert (await edge.post("/v1/events", member.event(tags=[("mesh", "team")]))).status == 201
    assert (await edge.send("DELETE", f"{MESH}/members?node={member.node}", token=owner)).status == 200
    assert (await edge.post("/v1/events", member.event(tags=[("mesh", "team")]))).code == "not_member"


async def test_topics_subscriptions_and_blocks_are_listed_and_removed(edge: Edge, author: Author) -> None:
    owner = await make_mesh(edge, author)
    other = Author().node
    for part, body in (
        ("topics", {"name": "alerts.disk"}),
        ("subscriptions", {"pattern": "alerts.>"}),
        ("blocks", {"node": other}),
    ):
        assert (await edge.post(f"{MESH}/{part}", body, owner)).value == body
        assert (await edge.get(f"{MESH}/{part}", owner)).value == {part: [body]}
        ((name, value),) = body.items()
        assert (await edge.send("DELETE", f"{MESH}/{part}?{name}={value}", token=owner)).value == {"ok": True}
        assert (await edge.get(f"{MESH}/{part}", owner)).value == {part: []}


async def test_invite_makes_a_member_once_under_a_name(edge: Edge, author: Author) -> None:
    owner = await make_mesh(edge, author)
    invite = (await edge.post(f"{MESH}/invites", {"uses": 1, "expires_s": 60, "role": "reader"}, owner)).value["invite"]
    parts = urlsplit(invite)
    fields = parse_qs(parts.query)
    assert (parts.scheme, parts.netloc, parts.path) == ("posthouse", str(edge.server.address), "/team")
    assert fields["relay"] == [edge.relay]
    guest, late = Author(), Author()
    code = ("invite", fields["code"][0])

    async def join(who: Author, *tags: tuple[str, str]) -> tuple[int, str]:
        reply = await edge.post("/v1/join", {"invite": invite, "event": who.proof(edge.relay, *tags)})
        return reply.status, reply.value.get("code", reply.value.get("role"))

    assert await join(guest, code) == (401, "proof_invalid")
    assert await join(guest, ("invite", "0" * 43), ("name", "guest")) == (401, "proof_invalid")
    assert await join(guest, code, ("name", "not a name")) == (400, "member_name_invalid")
    assert await join(guest, code, ("name", "guest")) == (200, "reader")
    assert await join(guest, code, ("name", "guest")) == (200, "reader")
    status, refusal = await join(late, code, ("name", "late"))
    assert refusal == "invite_invalid", status
    assert (await edge.get(f"{MESH}/members", await edge.token(guest))).status == 200


async def test_invite_of_another_relay_is_refused_before_it_is_looked_up(edge: Edge, author: Author) -> None:
    event = author.proof(edge.relay, ("invite", "c"), ("name", "n"))
    for invite in (
        "",
        "c",
        f"posthouse://h:1/m?relay={author.node}&code=c",
        "posthouse://h:1/m?code=c",
        "posthouse://[",
    ):
        reply = await edge.post("/v1/join", {"invite": invite, "event": event})
        assert reply.code == "invite_invalid", invite


async def test_mesh_that_does_not_exist_is_refused(edge: Edge, author: Author) -> None:
    token = await edge.token(author)
    assert (await edge.get("/v1/meshes/nowhere/members", token)).code == "mesh_unknown"
    assert (await edge.post("/v1/events", author.event(tags=[("mesh", "nowhere")]))).code == "mesh_unknown"
