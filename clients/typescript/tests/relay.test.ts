/**
 * The client against a real relay. The test that starts the relay names it in POSTHOUSE_TEST_RELAY, as JSON: an invite
 * for any number of members, and the node id of a Python client that answers messages.
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, join, Key, type Message, RelayError, type StoredEvent } from "../src/index.js";
import { CuttableWay } from "./cut.js";

const { invite, partner } = JSON.parse(process.env.POSTHOUSE_TEST_RELAY ?? "{}") as { invite: string; partner: string };
const opened: { close(): void }[] = [];
let members = 0;
let way: CuttableWay;

interface Member {
  key: Key;
  url: string;
  relay: string;
  mesh: string;
}

async function member(): Promise<Member> {
  const key = Key.generate();
  return { key, ...(await join(invite, key, `ts-${process.pid}-${members++}`)) };
}

/** Connect, over the way that can be cut if the test wants that. */
async function connect({ key, url, relay, mesh }: Member, isCuttable = false): Promise<Client> {
  const client = await Client.connect(isCuttable ? way.url : url, key, { relay, mesh });
  opened.push(client);
  return client;
}

async function take<T>(items: AsyncIterator<T>, count: number): Promise<T[]> {
  const taken: T[] = [];
  while (taken.length < count) {
    const next = await items.next();
    assert.ok(!next.done, `ended after ${taken.length} of ${count}`);
    taken.push(next.value);
  }
  return taken;
}

function refusal(code: string) {
  return (error: unknown) => error instanceof RelayError && error.code === code;
}

before(async () => {
  const { url } = await member();
  way = await CuttableWay.open(url);
  opened.push(way);
});

after(() => opened.forEach((each) => each.close()));

test("published events are found by a query, to the nanosecond", async () => {
  const me = await member();
  const client = await connect(me);
  const first = await client.publish({ kind: 1, content: "one ☕", tags: [["topic", "x"]] });
  const second = await client.publish({ kind: 1, content: "two" });
  const found = await client.query({ authors: [me.key.node], kinds: [1] });
  assert.deepEqual(found.map(({ id, seq, content }) => ({ id, seq, content })), [
    { id: first.id, seq: first.seq, content: "one ☕" },
    { id: second.id, seq: second.seq, content: "two" },
  ]);
  const since_ns = found[0]!.created_at_ns + 1n;
  assert.deepEqual(await client.query({ authors: [me.key.node], since_ns }), [found[1]]);
  assert.deepEqual(await client.query({ "#topic": ["x"], ids: [first.id] }), [found[0]]);
  assert.deepEqual(await client.query({ authors: [me.key.node] }, { limit: 1 }), [found[1]]);
});

test("a refusal is an error with the relay's code and hint", async () => {
  const client = await connect(await member());
  await assert.rejects(client.publish({ kind: 10001 }), (error: RelayError) =>
    error.code === "kind_reserved" && error.message.includes(error.problem.hint!));
  await assert.rejects(client.query({ kinds: [0] }), refusal("filter_invalid"));
  await assert.rejects(client.send({ to: Key.generate().node, body: "hello?" }), refusal("member_unknown"));
  await assert.rejects(take((await connect({ ...(await member()), mesh: "unknown" })).receive(), 1), RelayError);
});

test("a subscription goes on after the connection broke, and no event is missing or comes twice", async () => {
  const me = await member();
  const [reader, author] = [await connect(me, true), await connect(me)];
  const events = reader.subscribe({ authors: [me.key.node], kinds: [1] });
  const contents: string[] = [];
  const collect = async (count: number) => {
    contents.push(...(await take<StoredEvent>(events, count)).map((event) => event.content));
  };
  await author.publish({ kind: 1, content: "stored" });
  await collect(1);
  for (const round of ["a", "b"]) {
    await author.publish({ kind: 1, content: `live ${round}` });
    await collect(1);
    way.cut();
    await author.publish({ kind: 1, content: `missed ${round}` });
    await collect(1);
  }
  assert.deepEqual(contents, ["stored", "live a", "missed a", "live b", "missed b"]);
  await events.return?.();
});

test("a request without an answer is sent again after a break, and counts once", async () => {
  const me = await member();
  const client = await connect(me, true);
  const publishing = [1, 2, 3].map((n) => client.publish({ kind: 1, content: String(n) }));
  way.cut();
  const seqs = (await Promise.all(publishing)).map((result) => result.seq);
  assert.deepEqual((await client.query({ authors: [me.key.node] })).map((event) => event.seq), seqs);
});

test("a message held by the program does not come twice; one that was not confirmed comes to the next reader", async () => {
  const [alice, bob] = [await member(), await member()];
  const [sender, reader] = [await connect(alice), await connect(bob, true)];
  const messages = reader.receive();
  await sender.send({ to: bob.key.node, body: "first" });
  const [held] = await take(messages, 1);
  way.cut();
  await sender.send({ to: bob.key.node, body: "second" });
  const [second] = await take(messages, 1);
  assert.deepEqual([held!.body, second!.body], ["first", "second"]);
  assert.deepEqual(await reader.confirm(held!), { confirmed: [held!.id], ignored: [] });
  reader.close();
  const next = await connect(bob);
  const [again] = await take(next.receive(), 1);
  assert.deepEqual([again!.id, again!.body, again!.attempt > 1], [second!.id, "second", true]);
  assert.deepEqual((await next.confirm(again!, held!)).ignored, [{ id: held!.id, reason: "duplicate" }]);
});

test("the sender learns of a confirmation, and a repeated send makes no second message", async () => {
  const [alice, bob] = [await member(), await member()];
  const [sender, reader] = [await connect(alice), await connect(bob)];
  const message = { to: bob.key.node, body: "once", clientMessageId: "job-1", meta: { n: 1 } };
  const confirmed = new Promise((resolve) => void sender.receive({ onConfirmed: resolve }));
  const sent = await sender.send(message);
  const again = await sender.send(message);
  assert.deepEqual([again.id, again.duplicate], [sent.id, true]);
  await assert.rejects(sender.send({ ...message, body: "other" }), refusal("idempotency_key_reused"));
  const [got] = await take<Message>(reader.receive(), 1);
  assert.deepEqual([got!.from, got!.body, got!.meta], [alice.key.node, "once", { n: 1 }]);
  await reader.confirm(got!);
  assert.equal(((await confirmed) as { pubkey: string }).pubkey, bob.key.node);
});

test("sealed messages go to a Python client and back", async () => {
  const client = await connect(await member());
  const messages = client.receive();
  const sent = await client.send({ to: partner, body: "café ☕", fromAgent: "claude", toAgent: "codex" });
  const [answer] = await take(messages, 1);
  assert.equal(answer!.event.content.includes("café"), false);
  assert.deepEqual(
    [answer!.body, answer!.from, answer!.replyTo, answer!.toAgent, answer!.unopened],
    ["you said: café ☕", partner, sent.id, "claude", undefined],
  );
  await client.confirm(answer!);
});

test("a restart of the relay is survived", async () => {
  const me = await member();
  const client = await connect(me);
  const [messages, events] = [client.receive(), client.subscribe({ authors: [me.key.node], kinds: [1] })];
  await client.publish({ kind: 1, content: "before" });
  await take(events, 1);
  await client.send({ to: partner, body: "restart the relay" });
  const [answer] = await take(messages, 1);
  assert.equal(answer!.body, "it is back");
  await client.confirm(answer!);
  await client.publish({ kind: 1, content: "after" });
  assert.deepEqual((await take(events, 1)).map((event) => event.content), ["after"]);
});

test("a lock has one holder, its token grows, and a lost lock cannot write", async () => {
  const [alice, bob] = [await member(), await member()];
  const [one, two] = [await connect(alice), await connect(bob)];
  const held = await one.lock("deploy", { leaseMs: 60_000 });
  assert.ok(held.remainingMs > 0 && held.remainingMs <= 60_000);
  await assert.rejects(two.lock("deploy", { leaseMs: 1_000 }), refusal("held"));
  const waiting = two.lock("deploy", { leaseMs: 60_000, waitMs: 20_000 });
  const tags: ["d", "x"][] = [["d", "x"]];
  await one.publish({ kind: 30001, content: "under the lock", tags: [...tags, held.fence] });
  await held.renew();
  await held.release();
  const next = await waiting;
  assert.ok(next.token > held.token);
  await assert.rejects(one.publish({ kind: 30001, content: "late", tags: [...tags, held.fence] }), refusal("fence_stale"));
  await assert.rejects(held.renew(), refusal("not_holder"));
  await next.release();
  assert.equal(next.remainingMs, 0);
});

test("another relay than the expected one gets no proof, and an address without a relay fails at once", async () => {
  const me = await member();
  await assert.rejects(connect({ ...me, relay: Key.generate().node }), refusal("relay_key_changed"));
  await assert.rejects(connect({ ...me, url: "http://127.0.0.1:1" }), /ECONNREFUSED/);
});

test("closing the client ends its loops and rejects what has no answer", async () => {
  const client = await connect(await member());
  const events = client.subscribe({ kinds: [1], since_ns: 2n ** 62n });
  const next = events.next();
  client.close();
  assert.equal((await next).done, true);
  await assert.rejects(client.publish({ kind: 1 }), /closed/);
});
