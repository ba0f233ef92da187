/** Refusals of plans of towers, and of input blocks with soft tokens and blocks. */
import { assert, assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { encodeInput, type InputRow, type RunInput } from "../../src/engine/input.ts";
import { DeviceError } from "../../src/errors.ts";
import type { Op } from "../../src/schedule/ops.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { elementarySample, sampleBuffers, sampleInput, towerSample } from "./sample.ts";

// deno-lint-ignore no-explicit-any
type Loose = any; // an op with every field writable

Deno.test("a tower op whose shapes, indices or parameters do not fit is refused by name", async () => {
  using device = await Device.open("cpu");
  const shape = (name: string, shape: unknown[]) => (op: Loose) => op[name] = { ...op[name], shape };
  const set = (name: string, value: unknown) => (op: Loose) => op[name] = value;
  const cases: [Op["kind"], string, (op: Loose) => void][] = [
    ["embed", "soft has shape", shape("soft", [3, 63])],
    ["embed", "soft must be f32", (op) => op.soft = { ...op.soft, format: { kind: "bf16" } }],
    ["embed", "y shares bytes with soft", (op) => op.soft = { ...op.soft, buffer: 0, offset: op.y.offset }],
    [
      "linear",
      "clip takes one weight",
      (op) => (op.weights.push(op.weights[0]), op.epilogue = { kind: "none" }),
    ],
    ["linear", "silu takes one weight", (op) => (op.weights.push(op.weights[0]), op.clip = undefined)],
    ["linear", "least bound of a clip", (op) => op.clip.input = [1, -1]],
    ["linear", "least bound of a clip", (op) => op.clip.output = [1, -1]],
    ["linear", "is not finite", (op) => op.clip.output = [-Infinity, 1]],
    ["add_positions", "outside the table", set("count", 8)],
    ["add_positions", "outside the table", set("second", 8)],
    ["add_positions", "outside the table", set("step", 0xffffffff)],
    ["add_positions", "outside the table", set("count", 0)],
    ["add_positions", "positions has shape", shape("positions", ["rows", 3])],
    ["add_positions", "operand positions", (op) => op.positions = op.x],
    ["add_positions", "table has shape", shape("table", [14, 63])],
    [
      "patch_attention",
      "multiple of 4, 256 at most",
      (op) => (op.headDim = 2, op.heads = 32, op.kvHeads = 32),
    ],
    [
      "patch_attention",
      "multiple of 4, 256 at most",
      (op) => (op.headDim = 512, op.heads = 1, op.kvHeads = 1),
    ],
    ["patch_attention", "heads must be a multiple", set("kvHeads", 3)],
    ["patch_attention", "k has shape", set("kvHeads", 1)],
    ["patch_attention", "q_norm has shape", shape("qNorm", [16])],
    ["patch_attention", "must be positive", set("theta", 0)],
    ["patch_attention", "must be positive", set("eps", 0)],
    ["patch_attention", "y shares bytes with v", (op) => op.y = op.v],
    ["pool", "x has shape", shape("x", ["out_rows", 64])],
    ["pool", "members has shape", shape("members", ["rows", 3])],
    ["pool", "scale has shape", shape("scale", [63])],
    ["layer_norm", "bias has shape", shape("bias", [63])],
    ["layer_norm", "eps must be positive", set("eps", 0)],
    ["subsample", "frames_per_row", set("framesPerRow", 3)],
    ["subsample", "bins must be even", set("bins", 31)],
    ["subsample", "bins must be even", set("bins", 0)],
    ["subsample", "nine numbers", shape("weight", [4, 8])],
    ["subsample", "x has shape", set("bins", 16)],
    ["subsample", "valid has shape", shape("valid", ["rows", 1])],
    ["subsample", "y has shape", shape("y", ["out_rows", 64])],
    ["local_attention", "left must be 1", set("left", 0)],
    ["local_attention", "left must be 1", set("right", 5000)],
    ["local_attention", "head_dim is above 512", (op) => (op.heads = 1, op.headDim = 514)],
    ["local_attention", "relative must have an even", shape("relative", [64, 2])],
    ["local_attention", "valid has shape", shape("valid", ["rows", 1])],
    ["local_attention", "per_dim_scale has shape", shape("perDimScale", [16])],
    ["local_attention", "cap must be positive", set("cap", 0)],
    ["light_conv", "x has shape", shape("weight", [16, 3])],
    ["light_conv", "norm has shape", shape("norm", [16])],
  ];
  for (const [kind, words, change] of cases) {
    const sample = towerSample();
    change(sample.plan.ops.find((op) => op.kind === kind) as Loose);
    const buffers = sampleBuffers(device, sample);
    const error = await device.compile(sample.plan, buffers).then(() => undefined, (reason) => reason);
    assert(error instanceof DeviceError, `${kind}: expected "${words}" but found ${error}`);
    assertEquals(error.code, "invalid_plan", error.message);
    assertStringIncludes(error.message, words);
    for (const buffer of buffers) buffer.close();
  }
});

/** Three rows of one sequence at positions 3 to 5. */
function blockInput(): RunInput & { rows: InputRow[] } {
  return {
    ...sampleInput(),
    rows: [3, 4, 5].map((position): InputRow => ({ token: 1, position, sequence: 0, rowClass: "prefill" })),
    outputs: [{ row: 0 }, { row: 2 }],
    sequences: [[{ first: 0, pages: [] }, { first: 0, pages: [3] }]],
  };
}

Deno.test("soft tokens that do not exist and blocks that are not whole are refused", async () => {
  using device = await Device.open("cpu");
  const sample = towerSample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const run = (change: (input: ReturnType<typeof blockInput>) => void) => {
    const input = blockInput();
    change(input);
    pass.runSync(encodeInput(input), new Uint8Array(2 * 32 * 4));
  };
  run(() => {});
  run((i) => i.rows[1].soft = 2);
  run((i) => i.rows.forEach((row) => row.block = [3, 5]));
  run((i) => (i.rows[1].block = i.rows[2].block = [4, 5]));
  const refused = (words: string, change: (input: ReturnType<typeof blockInput>) => void) => {
    const error = assertThrows(() => run(change), DeviceError);
    assertEquals(error.code, "invalid_input");
    assertStringIncludes(error.message, words);
  };
  refused("row 1: there is no soft token 3 of 3", (i) => i.rows[1].soft = 3);
  refused("row 1: position 4 lies outside its block of positions 5 to 6", (i) => i.rows[1].block = [5, 6]);
  refused("row 0: its block of positions 3 to 4 is not whole", (i) => i.rows[0].block = [3, 4]);
  refused("row 1: its block of positions 2 to 4 is not whole", (i) => i.rows[1].block = [2, 4]);
  refused(
    "row 2: its block of positions 3 to 6 is not whole",
    (i) => i.rows.forEach((row) => row.block = [3, 6]),
  );
  refused("row 1: a decode row has the block", (i) => {
    i.rows.forEach((row) => row.block = [3, 5]);
    i.rows[1].rowClass = "decode";
  });
  refused("is not whole", (i) => {
    i.rows.forEach((row) => row.block = [3, 5]);
    i.rows[2].sequence = 1;
    i.sequences = [...i.sequences, i.sequences[0]];
  });
});

Deno.test("a plan that takes no soft tokens, or knows no blocks, refuses them", async () => {
  using device = await Device.open("cpu");
  const sample = elementarySample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  for (
    const [words, extra] of [["takes no soft tokens", { soft: 0 }], ["knows no blocks", {
      block: [3, 3],
    }]] as const
  ) {
    const input = blockInput();
    Object.assign(input.rows[0], extra);
    const error = assertThrows(
      () => pass.runSync(encodeInput({ ...input, outputMask: 0 }), new Uint8Array(0)),
      DeviceError,
    );
    assertStringIncludes(error.message, words);
  }
  const block = encodeInput(sampleInput());
  new DataView(block.buffer).setUint32(36, 4, true);
  assertStringIncludes(
    assertThrows(() => pass.runSync(block, new Uint8Array(1e4)), DeviceError).message,
    "unknown extras 00000004",
  );
});

Deno.test("an index that points outside what it points into contributes nothing", async () => {
  using device = await Device.open("cpu");
  const outputs: Uint8Array[] = [];
  for (const outside of [4, 0xffffffff]) {
    const changed = towerSample();
    const pool = changed.plan.ops.find((op) => op.kind === "pool")!;
    const { members } = pool as { members: Tensor };
    new DataView(changed.weights.buffer, members.offset).setUint32(0, outside, true);
    using pass = await device.compile(changed.plan, sampleBuffers(device, changed));
    const output = new Uint8Array(2 * 32 * 4);
    pass.runSync(encodeInput(blockInput()), output);
    outputs.push(output);
  }
  assertEquals(outputs[0], outputs[1]);
});
