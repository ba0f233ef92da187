/** Fixture folders, and safetensors files made on the spot. */
import { existsSync } from "node:fs";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";
import { MODELS } from "../support/models.ts";
import { concat } from "../support/bytes.ts";

const root = new URL("../../", import.meta.url).pathname;
const own = `${root}tests/fixtures/models/`;
const shared = `${root}../shared/`;

/** Rows that come with the repository. */
export const OWN_ROWS: readonly string[] = MODELS.small;

/** GGUF rows, and the row that each was made from where it lies beside them. */
export const GGUF_ROWS: readonly (readonly [row: string, from: string | null])[] = [
  ["kq-gguf-q4_k_m", null],
  ["tiny-gguf-iq4_nl", null],
  ["26b-a4b-gguf-q4_0", "26b-a4b"],
  ["e2b-gguf-q4_0", "e2b"],
  ["e4b-gguf-mixed", "e4b"],
  ["31b-gguf-q5_0", "31b"],
];

/** Rows that lie beside the repository on some machines. */
export const SHARED_ROWS: readonly string[] = [
  ...MODELS.large,
  ...MODELS.experts,
  "31b-mm",
  "assistant-31b",
  "assistant-e2b",
  "e2b-mm-clipped",
  ...MODELS.media,
  "e2b-mm-unclipped",
  ...MODELS.tiny,
];

/** The model that ships with the project. */
export const TINY = `${root}examples/tiny`;

/** Folder of a row, wherever it lies. */
export function folderOf(row: string): string {
  if (OWN_ROWS.includes(row) || existsSync(own + row)) return own + row;
  return row.startsWith("tiny/") ? shared + row : `${shared}fixtures/${row}`;
}

/** `{ name, ignore }` of a test on a row, so that a missing row is counted as skipped. */
export function onRow(row: string, says: string): { name: string; ignore: boolean } {
  return { name: `${row}: ${says}`, ignore: !existsSync(folderOf(row)) };
}

/** JSON of a file of a row. */
// deno-lint-ignore no-explicit-any
export function readJson(row: string, file: string): any {
  return JSON.parse(Deno.readTextFileSync(`${folderOf(row)}/${file}`));
}

/** One tensor to be written. */
export interface Entry {
  dtype: string;
  shape: number[];
  data: Uint8Array;
}

/** Bytes of a safetensors file with these tensors. */
export function writeSafetensors(entries: Record<string, Entry>): Uint8Array<ArrayBuffer> {
  const header: Record<string, unknown> = {};
  let end = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(entries)) {
    header[name] = { dtype, shape, data_offsets: [end, end += data.length] };
  }
  return withHeader(JSON.stringify(header), concat(Object.values(entries).map((entry) => entry.data)));
}

/** A file with this header text and data. */
export function withHeader(header: string, data: Uint8Array = new Uint8Array()): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(header);
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(text.length), true);
  return concat([length, text, data]);
}

/** All tensors of a row with their bytes, to be changed and written again. */
export async function entriesOf(row: string): Promise<Record<string, Entry>> {
  const { tensors, files } = await openCheckpoint(folderOf(row));
  const bytes = Deno.readFileSync(files[0].path);
  return Object.fromEntries([...tensors.values()].map(({ name, dtype, shape, data }) => [
    name,
    { dtype, shape, data: bytes.slice(data.offset, data.offset + data.length) },
  ]));
}

/** Writes files into a new folder, hands its path to `use`, and removes it. */
export async function withFolder(
  files: Record<string, string | Uint8Array>,
  use: (folder: string) => Promise<void>,
): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "markbase-checkpoint-" });
  try {
    for (const [name, content] of Object.entries(files)) {
      if (typeof content === "string") await Deno.writeTextFile(`${folder}/${name}`, content);
      else await Deno.writeFile(`${folder}/${name}`, content);
    }
    await use(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** Opens a row with its tensors and config changed. */
export async function openChanged(
  row: string,
  // deno-lint-ignore no-explicit-any
  change: (entries: Record<string, Entry>, config: any) => void,
  use: (checkpoint: Checkpoint) => Promise<void> | void,
): Promise<void> {
  const entries = await entriesOf(row);
  const config = readJson(row, "config.json");
  change(entries, config);
  const files = { "config.json": JSON.stringify(config), "model.safetensors": writeSafetensors(entries) };
  await withFolder(files, async (folder) => await use(await openCheckpoint(folder)));
}
