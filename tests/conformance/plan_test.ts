/** Plans: where activations lie, and the bytes that the device reads. */
import { GGUF_BLOCKS } from "../../src/checkpoint/gguf_types.ts";
import { assert, assertEquals } from "@std/assert";
import { encodeInput, NO_PAGE, type RunInput } from "../../src/engine/input.ts";
import { operandsOf } from "../../src/schedule/operands.ts";
import type { Op } from "../../src/schedule/ops.ts";
import {
  encodePlan,
  type Limits,
  OP_CODES,
  type Plan,
  PlanBuilder,
  tensorBytes,
} from "../../src/schedule/plan.ts";
import type { Dim, Format, Tensor } from "../../src/schedule/tensor.ts";
import { fixture } from "../oracle/model.ts";
import { fixtureModel } from "../support/models.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { decodeInput, decodePlan } from "./decode.ts";
import { Random } from "../../src/conformance/random.ts";

/** A plan of random adds and norms over tensors of random widths, in which old results are read again at random. */
function randomPlan(seed: number, reuse: boolean): Plan {
  const random = new Random(seed);
  const limits: Limits = { rows: 1 + random.integer(9), out_rows: 2, sequences: 1, pages: 1 };
  const builder = new PlanBuilder(limits);
  const stored = builder.buffer("input", 1 << 20, false);
  const widths = [3, 64, 100, 257];
  const byWidth = new Map<number, Tensor[]>(widths.map((width) => [width, [{
    name: `input${width}`,
    format: { kind: "f32" },
    shape: ["rows", width],
    buffer: stored,
    offset: 4096 * width,
  }]]));
  const count = 1 + random.integer(40);
  for (let i = 0; i < count; i++) {
    const width = widths[random.integer(widths.length)];
    const known = byWidth.get(width)!;
    const y = builder.activation(`t${i}`, ["rows", width]);
    const any = () => known[random.integer(known.length)];
    if (random.integer(3) === 0) {
      builder.add({ kind: "rms_norm", x: any(), y, group: width, eps: 1e-6, inScale: 1 });
    } else {
      builder.add({ kind: "add", a: any(), b: any(), y, aScale: 1, bScale: 0.5 });
    }
    known.push(y);
    if (random.integer(8) === 0) builder.output(y);
  }
  return builder.finish({ groups: 0, vocabularySize: 1, exact: true, reuse });
}

/** Throws where an op's bytes hold anything but what was written to its tensors: plays the plan over byte owners. */
function checkOwners({ ops, outputs, limits, buffers }: Plan): void {
  const owner = new Array<Tensor | undefined>(buffers[0].bytes);
  const range = (tensor: Tensor) => [tensor.offset, tensor.offset + tensorBytes(tensor, limits)];
  const holds = (tensor: Tensor, when: string) => {
    const [start, end] = range(tensor);
    for (let i = start; i < end; i++) {
      assert(owner[i] === tensor, `byte ${i} of ${tensor.name} holds ${owner[i]?.name} ${when}`);
    }
  };
  ops.forEach((op, index) => {
    const operands = operandsOf(op).filter((tensor) => tensor?.buffer === 0) as Tensor[];
    const written = new Set(operands.filter((tensor) => tensor === ("y" in op ? op.y : undefined)));
    for (const tensor of operands) if (!written.has(tensor)) holds(tensor, `at op ${index}`);
    for (const tensor of written) {
      const [start, end] = range(tensor);
      assert(start % 256 === 0 && end <= owner.length, `${tensor.name} lies at ${start} … ${end}`);
      for (let i = start; i < end; i++) owner[i] = tensor;
    }
    for (const tensor of operands) holds(tensor, `after op ${index}`);
  });
  for (const tensor of outputs) holds(tensor, "at the end");
}

Deno.test("plan: no activation is overwritten while something still reads it, in 300 random plans", () => {
  for (let seed = 0; seed < 300; seed++) {
    checkOwners(randomPlan(seed, true));
    if (seed % 10 === 0) checkOwners(randomPlan(seed, false));
  }
});

Deno.test("plan: without reuse no two activations share a byte, and with reuse the arena is smaller", () => {
  let smaller = 0;
  for (let seed = 0; seed < 50; seed++) {
    const plan = randomPlan(seed, false);
    const tensors = [...new Set(plan.ops.flatMap(operandsOf))].filter((t) => t?.buffer === 0) as Tensor[];
    tensors.sort((a, b) => a.offset - b.offset);
    for (let i = 1; i < tensors.length; i++) {
      const end = tensors[i - 1].offset + tensorBytes(tensors[i - 1], plan.limits);
      assert(end <= tensors[i].offset);
    }
    const reused = randomPlan(seed, true).buffers[0].bytes;
    assert(reused <= plan.buffers[0].bytes);
    if (reused < plan.buffers[0].bytes) smaller++;
  }
  assert(smaller > 30, `only ${smaller} of 50 arenas shrank`);
});

Deno.test("plan: the schedules of a model keep every activation until its last reader", async () => {
  const folder = fixtureModel("e2b");
  assert(folder);
  const model = await fixture(folder);
  for (const variant of ["decode", "prefill"] as const) {
    for (const fuse of [true, false]) {
      const plan = model.plan({
        variant,
        fuse,
        exact: true,
        limits: { rows: 2, out_rows: 2, sequences: 1, pages: 16 },
      });
      checkLives(plan);
    }
  }
});

/** As `checkOwners`, by intervals: every tensor alive at an op lies apart from every other. */
function checkLives({ ops, outputs, limits }: Plan): void {
  const lives = new Map<Tensor, [number, number]>();
  ops.forEach((op, index) => {
    for (const tensor of operandsOf(op)) {
      if (tensor?.buffer === 0) lives.set(tensor, [lives.get(tensor)?.[0] ?? index, index]);
    }
  });
  for (const tensor of outputs) lives.set(tensor, [lives.get(tensor)![0], ops.length]);
  const all = [...lives];
  for (const [a, [aFirst, aLast]] of all) {
    for (const [b, [bFirst, bLast]] of all) {
      if (a === b || aLast < bFirst || bLast < aFirst) continue;
      const apart = a.offset + tensorBytes(a, limits) <= b.offset ||
        b.offset + tensorBytes(b, limits) <= a.offset;
      assert(apart, `${a.name} and ${b.name} share bytes while both are alive`);
    }
  }
}

const FORMATS: Record<string, number> = {
  f32: 0,
  f16: 1,
  bf16: 2,
  u32: 3,
  i8: 4,
  affine: 16,
  mxfp4: 17,
  mxfp8: 18,
  nvfp4: 19,
};
/** The code of a format in plan.h. */
const codeOf = (format: Format) =>
  format.kind === "gguf" ? 32 + GGUF_BLOCKS[format.type].number : FORMATS[format.kind];
const SYMBOLS = ["rows", "out_rows", "sequences", "pages"];

/** Numbers of an op that travel as ints, in the order of plan.h. */
function intsOf(op: Op): number[] {
  switch (op.kind) {
    case "per_layer_inputs":
      return [op.slice];
    case "linear":
      return [
        ["none", "geglu", "gelu_mul", "softcap", "silu"].indexOf(op.epilogue.kind),
        op.epilogue.kind === "gelu_mul" ? op.epilogue.column : 0,
      ];
    case "attention":
      return [
        op.heads,
        op.kvHeads,
        op.headDim,
        op.rope.rotatedPairs,
        op.kv.layer,
        op.kv.group,
        op.window ?? 0,
      ];
    case "centroid_head":
      return [op.topK];
    case "expert_linear":
      return [op.firstRow];
    case "rms_norm":
      return [op.group];
    case "gelu_mul":
      return [op.column];
    case "rope":
      return [op.heads, op.headDim, op.rope.rotatedPairs];
    case "kv_write":
      return [op.kvHeads, op.headDim, op.kv.layer, op.kv.group];
    case "attend":
      return [op.heads, op.kvHeads, op.headDim, op.kv.layer, op.kv.group, op.window ?? 0];
    case "add_positions":
      return [op.count, op.step, op.second];
    case "patch_attention":
      return [op.heads, op.kvHeads, op.headDim];
    case "subsample":
      return [op.bins, op.framesPerRow];
    case "local_attention":
      return [op.heads, op.headDim, op.left, op.right];
    default:
      return [];
  }
}

/** Numbers of an op that travel as floats, in the order of plan.h. */
function floatsOf(op: Op): number[] {
  switch (op.kind) {
    case "embed":
      return [op.scale];
    case "per_layer_inputs":
      return [op.eps, op.projectionScale, op.tableScale, op.outScale];
    case "linear":
      return [
        op.eps,
        op.epilogue.kind === "softcap" ? op.epilogue.cap : 0,
        ...(op.clip ? [...op.clip.input, ...op.clip.output] : []),
      ];
    case "attention":
      return [op.rope.theta, op.eps, op.scoreScale, op.rope.positionScale, op.rope.positionOffset ?? 0];
    case "patch_attention":
      return [op.theta, op.eps, op.scoreScale];
    case "pool":
      return [op.factor];
    case "local_attention":
      return [op.shift, op.qScale, op.kScale, op.cap];
    case "subsample":
    case "light_conv":
    case "layer_norm":
    case "expert_gate_up":
    case "add_norms":
    case "centroid_head":
      return [op.eps];
    case "draft_input":
      return [op.scale];
    case "route":
    case "rms_norm":
      return [op.eps, op.inScale];
    case "add":
      return [op.aScale, op.bScale];
    case "softcap":
      return [op.cap];
    case "rope":
      return [op.rope.theta, op.rope.positionScale, op.rope.positionOffset ?? 0];
    case "attend":
      return [op.scoreScale];
    default:
      return [];
  }
}

/** Flags of an op, as plan.h numbers them. */
function flagsOf(op: Op): number {
  const block = (rule: string | undefined) => rule === "window" ? 8 : rule === "whole" ? 16 : 0;
  switch (op.kind) {
    case "attention":
      return +op.ownsKv + 2 * +op.keysAreValues + 4 * +op.normValues + block(op.block);
    case "attend":
      return block(op.block);
    case "linear":
      return op.clip ? 1 : 0;
    case "subsample":
      return op.channelsLast ? 1 : 0;
    default:
      return 0;
  }
}

/** Compares a plan with what its bytes say. */
function checkRoundTrip(plan: Plan): void {
  const records = decodePlan(encodePlan(plan));
  assertEquals([records.magic, records.version], [0x4c50424d, 1]);
  assertEquals(
    records.flags,
    (plan.exact ? 1 : 0) + (plan.checkFinite ? 2 : 0) + (plan.inPlace ? 4 : 0),
  );
  assertEquals([records.groups, records.vocabularySize], [plan.groups, plan.vocabularySize]);
  assertEquals(records.symbols, SYMBOLS.map((symbol) => plan.limits[symbol as keyof Limits]));
  assertEquals(
    records.buffers,
    plan.buffers.map(({ bytes, writable }) => ({ bytes, writable: writable ? 1 : 0 })),
  );
  const same = (index: number, tensor: Tensor | undefined, what: string) => {
    if (tensor === undefined) return assertEquals(index, 0xffffffff, what);
    const { format } = tensor;
    const record = records.tensors[index];
    assertEquals(
      [record.format, record.buffer, record.offset],
      [codeOf(format), tensor.buffer, tensor.offset],
      what,
    );
    assertEquals(
      record.dims,
      tensor.shape.map((dim: Dim) => typeof dim === "number" ? dim : -1 - SYMBOLS.indexOf(dim)),
      what,
    );
    const quantised = [format.kind === "affine" ? format.bits : 0, "group" in format ? format.group : 0];
    assertEquals([record.bits, record.group], quantised, what);
    same(record.scales, tensor.scales, what);
    same(record.biases, tensor.biases, what);
  };
  assertEquals(records.ops.length, plan.ops.length);
  plan.ops.forEach((op, i) => {
    const record = records.ops[i];
    assertEquals([record.kind, record.layer], [OP_CODES[op.kind], op.layer ?? 0xffffffff]);
    assertEquals(record.flags, flagsOf(op));
    const padded = (numbers: number[]) => [...numbers, ...new Array(8 - numbers.length).fill(0)];
    assertEquals(record.ints, padded(intsOf(op)));
    assertEquals(record.floats, padded(floatsOf(op).map(Math.fround)));
    const operands = operandsOf(op);
    record.operands.forEach((index, slot) => same(index, operands[slot], `${op.kind} operand ${slot}`));
  });
  plan.outputs.forEach((tensor, i) => same(records.outputs[i], tensor, `output ${i}`));
}

Deno.test("plan: the bytes of every op's plan decode to the plan", () => {
  const cases = allCases();
  for (const op of new Set(cases.map((c) => c.op))) {
    for (const c of cases.filter((c) => c.op === op).filter((_, i) => i % 40 === 0)) {
      checkRoundTrip(c.build(true).plan);
    }
  }
});

Deno.test("plan: the bytes of whole models' plans decode to the plans", async () => {
  for (const row of ["e2b", "e4b-mlx-mixed"]) {
    const folder = fixtureModel(row);
    assert(folder);
    const model = await fixture(folder);
    for (const fuse of [true, false]) {
      const plan = model.plan({ variant: "prefill", fuse, exact: fuse, checkFinite: true });
      checkRoundTrip(plan);
      checkRoundTrip({ ...plan, inPlace: true });
    }
  }
});

Deno.test("plan: an input block decodes to the input", () => {
  const mask = Uint32Array.of(7, 0x80000000, 1);
  const input: RunInput = {
    rows: [
      { token: 5, position: 40, sequence: 1, rowClass: "decode" },
      { token: 69, position: 0, sequence: 0, rowClass: "prefill" },
      { token: 0, position: 1, sequence: 0, rowClass: "prefill" },
    ],
    outputs: [
      {
        row: 0,
        adjustments: [{ id: 1, multiply: 0.5, add: 2 }, { id: 60, multiply: 1, add: -1 }],
        temperature: 0.5,
        mask,
      },
      { row: 2, adjustments: [{ id: 9, multiply: 2, add: 0 }], temperature: 1, mask: undefined },
    ],
    sequences: [
      [{ first: 0, pages: [3] }, { first: 0, pages: [9] }],
      [{ first: 1, pages: [4] }, { first: 0, pages: [NO_PAGE, 2] }],
    ],
    groups: 2,
    vocabularySize: 70,
    outputMask: 5,
  };
  assertEquals(decodeInput(encodeInput(input), 2, 70), input);
});

Deno.test("plan: the input blocks of the conformance cases decode to their inputs", () => {
  for (const c of allCases().filter(({ op }, i) => i % 20 === 0 || op === "candidates")) {
    const { input } = c.build(true);
    const { rows, outputs, sequences, outputMask } = decodeInput(
      encodeInput(input),
      input.groups,
      input.vocabularySize,
    );
    // What is absent does not travel.
    assertEquals(rows, input.rows.map((row) => JSON.parse(JSON.stringify(row))));
    assertEquals(outputMask, input.outputMask);
    assertEquals(
      outputs.map(({ row, mask, temperature, adjustments }) => ({ row, mask, temperature, adjustments })),
      input.outputs.map(({ row, mask, temperature = 1, adjustments = [] }) => ({
        row,
        mask,
        temperature,
        adjustments: adjustments.map((a) => ({ ...a })),
      })),
    );
    assertEquals(sequences, input.sequences.map((tables) => tables.map((t) => ({ ...t }))));
  }
});
