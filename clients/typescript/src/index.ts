export { Client, type ClientOptions, type Confirmed, type PublishResult } from "./client.js";
export { type Draft, type Event, KIND, type Tag, tagValue } from "./event.js";
export { join, type Joined } from "./join.js";
export { Key } from "./keys.js";
export type { Lock, LockOptions } from "./lock.js";
export type { Gap, Message, OutgoingMessage, ReceiveOptions, SendResult } from "./mailbox.js";
export type { Filter, StoredEvent, SubscribeOptions } from "./subscription.js";
export { type Problem, RelayError } from "./wire.js";
