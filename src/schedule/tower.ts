/** What the plans of all towers share: an input buffer that the caller fills, weights of the model's files, clipped linears. */
import type { ClipBounds, ClippedLinear, StoredClip } from "../checkpoint/towers.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import type { Clip, Epilogue, LinearOp, Op } from "./ops.ts";
import { type Plan, PlanBuilder, tensorBytes } from "./plan.ts";
import type { Dim, Format, Tensor } from "./tensor.ts";

/** A tower as plans that run one after another on the same buffers: arena, inputs, weights. */
export interface TowerPlan {
  /** each a few layers, so that no run is long and other runs have their turn between them */ plans: Plan[];
  /** ops of all plans */ ops: readonly Op[];
  limits: Plan["limits"];
  /** bytes of the arena and of the inputs */ bytes: { arena: number; inputs: number };
  /** what the caller writes before each run, by name; all lie in buffer `INPUT_BUFFER` */
  inputs: ReadonlyMap<string, Tensor>;
  /** f32 [r, n], what the tower itself gives */ tower: Tensor;
  /** f32 [r, H], soft tokens of the text network */ soft: Tensor;
}

/** Index of the buffer of a tower plan that holds its inputs. */
const INPUT_BUFFER = 1;
/** Index of the first buffer of a tower plan that holds weights. */
export const FIRST_TOWER_WEIGHTS = 2;

/** Bits of the outputs of the last plan. */
export const TOWER_OUTPUT = { tower: 0, soft: 1 } as const;

/** What a plan of a tower is for. */
export interface TowerPlanOptions {
  /** rows and out_rows at most */ limits: { rows: number; out_rows: number };
  exact: boolean;
  checkFinite?: boolean;
  /** layers times rows of one plan; default: all layers are in one */ layerRows?: number;
}

/** Where a tower's weights lie. */
export interface TowerWeightPlaces {
  /** name and size of each weight buffer, in plan order */ buffers: readonly {
    name: string;
    bytes: number;
  }[];
  /** the plan tensor of a weight, the same object at each call; buffers count from `FIRST_TOWER_WEIGHTS` */
  tensor(weight: WeightTensor): Tensor;
  /** bounds of clipped linears */ clips: ReadonlyMap<StoredClip, ClipBounds>;
}

/** A linear of a tower: its input, which may be the sum of a stream, and what follows. */
export type TowerLinear =
  & Pick<LinearOp, "x" | "residual" | "postNorm" | "hOut" | "preNorm">
  & { epilogue?: Epilogue; bias?: WeightTensor; layer?: number };

/** Collects a tower's ops. */
export class TowerBuilder {
  #builder: PlanBuilder;
  readonly #plans: Plan[] = [];
  readonly #inputs = new Map<string, Tensor>();
  #inputBytes = 0;
  /** what goes from one plan to the next */ #carried: Tensor | undefined;
  #layers = 0;

  constructor(
    readonly options: TowerPlanOptions,
    readonly places: TowerWeightPlaces,
    /** of all norms unless an op says otherwise */ readonly eps: number,
  ) {
    this.#builder = this.#fresh();
  }

  /** Appends an op. */
  get add(): PlanBuilder["add"] {
    return this.#builder.add.bind(this.#builder);
  }

  /** Something that the caller writes before each run. */
  input(name: string, shape: readonly [Dim, number], kind: "f32" | "u32"): Tensor {
    const tensor = this.#stored(name, shape, kind);
    this.#inputs.set(name, tensor);
    return tensor;
  }

  /** A place in the buffer of inputs. */
  #stored(name: string, shape: readonly [Dim, number], kind: "f32" | "u32"): Tensor {
    const tensor: Tensor = {
      name,
      format: { kind } satisfies Format,
      shape,
      buffer: INPUT_BUFFER,
      offset: this.#inputBytes,
    };
    this.#inputBytes += Math.ceil(tensorBytes(tensor, this.#builder.limits) / 256) * 256;
    return tensor;
  }

  /**
   * The end of a layer whose result is a + b, or a alone: where the plan is long enough another one begins, which has no other
   * activation of before.
   */
  endLayer(a: Tensor, b?: Tensor): Tensor {
    const [rows, width] = a.shape as [Dim, number];
    const count = typeof rows === "number" ? rows : this.#builder.limits[rows];
    if (++this.#layers * count < (this.options.layerRows ?? Infinity)) {
      return b === undefined ? a : this.sum("h", a, b);
    }
    this.#layers = 0;
    this.#carried ??= this.#stored("carried", [rows, width], "f32");
    this.add({ kind: "add", a, b, y: this.#carried, aScale: 1, bScale: 1 });
    this.#close();
    this.#builder = this.#fresh();
    return this.#carried;
  }

  /** A new activation, f32 [rows, width]. */
  fresh(name: string, rows: Dim, width: number): Tensor {
    return this.#builder.activation(name, [rows, width]);
  }

  /** The plan tensor of a weight. */
  tensor(weight: WeightTensor): Tensor {
    return this.places.tensor(weight);
  }

  /** epilogue(weight · prologue(x)), clipped where the weight is. */
  linear(
    name: string,
    { weight, clip }: ClippedLinear,
    { epilogue = { kind: "none" }, bias, ...from }: TowerLinear,
  ): Tensor {
    const y = this.fresh(name, from.x.shape[0], weight.shape[0]);
    this.add({
      kind: "linear",
      ...from,
      weights: [this.tensor(weight)],
      biases: bias && [this.tensor(bias)],
      epilogue,
      clip: this.#clip(clip),
      y,
      eps: this.eps,
    });
    return y;
  }

  /** gelu(gate · u) · (up · u) of the stream's norm u: one op where no bounds stand between. */
  gated(name: string, gate: ClippedLinear, up: ClippedLinear, from: TowerLinear & { hOut: Tensor }): Tensor {
    if (gate.clip === null && up.clip === null) {
      const y = this.fresh(name, from.x.shape[0], gate.weight.shape[0]);
      this.add({
        kind: "linear",
        ...from,
        weights: [this.tensor(gate.weight), this.tensor(up.weight)],
        epilogue: { kind: "geglu" },
        y,
        eps: this.eps,
      });
      return y;
    }
    const other = this.linear(`${name}.up`, up, from);
    const { hOut: x, preNorm, layer } = from;
    return this.linear(name, gate, { x, preNorm, epilogue: { kind: "gelu_mul", other, column: 0 }, layer });
  }

  /** rms_norm of x over all columns. */
  norm(name: string, x: Tensor, weight: WeightTensor | null, eps: number = this.eps): Tensor {
    const width = x.shape[1] as number;
    const y = this.fresh(name, x.shape[0], width);
    this.add({
      kind: "rms_norm",
      x,
      weight: weight === null ? undefined : this.tensor(weight),
      y,
      group: width,
      eps,
      inScale: 1,
    });
    return y;
  }

  /** a + b · bScale. */
  sum(name: string, a: Tensor, b: Tensor, bScale: number = 1): Tensor {
    const y = this.fresh(name, a.shape[0], a.shape[1] as number);
    this.add({ kind: "add", a, b, y, aScale: 1, bScale });
    return y;
  }

  /** Soft tokens from what the tower gives: rms_norm without weight, and the projection. */
  project(tower: Tensor, projection: WeightTensor): Tensor {
    return this.linear("soft_tokens", { weight: projection, clip: null }, {
      x: this.norm("projection_norm", tower, null),
    });
  }

  /** The plans, the last with its two outputs. */
  finish(tower: Tensor, soft: Tensor): TowerPlan {
    this.#builder.output(tower);
    this.#builder.output(soft);
    this.#close();
    const plans = this.#plans;
    for (const { buffers } of plans) buffers[INPUT_BUFFER].bytes = this.#inputBytes;
    return {
      plans,
      ops: plans.flatMap(({ ops }) => ops),
      limits: plans[0].limits,
      bytes: {
        arena: Math.max(...plans.map(({ buffers }) => buffers[0].bytes)),
        inputs: this.#inputBytes,
      },
      inputs: this.#inputs,
      tower,
      soft,
    };
  }

  #fresh(): PlanBuilder {
    const { rows, out_rows } = this.options.limits;
    const builder = new PlanBuilder({ rows, out_rows, sequences: 1, pages: 0 });
    builder.buffer("inputs", 0, true);
    for (const { name, bytes } of this.places.buffers) builder.buffer(name, bytes, false);
    return builder;
  }

  #close(): void {
    const { exact, checkFinite } = this.options;
    // A pass of a CPU is made for its run alone.
    this.#plans.push(
      this.#builder.finish({ groups: 0, vocabularySize: 1, exact, checkFinite, inPlace: true }),
    );
  }

  #clip(clip: StoredClip | null): Clip | undefined {
    if (clip === null) return;
    const [inputMin, inputMax, outputMin, outputMax] = this.places.clips.get(clip)!;
    return { input: [inputMin, inputMax], output: [outputMin, outputMax] };
  }
}
