/** Large pictures are decoded in a thread of their own: timers, requests and tokens of others go on meanwhile. */
import { unlessAborted } from "../abort.ts";
import { MediaError } from "../errors.ts";
import { type Codec, type Decoded, decodeWith } from "./codecs.ts";
import type { DecodeAnswer, DecodeRequest } from "./decode_worker.ts";

/** Pixels from which on decoding takes longer than a thread takes to start. */
const LARGE: Readonly<Record<Codec, number>> = {
  jpeg: 2e6,
  webp: 2e6,
  png: 1e6,
  cmyk: 1e6,
  avif: 250_000,
  heic: 250_000,
};

/** Threads take turns, since each holds a large picture several times over. */
let turn: Promise<unknown> = Promise.resolve();

/** As `decodeWith`, for a picture of so many `pixels`. Rejects with the signal's reason, too, which ends the thread. */
export async function decodeImage(
  codec: Codec,
  bytes: Uint8Array,
  pixels: number,
  signal?: AbortSignal,
): Promise<Decoded> {
  if (pixels < LARGE[codec] || !await mayStart()) return await decodeWith(codec, bytes);
  const result = turn.then(() => inThread(codec, bytes, signal));
  turn = result.catch(() => {});
  return await unlessAborted(result, signal);
}

const MODULE = new URL("./decode_worker.ts", import.meta.url);

/** A thread reads its module anew, for which a script of few permissions may lack the one; without, this thread decodes. */
async function mayStart(): Promise<boolean> {
  if (MODULE.protocol !== "file:") return true; // what was imported may be imported again
  return (await Deno.permissions.query({ name: "read", path: MODULE })).state === "granted";
}

async function inThread(codec: Codec, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<Decoded> {
  signal?.throwIfAborted();
  const worker = newThread();
  if (worker === undefined) return await decodeWith(codec, bytes);
  const { promise, resolve, reject } = Promise.withResolvers<Decoded>();
  worker.onmessage = ({ data: answer }: MessageEvent<DecodeAnswer>) =>
    "decoded" in answer ? resolve(answer.decoded) : reject(new MediaError(answer.code, answer.message));
  // What the decoder itself fails with comes as an answer: the thread did not start, or is out of memory.
  worker.onerror = (event) => {
    event.preventDefault();
    resolve(decodeWith(codec, bytes));
  };
  worker.postMessage({ codec, bytes } satisfies DecodeRequest);
  try {
    return await unlessAborted(promise, signal);
  } finally {
    worker.terminate();
  }
}

/** A thread, or undefined where the system or the host of the script gives none. */
function newThread(): Worker | undefined {
  try {
    return new Worker(MODULE, { type: "module" });
  } catch {
    return undefined;
  }
}
