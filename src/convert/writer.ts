/**
 * Writes a folder of safetensors files. Sizes are known before the numbers are, so each file gets its header first and its
 * tensors in any order; nothing is kept in memory. The folder gets its name when it is complete.
 */
import { SHARD_INDEX } from "../checkpoint/shards.ts";
import { requirePermission } from "../../ffi/permissions.ts";
import { InvalidArgument, MarkbaseError } from "../errors.ts";

/** A tensor that will be written. */
export interface Declared {
  name: string;
  dtype: "U32" | "BF16" | "F16" | "F32" | "I32" | "I64";
  shape: number[];
}

const BYTES = { U32: 4, BF16: 2, F16: 2, F32: 4, I32: 4, I64: 8 } as const;
/** Largest file, where it does not hold one larger tensor alone. */
const SHARD_BYTES = 5_000_000_000;
const DATA_ALIGNMENT = 64;

/** Where a tensor's bytes go. */
interface Place {
  file: string;
  /** bytes from the start of the file */ offset: number;
  length: number;
}

/** Bytes of a tensor. */
export function sizeOfDeclared({ dtype, shape }: Declared): number {
  return shape.reduce((product, size) => product * size, BYTES[dtype]);
}

/** See the head of this file. */
export class FolderWriter implements AsyncDisposable {
  readonly #places = new Map<string, Place>();
  readonly #open = new Map<string, Deno.FsFile>();
  #done = false;

  private constructor(readonly folder: string, private readonly work: string) {}

  /** Begins a folder, which must not exist. Files hold `shardBytes` at most. */
  static async create(
    folder: string,
    tensors: readonly Declared[],
    shardBytes = SHARD_BYTES,
  ): Promise<FolderWriter> {
    const path = folder.length > 1 ? folder.replace(/\/+$/, "") : folder;
    const parent = path.slice(0, Math.max(path.lastIndexOf("/"), 0)) || (path.startsWith("/") ? "/" : ".");
    await requirePermission({ name: "read", path: parent }, "to see whether the new folder exists already");
    await requirePermission({ name: "write", path: parent }, "to write the converted model");
    if (await Deno.lstat(path).then(() => true, () => false)) {
      throw new InvalidArgument(`${path} exists already. Name another folder, or remove it.`);
    }
    const writer = new FolderWriter(path, `${path}.${crypto.randomUUID().slice(0, 8)}.part`);
    try {
      await Deno.mkdir(writer.work, { recursive: true });
      await writer.#begin(tensors, shardBytes);
    } catch (error) {
      await writer[Symbol.asyncDispose]();
      throw writer.#failure(error);
    }
    return writer;
  }

  /** The folder as long as it is not complete. */
  get workFolder(): string {
    return this.work;
  }

  /** Writes part of a tensor, from byte `at` on. */
  async write(name: string, at: number, bytes: ArrayBufferView<ArrayBuffer>): Promise<void> {
    const { file, offset, length } = this.#places.get(name)!;
    if (at + bytes.byteLength > length) throw new RangeError(`Tensor "${name}" has ${length} bytes.`);
    await this.#put(this.#open.get(file)!, offset + at, bytes);
  }

  /** Writes another file of the folder. */
  async file(name: string, content: string | Uint8Array): Promise<void> {
    try {
      if (typeof content === "string") await Deno.writeTextFile(`${this.work}/${name}`, content);
      else await Deno.writeFile(`${this.work}/${name}`, content);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** Makes all weights durable; no more of them can be written. */
  async closeWeights(): Promise<void> {
    for (const file of this.#open.values()) {
      await file.sync();
      file.close();
    }
    this.#open.clear();
  }

  /** Gives the folder its name. */
  async finish(): Promise<void> {
    await this.closeWeights();
    await Deno.rename(this.work, this.folder);
    this.#done = true;
  }

  /** Removes what is not complete. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const file of this.#open.values()) file.close();
    this.#open.clear();
    if (!this.#done) await Deno.remove(this.work, { recursive: true }).catch(() => {});
  }

  async #begin(tensors: readonly Declared[], shardBytes: number): Promise<void> {
    const shards = shardsOf(tensors, shardBytes);
    const weightMap: Record<string, string> = {};
    let total = 0;
    for (const [index, shard] of shards.entries()) {
      const number = (n: number) => String(n).padStart(5, "0");
      const file = shards.length === 1
        ? "model.safetensors"
        : `model-${number(index + 1)}-of-${number(shards.length)}.safetensors`;
      const handle = await Deno.open(`${this.work}/${file}`, { createNew: true, write: true });
      this.#open.set(file, handle);
      const { header, places } = layOut(shard);
      await this.#put(handle, 0, header);
      let end = header.length;
      for (const [name, { offset, length }] of places) {
        this.#places.set(name, { file, offset, length });
        weightMap[name] = file;
        total += length;
        end = Math.max(end, offset + length);
      }
      await handle.truncate(end); // the whole size at once, so that a full disk shows early where the system reserves it
    }
    const index = { metadata: { total_size: total }, weight_map: sorted(weightMap) };
    await this.file(SHARD_INDEX, JSON.stringify(index, null, 2) + "\n");
  }

  async #put(file: Deno.FsFile, at: number, view: ArrayBufferView<ArrayBuffer>): Promise<void> {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    try {
      await file.seek(at, Deno.SeekMode.Start);
      for (let done = 0; done < bytes.length;) done += await file.write(bytes.subarray(done));
    } catch (error) {
      throw this.#failure(error);
    }
  }

  #failure(cause: unknown): unknown {
    if (!(cause instanceof Error) || cause instanceof MarkbaseError) return cause;
    if (/no space left|ENOSPC|quota exceeded/i.test(cause.message)) {
      const message = `The disk of ${this.folder} is full. Free some space and try again.`;
      return new MarkbaseError("no_space", message, { cause });
    }
    const message = `${this.folder} cannot be written: ${cause.message}. Name another folder.`;
    return new MarkbaseError("not_writable", message, { cause });
  }
}

/** Divides tensors among files, in their order. */
function shardsOf(tensors: readonly Declared[], shardBytes: number): Declared[][] {
  const shards: Declared[][] = [[]];
  let filled = 0;
  for (const tensor of tensors) {
    const size = sizeOfDeclared(tensor);
    if (filled > 0 && filled + size > shardBytes) {
      shards.push([]);
      filled = 0;
    }
    shards.at(-1)!.push(tensor);
    filled += size;
  }
  return shards;
}

/** Header bytes of a file, and where its tensors lie. Those that would spoil the alignment of others come last. */
function layOut(tensors: readonly Declared[]): {
  header: Uint8Array<ArrayBuffer>;
  places: Map<string, { offset: number; length: number }>;
} {
  const aligned = (tensor: Declared) => sizeOfDeclared(tensor) % DATA_ALIGNMENT === 0;
  const order = [...tensors.filter(aligned), ...tensors.filter((tensor) => !aligned(tensor))];
  const header: Record<string, unknown> = { __metadata__: { format: "mlx" } };
  const places = new Map<string, { offset: number; length: number }>();
  let end = 0;
  for (const tensor of order) {
    const { name, dtype, shape } = tensor;
    const length = sizeOfDeclared(tensor);
    places.set(name, { offset: end, length });
    header[name] = { dtype, shape, data_offsets: [end, end += length] };
  }
  const json = JSON.stringify(header);
  const bytes = new TextEncoder().encode(json);
  const length = Math.ceil((8 + bytes.length) / DATA_ALIGNMENT) * DATA_ALIGNMENT;
  const all = new Uint8Array(length).fill(0x20);
  new DataView(all.buffer).setBigUint64(0, BigInt(length - 8), true);
  all.set(bytes, 8);
  for (const place of places.values()) place.offset += length;
  return { header: all, places };
}

function sorted<T>(record: Record<string, T>): Record<string, T> {
  return Object.fromEntries(Object.entries(record).sort(([a], [b]) => a < b ? -1 : 1));
}
