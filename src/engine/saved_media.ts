/** Media of a saved session as JSON: what the towers take, in base64. What is read back is checked like any other input. */
import type { ModelConfig } from "../checkpoint/config.ts";
import type { MediaSpan } from "../media/prepare.ts";
import { keyOf } from "../media/spans.ts";
import type { SpanAt } from "./media.ts";

/** One span as JSON. */
type SavedSpan =
  & { start: number; tokens: number }
  & (
    | { kind: "image" | "video"; time?: number; columns: number; rows: number; pixels: string }
    | { kind: "audio"; logMel: string; valid: string }
    | { kind: "audio"; frames: number; samples: string }
  );

/** Spans of a timeline as JSON. */
export function saveSpans(spans: readonly SpanAt[]): unknown {
  return spans.map(({ start, span }): SavedSpan => {
    const { kind, tokens, input } = span;
    if (kind !== "audio") {
      const { columns, rows, pixels } = input;
      const time = kind === "video" ? { time: span.time } : {};
      return { start, kind, tokens, ...time, columns, rows, pixels: base64(pixels) };
    }
    return "frames" in input
      ? { start, kind, tokens, frames: input.frames, samples: base64(input.samples) }
      : { start, kind, tokens, logMel: base64(input.logMel), valid: base64(input.valid) };
  });
}

/** Spans from JSON; undefined where it does not fit the ids, the model or itself. */
export async function readSpans(
  saved: unknown,
  ids: readonly number[],
  { vision, audio, tokens }: Pick<ModelConfig, "vision" | "audio" | "tokens">,
): Promise<SpanAt[] | undefined> {
  if (!Array.isArray(saved)) return undefined;
  const spans: SpanAt[] = [];
  for (const entry of saved) {
    const { start } = Object(entry);
    if (!isCount(start)) return undefined;
    try {
      const span = await readSpan(entry, { vision, audio });
      if (span === undefined) return undefined;
      const places = ids.slice(start, start + span.tokens);
      if (places.length !== span.tokens || places.some((id) => id !== tokens[span.kind])) return undefined;
      spans.push({ start, span });
    } catch (error) {
      if (error instanceof SyntaxError || error instanceof RangeError || error instanceof TypeError) return;
      throw error;
    }
  }
  return spans;
}

async function readSpan(
  saved: SavedSpan,
  { vision, audio }: Pick<ModelConfig, "vision" | "audio">,
): Promise<MediaSpan | undefined> {
  const { kind, tokens } = saved;
  if (!isCount(tokens) || tokens === 0) return undefined;
  if (kind === "audio") {
    if (audio === null) return undefined;
    if ("frames" in saved) {
      const samples = floats(saved.samples);
      if (!samples.every(Number.isFinite)) return undefined;
      if (audio.kind !== "frames" || saved.frames !== tokens || samples.length !== tokens * audio.frameSize) {
        return;
      }
      const key = await keyOf("audio", samples, [tokens]);
      return { kind, tokens, input: { samples, frames: tokens }, key };
    }
    const logMel = floats(saved.logMel), valid = Uint8Array.fromBase64(saved.valid);
    if (!logMel.every(Number.isFinite) || valid.some((v) => v > 1)) return undefined;
    const heard = valid.reduce((sum, v) => sum + v, 0);
    if (audio.kind !== "tower" || logMel.length !== valid.length * 128) return undefined;
    if (Math.ceil(Math.ceil(heard / 2) / 2) !== tokens) return undefined;
    return { kind, tokens, input: { logMel, valid }, key: await keyOf("audio", logMel, [tokens]) };
  }
  if (vision === null || (kind !== "image" && kind !== "video")) return undefined;
  const { columns, rows } = saved;
  const pixels = Uint8Array.fromBase64(saved.pixels);
  const pool = vision.poolingKernelSize, merged = vision.kind === "patches";
  const side = vision.patchSize * (merged ? pool : 1);
  const fits = isCount(columns) && isCount(rows) && columns * rows === tokens * (merged ? 1 : pool * pool) &&
    pixels.length === columns * rows * side * side * 3;
  if (!fits) return undefined;
  const positions = Int32Array.from(
    { length: columns * rows * 2 },
    (_, i) => i % 2 === 0 ? (i >> 1) % columns : Math.floor((i >> 1) / columns),
  );
  const input = { pixels, positions, columns, rows };
  const key = await keyOf("image", pixels, [columns, rows]);
  if (kind === "image") return { kind, tokens, input, key };
  return typeof saved.time === "number" ? { kind, tokens, input, key, time: saved.time } : undefined;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function base64(values: Uint8Array | Float32Array): string {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength).toBase64();
}

function floats(text: string): Float32Array {
  return new Float32Array(Uint8Array.fromBase64(text).buffer);
}
