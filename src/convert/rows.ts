/** Rows of stored weights as f32 numbers, a few at a time. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { type OpenFile, openFile, readRange } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import type { FileRange, WeightTensor } from "../checkpoint/tensor.ts";
import { encodeInput } from "../engine/input.ts";
import { openDevice } from "../engine/open_device.ts";
import { PlanBuilder } from "../schedule/plan.ts";
import type { Tensor } from "../schedule/tensor.ts";

/** How to open a reader. */
export interface RowReaderOptions {
  cache?: string;
  signal?: AbortSignal;
}

/** Opens the files of a checkpoint, and the device that knows its block formats, when they are first needed. */
export class RowReader implements AsyncDisposable {
  readonly #files = new Map<number, OpenFile>();
  readonly #mapped = new Map<number, Buffer>();
  readonly #scope = new AsyncDisposableStack();
  #device: Device | null = null;
  #lookup: Lookup | null = null;

  /** Nothing is opened yet. */
  constructor(
    private readonly checkpoint: Pick<Checkpoint, "files">,
    private readonly options: RowReaderOptions = {},
  ) {}

  /** Bytes as they are stored. */
  async bytes({ file, offset, length }: FileRange): Promise<Uint8Array<ArrayBuffer>> {
    let open = this.#files.get(file);
    if (open === undefined) {
      this.#files.set(file, open = this.#scope.use(await openFile(null, this.checkpoint.files[file].path)));
    }
    return await readRange(open, offset, length);
  }

  /** Rows [first, first + count) of a plain or GGUF weight, f32 [count, columns]; leading dimensions count as rows. */
  async rows(weight: WeightTensor, first: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    const { format, parts: { data } } = weight;
    if (format.kind === "gguf") return await this.#lookUp(weight, first, count);
    const rowBytes = data.length / rowsOf(weight);
    const bytes = await this.bytes({
      ...data,
      offset: data.offset + first * rowBytes,
      length: count * rowBytes,
    });
    switch (format.kind) {
      case "f32":
        return new Float32Array(bytes.buffer);
      case "f16":
        return new Float32Array(new Float16Array(bytes.buffer));
      case "bf16": {
        const words = new Uint16Array(bytes.buffer), wide = new Uint32Array(words.length);
        for (let i = 0; i < words.length; i++) wide[i] = words[i] << 16;
        return new Float32Array(wide.buffer);
      }
      default:
        throw new RangeError(`Weights of format ${format.kind} are not read here.`);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lookup?.[Symbol.asyncDispose]();
    await this.#scope.disposeAsync();
  }

  /** The device dequantises the rows of a table, which the weight is to it. */
  async #lookUp(weight: WeightTensor, first: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    if (this.#lookup?.weight !== weight || count > this.#lookup.most) {
      await this.#lookup?.[Symbol.asyncDispose]();
      this.#lookup = null; // should the next line fail
      this.#lookup = await Lookup.open(
        await this.#openDevice(),
        await this.#map(weight.parts.data.file),
        weight,
        count,
      );
    }
    return await this.#lookup.rows(first, count);
  }

  async #openDevice(): Promise<Device> {
    const options = { precision: "exact", variants: () => new Set<string>(), ...this.options } as const;
    return this.#device ??= this.#scope.use((await openDevice("cpu", options)).device);
  }

  async #map(file: number): Promise<Buffer> {
    let mapped = this.#mapped.get(file);
    if (mapped === undefined) {
      const { path, size } = this.checkpoint.files[file];
      mapped = this.#scope.use(await (await this.#openDevice()).mapFile(path, 0, size));
      this.#mapped.set(file, mapped);
    }
    return mapped;
  }
}

/** A plan of one op: rows of one weight. */
class Lookup implements AsyncDisposable {
  private constructor(
    readonly weight: WeightTensor,
    /** rows of one run */ readonly most: number,
    private readonly pass: Pass,
    private readonly arena: Buffer,
    private readonly y: Tensor,
  ) {}

  static async open(device: Device, file: Buffer, weight: WeightTensor, most: number): Promise<Lookup> {
    const { name, format, parts: { data } } = weight;
    if (format.kind !== "gguf") throw new RangeError(`${name} has no blocks.`);
    const columns = weight.shape.at(-1)!, rows = rowsOf(weight);
    const builder = new PlanBuilder({ rows: most, out_rows: most, sequences: 1, pages: 1 });
    const buffer = builder.buffer("weights", file.size, false);
    const y = builder.activation("rows", ["out_rows", columns]);
    const table: Tensor = { name, format, shape: [rows, columns], buffer, offset: data.offset };
    builder.add({ kind: "embed", table, y, scale: 1 });
    const plan = builder.finish({ groups: 0, vocabularySize: rows, exact: true });
    const arena = device.createBuffer(plan.buffers[0].bytes);
    try {
      return new Lookup(weight, most, await device.compile(plan, [arena, file]), arena, y);
    } catch (error) {
      arena[Symbol.dispose]();
      throw error;
    }
  }

  async rows(first: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    const rows = Array.from(
      { length: count },
      (_, i) => ({ token: first + i, position: i, sequence: 0, rowClass: "decode" as const }),
    );
    await this.pass.run(encodeInput({
      rows,
      outputs: rows.map((_, row) => ({ row })),
      sequences: [[]],
      groups: 0,
      vocabularySize: rowsOf(this.weight),
      outputMask: 0,
    }));
    const values = new Float32Array(count * this.weight.shape.at(-1)!);
    this.arena.read(this.y.offset, values);
    return values;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.pass[Symbol.asyncDispose]();
    this.arena[Symbol.dispose]();
  }
}

function rowsOf({ shape }: WeightTensor): number {
  return shape.slice(0, -1).reduce((product, size) => product * size, 1);
}
