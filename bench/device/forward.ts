/** Whole forwards of a checkpoint on a device, without tokenizer and sampling: plans as `load` makes them, KV pages in a row. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";
import { CANDIDATE_OUTPUTS } from "../../src/engine/results.ts";
import { encodeInput } from "../../src/engine/input.ts";
import { layOutWeights, type WeightLayout } from "../../src/engine/weights.ts";
import { costOf } from "../../src/schedule/cost.ts";
import { type KvFormat, PAGE_TOKENS, pageBytes, pageGroups } from "../../src/schedule/groups.ts";
import { tensorBytes } from "../../src/schedule/plan.ts";
import { firstWeightBuffer, type TextPlan, textPlan } from "../../src/schedule/text.ts";
import { median } from "../statistics.ts";

const REPETITIONS = 20;

/** Times of one kind of forward. */
export interface ForwardTiming {
  what: string;
  rows: number;
  context: number;
  dispatches: number;
  /** device time of a run */ deviceSeconds: number;
  /** from call to return, candidates copied out */ wallSeconds: number;
  /** of the first run, which builds the graph */ firstSeconds: number;
  /** weights, KV and activations, by the schedule's cost model */ bytes: number;
  flops: number;
}

/** Time of the kernels of one name in a forward. */
export interface KernelShare {
  kernel: string;
  ops: number;
  seconds: number;
  bytes: number;
}

/** A model on a device, ready to run forwards. */
export class ForwardBench implements Disposable {
  readonly #scope = new DisposableStack();
  readonly #pages: number[];
  readonly #vocabulary: number;

  private constructor(
    readonly device: Device,
    readonly prefill: { plan: TextPlan; pass: Pass },
    readonly decode: { plan: TextPlan; pass: Pass },
    /** looks for NaN and Inf after each op */ readonly checked: { plan: TextPlan; pass: Pass },
    pages: number[],
    vocabulary: number,
  ) {
    this.#pages = pages;
    this.#vocabulary = vocabulary;
  }

  /** Opens a folder and compiles its plans for contexts up to `context`. */
  static async open(
    device: Device,
    folder: string,
    context: number,
    kvFormat: KvFormat = "f16",
  ): Promise<ForwardBench> {
    const checkpoint = await openCheckpoint(folder);
    const { config } = checkpoint;
    const weights = checkpoint.weights();
    const layout = layOutWeights(
      weights,
      checkpoint.files,
      firstWeightBuffer(config),
      device.info().weightAlignment,
    );
    const groups = pageGroups(config);
    const pages = Math.ceil(context / PAGE_TOKENS) + 1;
    const common = { kvFormat, kvPages: groups.map(() => pages), exact: false };
    const limits = (rows: number, out: number, entries: number) => ({
      rows,
      out_rows: out,
      sequences: 1,
      pages: entries,
    });
    const plans = {
      prefill: textPlan(config, weights, layout, {
        ...common,
        variant: "prefill",
        limits: limits(512, 1, pages * groups.length),
      }),
      decode: textPlan(config, weights, layout, {
        ...common,
        variant: "decode",
        limits: limits(16, 16, pages * groups.length),
      }),
      checked: textPlan(config, weights, layout, {
        ...common,
        variant: "decode",
        limits: limits(16, 16, pages * groups.length),
        checkFinite: true,
      }),
    };
    const scope = new DisposableStack();
    const arena = scope.use(
      device.createBuffer(Math.max(plans.prefill.buffers[0].bytes, plans.decode.buffers[0].bytes)),
    );
    const kv = groups.map((group) => scope.use(device.createBuffer(pages * pageBytes(group, kvFormat))));
    const files = await placeWeights(device, checkpoint, layout, scope);
    const compile = async (plan: TextPlan) => ({
      plan,
      pass: scope.use(await device.compile(plan, [arena, ...kv, ...files])),
    });
    const bench = new ForwardBench(
      device,
      await compile(plans.prefill),
      await compile(plans.decode),
      await compile(plans.checked),
      groups.map(() => pages),
      config.vocabularySize,
    );
    bench.#scope.use(scope);
    return bench;
  }

  [Symbol.dispose](): void {
    this.#scope.dispose();
  }

  #input(kind: "prefill" | "decode", rows: number, context: number): Uint8Array<ArrayBuffer> {
    return encodeInput({
      rows: Array.from({ length: rows }, (_, i) => ({
        token: (100 + 37 * i) % this.#vocabulary,
        position: context - rows + i,
        sequence: 0,
        rowClass: kind,
      })),
      // Rows without an output would stop before the layers that share keys and values.
      outputs: kind === "decode" ? Array.from({ length: rows }, (_, row) => ({ row })) : [{ row: rows - 1 }],
      sequences: [
        this.#pages.map((count) => ({ first: 0, pages: Array.from({ length: count }, (_, page) => page) })),
      ],
      groups: this.#pages.length,
      vocabularySize: this.#vocabulary,
      outputMask: CANDIDATE_OUTPUTS,
    });
  }

  /** Times a forward of `rows` rows, the last at position `context` - 1. */
  async time(kind: "prefill" | "decode", rows: number, context: number): Promise<ForwardTiming> {
    const { plan, pass } = this[kind];
    const input = this.#input(kind, rows, context);
    const outRows = kind === "decode" ? rows : 1;
    const output = candidatesOf(plan, outRows);
    const first = await pass.run(input, output);
    for (let i = 0; i < 3; i++) pass.runSync(input, output);
    const wall: number[] = [], deviceTime: number[] = [];
    for (let i = 0; i < REPETITIONS; i++) {
      const { wallNs, deviceNs } = pass.runSync(input, output);
      wall.push(wallNs * 1e-9);
      deviceTime.push(deviceNs * 1e-9);
    }
    const shape = { rows, outRows, context: context - rows };
    const costs = plan.ops.map((op) => costOf(op, shape));
    return {
      what: kind,
      rows,
      context,
      dispatches: first.dispatches,
      deviceSeconds: median(deviceTime),
      wallSeconds: median(wall),
      firstSeconds: first.wallNs * 1e-9,
      bytes: costs.reduce((sum, { bytes }) => sum + bytes, 0),
      flops: costs.reduce((sum, { flops }) => sum + flops, 0),
    };
  }

  /** Runs a forward of 4 decode rows that rejects with the first op whose output holds a NaN or an Inf. */
  async checkFinite(): Promise<void> {
    const { plan, pass } = this.checked;
    await pass.run(this.#input("decode", 4, 132), candidatesOf(plan, 4));
  }

  /** The time of each kernel in one forward; the device must have been opened with `timeKernels`. */
  async kernels(kind: "prefill" | "decode", rows: number, context: number): Promise<KernelShare[]> {
    const { plan, pass } = this[kind];
    const input = this.#input(kind, rows, context);
    await pass.time(input, 3);
    const shape = { rows, outRows: kind === "decode" ? rows : 1, context: context - rows };
    const shares = new Map<string, KernelShare>();
    pass.info().kernels.forEach(({ kernel, seconds }, i) => {
      const op = plan.ops[i];
      const weights = op.kind === "linear" || op.kind === "expert_gate_up"
        ? op.weights
        : op.kind === "expert_down"
        ? [op.weight]
        : [];
      const width = weights.length > 0 ? ` ${weights.map((w) => w.shape.join("x")).join("+")}` : "";
      const name = `${op.kind}${width}: ${kernel}`;
      const share = shares.get(name) ?? { kernel: name, ops: 0, seconds: 0, bytes: 0 };
      share.ops++;
      share.seconds += seconds ?? 0;
      share.bytes += costOf(op, shape).bytes;
      shares.set(name, share);
    });
    return [...shares.values()].sort((a, b) => b.seconds - a.seconds);
  }
}

/** Room for the candidates of `rows` output rows: the first three outputs. */
function candidatesOf({ outputs, limits }: TextPlan, rows: number): Uint8Array<ArrayBuffer> {
  const size = { ...limits, out_rows: rows };
  return new Uint8Array(outputs.slice(0, 3).reduce((sum, output) => sum + tensorBytes(output, size), 0));
}

/** The weight buffers of a layout: files as they are, and one with what is not aligned in them. */
async function placeWeights(
  device: Device,
  { files }: Checkpoint,
  layout: WeightLayout,
  scope: DisposableStack,
): Promise<Buffer[]> {
  using temporary = new DisposableStack();
  const map = (file: number) => device.mapFile(files[file].path, 0, files[file].size);
  const mapped = new Map<number, Buffer>();
  for (const file of layout.mapped) mapped.set(file, scope.use(await map(file)));
  const buffers = [...mapped.values()];
  if (layout.copiedBytes === 0) return buffers;
  const copied = scope.use(device.createBuffer(layout.copiedBytes));
  for (const { file, offset, length, to } of layout.copies) {
    if (!mapped.has(file)) mapped.set(file, temporary.use(await map(file)));
    copied.copy(to, mapped.get(file)!, offset, length);
  }
  return [...buffers, copied];
}
