/**
 * Ops made ready to be timed: as many copies with weights of their own as no cache can hold, one after another in one plan, so that
 * each run finds its weights in memory as a forward does.
 */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { encodeInput } from "../../src/engine/input.ts";
import { costOf, type OpCost } from "../../src/schedule/cost.ts";
import { DECODE_ROWS } from "../../src/schedule/dispatches.ts";
import type { Op } from "../../src/schedule/ops.ts";
import { type Limits, type Plan, tensorBytes } from "../../src/schedule/plan.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { median } from "../statistics.ts";
import type { KernelCase } from "./cases.ts";
import { blocks, fill, normals, scaleBytes } from "./noise.ts";

const ALIGNMENT = 256;
const MOST_COPIES = 400;
/** The buffers of the plan after the arena, which stays unused. */
const [WEIGHTS, ACTIVATIONS, PAGES] = [1, 2, 3];

/** A case on a device. */
export class KernelProblem implements Disposable {
  readonly #scope: DisposableStack;
  readonly #pass: Pass;
  readonly #input: Uint8Array<ArrayBuffer>;

  private constructor(
    scope: DisposableStack,
    pass: Pass,
    input: Uint8Array<ArrayBuffer>,
    /** of the ops in a run */ readonly copies: number,
    /** of distinct weights */ readonly weightBytes: number,
    /** of one copy of the ops */ readonly cost: OpCost,
  ) {
    this.#scope = scope;
    this.#pass = pass;
    this.#input = input;
  }

  /** Places the ops' tensors, fills them with noise and compiles; `leastBytes` of distinct weights or KV layers where there are any. */
  static async create(device: Device, c: KernelCase, leastBytes: number): Promise<KernelProblem> {
    const decode = c.rows <= DECODE_ROWS;
    const limits: Limits = { rows: c.rows, out_rows: c.rows, sequences: 1, pages: c.pages * c.groups };
    const placement = new Placement(limits);
    const ops: Op[] = [];
    let copies = 0;
    const copy = () => {
      placement.nextCopy();
      ops.push(...c.ops.map((op) => placement.place(op, c, copies)));
      copies++;
    };
    if (c.ops.some((op) => op.kind === "linear" || "table" in op)) {
      do copy(); while (copies < MOST_COPIES && placement.bytes(WEIGHTS) < leastBytes);
    } else {
      // Ops without matrices: attention of a token comes as often as its group has layers, with pages of their own.
      const layers = decode ? placement.layers(c.ops) : 1;
      while (copies < layers) copy();
    }
    const plan: Plan = {
      limits,
      buffers: [
        { name: "arena", bytes: ALIGNMENT, writable: true },
        { name: "weights", bytes: Math.max(placement.bytes(WEIGHTS), ALIGNMENT), writable: false },
        { name: "activations", bytes: Math.max(placement.bytes(ACTIVATIONS), ALIGNMENT), writable: true },
        { name: "pages", bytes: Math.max(placement.bytes(PAGES), ALIGNMENT), writable: true },
      ],
      ops,
      outputs: [],
      groups: c.groups,
      vocabularySize: c.vocabulary,
      exact: false,
      checkFinite: false,
    };
    using scope = new DisposableStack();
    const buffers = plan.buffers.map(({ bytes }) => scope.use(device.createBuffer(bytes)));
    placement.fill(buffers);
    const pass = scope.use(await device.compile(plan, buffers));
    const input = encodeInput({
      rows: Array.from({ length: c.rows }, (_, i) => ({
        token: (1009 * i + 11) % c.vocabulary,
        position: c.context - c.rows + i,
        sequence: 0,
        rowClass: decode ? "decode" : "prefill",
      })),
      outputs: Array.from({ length: c.rows }, (_, row) => ({ row })),
      sequences: [
        Array.from({ length: c.groups }, () => ({
          first: 0,
          pages: Array.from({ length: c.pages }, (_, page) => page),
        })),
      ],
      groups: c.groups,
      vocabularySize: c.vocabulary,
      outputMask: 0,
    });
    const shape = { rows: c.rows, outRows: c.rows, context: c.context - c.rows };
    const costs = c.ops.map((op) => costOf(op, shape));
    const sum = (key: keyof OpCost) => costs.reduce((total, cost) => total + cost[key], 0);
    return new KernelProblem(scope.move(), pass, input, copies, placement.bytes(WEIGHTS), {
      dispatches: sum("dispatches"),
      bytes: sum("bytes"),
      weightBytes: sum("weightBytes"),
      flops: sum("flops"),
    });
  }

  /** One run of all copies, waited for. */
  run(): void {
    this.#pass.runSync(this.#input);
  }

  /** Median device time of one copy of the ops in seconds. */
  async time(repetitions: number): Promise<number> {
    await this.#pass.time(this.#input, 2);
    return median([...await this.#pass.time(this.#input, repetitions)]) / this.copies;
  }

  /** The kernels that one copy starts. */
  kernels(): string {
    const { kernels } = this.#pass.info();
    return [...new Set(kernels.slice(0, kernels.length / this.copies).map(({ kernel }) => kernel))].join(
      ", ",
    );
  }

  [Symbol.dispose](): void {
    this.#scope.dispose();
  }
}

type Content = "codes" | "scales" | "biases" | "near one" | "weights" | "activations" | "pages";

/** Where tensors lie: weights anew for each copy of the ops, activations and pages once. */
class Placement {
  readonly #sizes = [0, 0, 0, 0];
  readonly #parts: { buffer: number; offset: number; bytes: number; tensor: Tensor; content: Content }[] = [];
  readonly #shared = new Map<Tensor, Tensor>();
  #copy = new Map<Tensor, Tensor>();

  constructor(readonly limits: Limits) {}

  bytes(buffer: number): number {
    return this.#sizes[buffer];
  }

  nextCopy(): void {
    this.#copy = new Map();
  }

  /** Layers that the ops' pages have; 1 without pages. */
  layers(ops: readonly Op[]): number {
    return Math.max(1, ...ops.map((op) => "kv" in op ? (op.kv.pages.shape[1] as number) / 2 : 1));
  }

  /** The op on tensors that have a place; attention takes the layers of its group in turn. */
  place(op: Op, c: KernelCase, copy: number): Op {
    const visit = (value: unknown): unknown => {
      if (typeof value !== "object" || value === null) return value;
      if (Array.isArray(value)) return value.map(visit);
      if ("format" in value && "offset" in value) return this.#tensor(value as Tensor, c);
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, visit(part)]));
    };
    const placed = visit(op) as Op;
    if ("kv" in placed) placed.kv.layer = copy % this.layers([op]);
    return placed;
  }

  fill(buffers: readonly Buffer[]): void {
    for (const { buffer, offset, bytes, tensor, content } of this.#parts) {
      if (tensor.format.kind === "gguf") blocks(buffers[buffer], offset, bytes, tensor.format.type);
      else if (tensor.format.kind === "i8") {
        scaleBytes(buffers[buffer], offset, bytes, tensor.name.endsWith("16") ? 16 : 32);
      } else if (content === "codes") fill(buffers[buffer], offset, bytes);
      else normals(buffers[buffer], offset, bytes, tensor.format.kind, VALUES[content]);
    }
  }

  #tensor(tensor: Tensor, c: KernelCase): Tensor {
    const [leading] = tensor.shape;
    if (typeof leading === "string") return this.#once(this.#shared, tensor, ACTIVATIONS, "activations");
    if (tensor.shape.length === 5) { // KV pages
      const known = this.#shared.get(tensor);
      if (known) return known;
      const pages = this.#add({ ...tensor, shape: [c.pages, ...tensor.shape.slice(1)] }, PAGES, "pages");
      this.#shared.set(tensor, pages);
      return pages;
    }
    const known = this.#copy.get(tensor);
    if (known) return known;
    const { scales, biases } = tensor;
    const content = scales ? "codes" : tensor.shape.length === 1 ? "near one" : "weights";
    const placed: Tensor = {
      ...this.#add(tensor, WEIGHTS, content),
      scales: scales && this.#add(scales, WEIGHTS, "scales"),
      biases: biases && this.#add(biases, WEIGHTS, "biases"),
    };
    this.#copy.set(tensor, placed);
    return placed;
  }

  #once(known: Map<Tensor, Tensor>, tensor: Tensor, buffer: number, content: Content): Tensor {
    let placed = known.get(tensor);
    if (!placed) known.set(tensor, placed = this.#add(tensor, buffer, content));
    return placed;
  }

  #add(tensor: Tensor, buffer: number, content: Content): Tensor {
    const offset = Math.ceil(this.#sizes[buffer] / ALIGNMENT) * ALIGNMENT;
    const bytes = tensorBytes(tensor, this.limits);
    this.#sizes[buffer] = offset + bytes;
    this.#parts.push({ buffer, offset, bytes, tensor, content });
    return { ...tensor, buffer, offset };
  }
}

/** Mean and deviation of what is no code: such that products stay near 1 in size. */
const VALUES: Record<Exclude<Content, "codes">, [number, number]> = {
  scales: [0.0043, 0.0004],
  biases: [-0.0043 * 7.5, 0.003],
  "near one": [1, 0.1],
  weights: [0, 0.02],
  activations: [0, 1],
  pages: [0, 0.5],
};
