/**
 * Locks: leases with a fencing token, which the relay grants to one holder at a time.
 *
 * A lease is counted from before it was requested, on a clock that does not step, so the program never relies on a
 * lease that has ended at the relay. It is not renewed by itself.
 */

import { uptime } from "node:os";

import type { Tag } from "./event.js";
import type { Stream } from "./stream.js";

export interface LockOptions {
  /** How long the lease holds; 1,000 to 600,000. */
  leaseMs: number;
  /** How long to wait while another holder has it; otherwise `held` is thrown at once. */
  waitMs?: number;
  mode?: "exclusive" | "shared";
  /** Also cover every name below, split at `/`. */
  tree?: boolean;
}

interface Grant {
  token: number;
}

export class Lock {
  readonly #stream: Stream;
  readonly #session: { session?: string };
  readonly #mesh: string;
  readonly #leaseMs: number;
  #endsAtMs = 0;

  private constructor(
    stream: Stream, mesh: string, session: string, readonly resource: string, options: LockOptions,
  ) {
    this.#stream = stream;
    this.#mesh = mesh;
    this.#session = stream.hello?.features.lock_sessions ? { session } : {};
    this.#leaseMs = options.leaseMs;
  }

  /** Grows with each grant; a store that keeps the highest refuses writes of earlier holders. */
  token = 0;

  static async acquire(
    stream: Stream, mesh: string, session: string, resource: string, options: LockOptions,
  ): Promise<Lock> {
    const { waitMs = 0, mode, tree } = options;
    const lock = new Lock(stream, mesh, session, resource, options);
    const request = { request_id: crypto.randomUUID(), wait_ms: waitMs, mode, tree };
    lock.token = (await lock.#extend("acquire", request)).token;
    if (waitMs > 0) await lock.renew();  // the lease is counted from before the wait
    return lock;
  }

  /** The tag that lets the relay refuse an event once this lock is lost. */
  get fence(): Tag {
    return ["fence", this.resource, String(this.token)];
  }

  /** What is left of the lease; 0 when it has ended. */
  get remainingMs(): number {
    return Math.max(0, this.#endsAtMs - uptime() * 1000);
  }

  /** Begin the lease again; throws `lease_expired`, `not_holder` or `stale_token` if it is lost. */
  async renew(): Promise<void> {
    await this.#extend("renew", { token: this.token });
  }

  async release(): Promise<void> {
    this.#endsAtMs = 0;
    await this.#operate("release", { token: this.token });
  }

  async #extend(operation: string, fields: object): Promise<Grant> {
    const askedAtMs = uptime() * 1000;
    const grant = await this.#operate(operation, { ...fields, lease_ms: this.#leaseMs });
    this.#endsAtMs = askedAtMs + this.#leaseMs;
    return grant;
  }

  async #operate(operation: string, fields: object): Promise<Grant> {
    const request = crypto.randomUUID();
    const named = { resource: this.resource, mesh: this.#mesh, ...this.#session };
    return (await this.#stream.request(request, ["LOCK", request, operation, { ...named, ...fields }])) as Grant;
  }
}
