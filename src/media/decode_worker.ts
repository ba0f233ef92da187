/** Decodes a picture in a thread of its own; see `decode_apart.ts`. */
import { MediaError } from "../errors.ts";
import { type Codec, type Decoded, decodeWith } from "./codecs.ts";

/** What the thread is asked. */
export interface DecodeRequest {
  codec: Codec;
  bytes: Uint8Array;
}

/** What it answers: pixels, or code and text of a `MediaError`. */
export type DecodeAnswer = { decoded: Decoded } | { code: string; message: string };

/** The part of a worker's global scope that is used here. */
interface Scope {
  onmessage: (event: MessageEvent<DecodeRequest>) => void;
  postMessage(answer: DecodeAnswer, transfer?: Transferable[]): void;
}

const scope = self as unknown as Scope;
scope.onmessage = async ({ data: { codec, bytes } }) => {
  try {
    const { data, width, height } = await decodeWith(codec, bytes);
    scope.postMessage({ decoded: { data, width, height } }, [data.buffer as ArrayBuffer]);
  } catch (error) {
    if (!(error instanceof MediaError)) throw error;
    scope.postMessage({ code: error.code, message: error.message });
  }
};
