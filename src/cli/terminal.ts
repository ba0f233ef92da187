/** Small pieces of terminal input and output. */
import { MarkbaseError } from "../errors.ts";

/** Writes a text completely. Rejects with `BrokenPipe` where nobody reads any more, else with `MarkbaseError`. */
export async function write(to: { write(bytes: Uint8Array): Promise<number> }, text: string): Promise<void> {
  let bytes = new TextEncoder().encode(text);
  try {
    while (bytes.length > 0) bytes = bytes.subarray(await to.write(bytes));
  } catch (cause) {
    if (cause instanceof Deno.errors.BrokenPipe) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new MarkbaseError("output_unwritable", `The output cannot be written: ${reason}.`, { cause });
  }
}

/** The whole of a byte stream as text. */
export async function readAll(stream: ReadableStream<Uint8Array>): Promise<string> {
  return await new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>).text();
}

const CODES = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 } as const;

/** Colours a text unless the environment asks for none (`NO_COLOR`) or the stream is no terminal. */
export function style(text: string, code: keyof typeof CODES, stream = Deno.stdout): string {
  return Deno.noColor || !stream.isTerminal() ? text : `\x1b[${CODES[code]}m${text}\x1b[0m`;
}

/** Text that a model wrote, for a stream: where that is a terminal, nothing in it steers the terminal. */
export function harmless(text: string, stream = Deno.stdout): string {
  return stream.isTerminal() ? visible(text) : text;
}

/** Control characters but line ends and tabs as pictures of themselves. */
export function visible(text: string): string {
  // deno-lint-ignore no-control-regex
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, (character) => {
    const code = character.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** A table with padded columns; numbers are right-aligned. */
export function table(rows: readonly (readonly (string | number)[])[]): string {
  const widths: number[] = [];
  for (const row of rows) row.forEach((cell, i) => widths[i] = Math.max(widths[i] ?? 0, String(cell).length));
  return rows.map((row) =>
    row.map((cell, i) =>
      typeof cell === "number" || /^[\d.,]+( [A-Za-z/%]+)?$/.test(cell)
        ? String(cell).padStart(widths[i])
        : cell.padEnd(widths[i])
    ).join("  ").trimEnd()
  ).join("\n");
}

/** Bytes in the largest fitting unit. */
export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit++;
  }
  return `${unit === 0 ? count : count.toPrecision(3)} ${units[unit]}`;
}
