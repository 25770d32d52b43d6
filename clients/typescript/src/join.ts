/** Joining a mesh with an invite. */

import { KIND, signEvent } from "./event.js";
import type { Key } from "./keys.js";
import { parseJson, type Problem, RelayError, writeJson } from "./wire.js";

export interface Joined {
  /** Address, node id of the relay and mesh: the arguments of `Client.connect`. */
  url: string;
  relay: string;
  mesh: string;
}

/** Join the mesh of an invite under a name. The invite is used up. */
export async function join(invite: string, key: Key, name: string): Promise<Joined> {
  const isInvite = invite.startsWith("posthouse://") && URL.canParse(invite);
  const { host, hostname, pathname, searchParams } = new URL(isInvite ? invite.replace(/^posthouse:/, "http:") : "http://-");
  const [relay, code] = [searchParams.get("relay"), searchParams.get("code")];
  if (!relay || !code) throw new TypeError("this is not an invite: posthouse://HOST:PORT/MESH?relay=NODE&code=CODE");
  const isLoopback = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
  const url = `${isLoopback ? "http" : "https"}://${host}`;
  const proof = signEvent(key, {
    kind: KIND.authentication,
    tags: [["relay", relay], ["invite", code], ["name", name]],
  });
  const response = await fetch(`${url}/v1/join`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: writeJson({ invite: `posthouse://${host}${pathname}?relay=${relay}&code=${code}`, event: proof }),
  });
  if (!response.ok) throw new RelayError(parseJson(await response.text()) as Problem);
  return { url, relay, mesh: pathname.slice(1) };
}
