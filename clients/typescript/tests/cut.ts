/** A way to the relay that the test can cut: existing connections break, and new ones are let through again. */

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class CuttableWay {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(relay: URL) {
    this.#server = createServer((near) => {
      const far = connect(Number(relay.port), relay.hostname);
      for (const [from, to] of [[near, far], [far, near]] as const) {
        this.#sockets.add(from);
        from.on("error", () => to.destroy());
        from.on("close", () => {
          this.#sockets.delete(from);
          to.destroy();
        });
        from.pipe(to);
      }
    });
  }

  static async open(relay: string): Promise<CuttableWay> {
    const way = new CuttableWay(new URL(relay));
    way.#server.listen(0, "127.0.0.1");
    await once(way.#server, "listening");
    return way;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Break all connections, as a lost network does: without a close frame. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}
