import { Client, join, Key } from "@posthouse/client";

const key = Key.generate();
const { url, relay, mesh } = await join(process.env.INVITE ?? "", key, "ann");
const client = await Client.connect(url, key, { relay, mesh });
await client.publish({ kind: 1, content: "hello, team" });
for (const event of await client.query({ kinds: [1] })) console.log(event.content);
await client.send({ to: key.node, body: "note to myself" });
for await (const message of client.receive()) {
  console.log(message.body);
  await client.confirm(message);
  break;
}
client.close();
