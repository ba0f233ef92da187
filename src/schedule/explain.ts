/** A model's plan in figures: layers, KV owners, ops, dispatches, bytes, FLOPs and predicted time, from a config alone. */
import type { LayerConfig, ModelConfig } from "../checkpoint/config.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { checkFields, describe, flag, integer, number, positive } from "../arguments.ts";
import { InvalidArgument } from "../errors.ts";
import { costOf, type OpCost, storedBytes } from "./cost.ts";
import { DECODE_ROWS, type MatrixUnits, takesMatrixUnits } from "./dispatches.ts";
import { type KvFormat, pageBytes, pageGroups } from "./groups.ts";
import {
  CORES,
  type Machine,
  MACHINE_FIELDS,
  machineNamed,
  MACHINES,
  secondsOn,
  THREADGROUP_BYTES,
  type Work,
} from "./machines.ts";
import type { Op } from "./ops.ts";
import { phantomWeights } from "./phantom.ts";
import type { Tensor } from "./tensor.ts";
import { unplacedPlan } from "./unplaced.ts";

/** What to explain. */
export interface ExplainOptions {
  /** A chip such as `M4 Max` or `H200`, a kind (`metal`, `cuda`, `cpu`), or figures of your own. Default: the model's device. */
  device?: string | Machine;
  /** Tokens in the forward: 1 to 16 are decode rows, more are a prompt. Default 1. */
  rows?: number;
  /** Tokens in the cache before. Default 1024, or what the context leaves. */
  context?: number;
  /** Decode rows take a GPU's matrix units, as with this option of `load` in fast mode. Default: as the model was loaded, else false. */
  matrixUnits?: boolean;
}

/** Names of the fields of `ExplainOptions`. */
export const EXPLAIN_OPTIONS: readonly (keyof ExplainOptions)[] = [
  "device",
  "rows",
  "context",
  "matrixUnits",
];

/** One op of the plan with its cost. */
export interface ExplainedOp extends OpCost {
  /** Name of the op. */
  op: string;
  /** Layer that it belongs to; null outside layers. */
  layer: number | null;
  /** Rows that it computes. */
  rows: number;
  /** Predicted seconds. */
  seconds: number;
}

/** One layer of the network. */
export interface ExplainedLayer extends LayerConfig {
  /** Name of the page group that its attention reads. */
  pageGroup: string;
  /** Bytes of its weights. */
  weightBytes: number;
  /** Dispatches of its ops. */
  dispatches: number;
  /** Predicted seconds of its ops. */
  seconds: number;
}

/** A plan in figures. */
export interface Explanation {
  /** Type, layers and sizes. */
  model: {
    modelType: string;
    layers: number;
    hiddenSize: number;
    vocabularySize: number;
    /** Per-layer input width; 0 without. */
    perLayerInputSize: number;
    /** Bytes of all weights of the text network. */
    weightBytes: number;
  };
  /** The device of the prediction. */
  device: Machine;
  /** `decode` or `prefill`. */
  variant: "decode" | "prefill";
  /** Tokens in the forward. */
  rows: number;
  /** Tokens in the cache before. */
  context: number;
  /** Page groups of the KV cache. */
  groups: { name: string; layers: number[]; window: number | null; bytesPerToken: number }[];
  /** Layers in order. */
  layers: ExplainedLayer[];
  /** Ops in order. */
  ops: ExplainedOp[];
  /** Sums over all ops; the seconds include what a forward takes beside its dispatches. */
  totals: OpCost & { ops: number; seconds: number; secondsPerToken: number };
}

/** Ops that are matrix products over all of their rows. */
const PRODUCTS: ReadonlySet<Op["kind"]> = new Set([
  "linear",
  "expert_gate_up",
  "expert_down",
  "expert_linear",
]);

/** Explains a model; `weights` tell the true formats, and may be absent. Throws `InvalidArgument`. */
export function explainPlan(
  config: ModelConfig,
  options: ExplainOptions = {},
  weights: TextWeights = phantomWeights(config),
  kvFormat: KvFormat = "f16",
): Explanation {
  const machine = machineOf(options.device === undefined ? "cpu" : options.device);
  const rows = integer("rows", options.rows, 1, 1 << 20) ?? 1;
  const context = integer("context", options.context, 0, 1 << 30) ??
    Math.max(0, Math.min(1024, config.contextLength - rows));
  const variant = rows <= DECODE_ROWS ? "decode" : "prefill";
  const units = matrixUnitsOf(options, machine);
  const groups = pageGroups(config);
  const { plan, tensors } = unplacedPlan(config, weights, { variant, rows, kvFormat });
  const shape = { rows, outRows: variant === "decode" ? rows : 1, context };
  const ops = plan.ops.map((op): ExplainedOp => {
    const cost = costOf(op, shape, units, machine.clusters);
    const outputs = variant === "decode" || yOf(op).shape[0] === "out_rows";
    return {
      op: op.kind,
      layer: op.layer ?? null,
      rows: outputs ? shape.outRows : rows,
      ...cost,
      seconds: secondsOn(machine, { ...cost, arithmetic: arithmeticOf(op, variant, units) }),
    };
  });
  const sum = (list: ExplainedOp[], key: "dispatches" | "bytes" | "weightBytes" | "flops" | "seconds") =>
    list.reduce((total, op) => total + op[key], 0);
  const seconds = sum(ops, "seconds") + (machine.forward ?? 0);
  return {
    model: {
      modelType: config.modelType,
      layers: config.layers.length,
      hiddenSize: config.hiddenSize,
      vocabularySize: config.vocabularySize,
      perLayerInputSize: config.perLayerInputSize,
      weightBytes: tensors.reduce((total, tensor) => total + storedBytes(tensor), 0),
    },
    device: machine,
    variant,
    rows,
    context,
    groups: groups.map((group) => ({
      name: group.name,
      layers: group.layers,
      window: group.window,
      bytesPerToken: pageBytes(group, kvFormat) / 32,
    })),
    layers: config.layers.map((layer) => {
      const own = ops.filter((op) => op.layer === layer.index);
      return {
        ...layer,
        pageGroup: groups.find((group) => group.layers.includes(layer.kvOwner))!.name,
        weightBytes: sum(own, "weightBytes"),
        dispatches: sum(own, "dispatches"),
        seconds: sum(own, "seconds"),
      };
    }),
    ops,
    totals: {
      ops: ops.length,
      dispatches: sum(ops, "dispatches"),
      bytes: sum(ops, "bytes"),
      weightBytes: sum(ops, "weightBytes"),
      flops: sum(ops, "flops"),
      seconds,
      secondsPerToken: seconds / rows,
    },
  };
}

function matrixUnitsOf({ matrixUnits }: ExplainOptions, machine: Machine): MatrixUnits | undefined {
  if (!flag("matrixUnits", matrixUnits)) return undefined;
  const { threadgroupBytes = THREADGROUP_BYTES, copiesCodes = false, cores = CORES } = machine;
  return { threadgroupBytes, copiesCodes, cores };
}

function arithmeticOf(
  op: Op,
  variant: "decode" | "prefill",
  units: MatrixUnits | undefined,
): Work["arithmetic"] {
  if (variant === "prefill") return PRODUCTS.has(op.kind) ? "matrix" : "plain";
  return units !== undefined && takesMatrixUnits(op) ? "matrix" : "plain";
}

function machineOf(device: string | Machine): Machine {
  if (typeof device === "object" && device !== null) return ownMachine(device);
  const machine = machineNamed(String(device));
  if (machine) return machine;
  throw new InvalidArgument(
    `No figures are known for the device ${describe(device)}. Known: metal, cuda, ${
      MACHINES.map((m) => m.name).join(", ")
    }.`,
  );
}

/** Checks figures that a caller gives. */
function ownMachine(machine: Machine): Machine {
  const { name, bandwidth, flops, dispatch } = machine;
  if (typeof name !== "string" || bandwidth === undefined || flops === undefined || dispatch === undefined) {
    throw new InvalidArgument(
      "A device of your own needs name, bandwidth (bytes/s), flops (1/s) and dispatch (s).",
    );
  }
  checkFields(machine, MACHINE_FIELDS);
  const most = 1e30; // that no sum passes what a number holds
  positive("bandwidth", bandwidth, most);
  positive("flops", flops, most);
  positive("matrixFlops", machine.matrixFlops, most);
  for (const key of ["bandwidthShare", "flopsShare", "matrixShare"] as const) positive(key, machine[key], 1);
  for (const key of ["dispatch", "forward"] as const) number(key, machine[key], 0, 1e9);
  integer("threadgroupBytes", machine.threadgroupBytes, 0, 2 ** 31);
  flag("copiesCodes", machine.copiesCodes);
  flag("clusters", machine.clusters);
  integer("cores", machine.cores, 1, 1e6);
  return machine;
}

function yOf(op: Op): Tensor {
  return op.kind === "candidates" ? op.ids : op.kind === "kv_write" ? op.k : op.y;
}
