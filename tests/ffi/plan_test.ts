import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { encodePlan, type Plan, PlanBuilder } from "../../src/schedule/plan.ts";
import type { AttentionOp, LinearOp, Op } from "../../src/schedule/ops.ts";
import type { GgufType } from "../../src/checkpoint/gguf_types.ts";
import type { Format, Tensor } from "../../src/schedule/tensor.ts";
import { DeviceError } from "../../src/errors.ts";
import { elementarySample, expertSample, fusedSample, type Sample, sampleBuffers } from "./sample.ts";

type Change = (op: Record<string, unknown>, plan: Plan) => void;

/** Changes the n-th op of a kind in a fresh sample and expects the plan to be refused with all of these words. */
async function refused(
  device: Device,
  sample: Sample,
  kind: Op["kind"],
  n: number,
  words: string[],
  change: Change,
): Promise<void> {
  const op = sample.plan.ops.filter((op) => op.kind === kind)[n];
  change(op as unknown as Record<string, unknown>, sample.plan);
  const buffers = sampleBuffers(device, sample);
  const error = await device.compile(sample.plan, buffers).then(() => undefined, (reason) => reason);
  assert(error instanceof DeviceError, `expected "${words}" but found ${error}`);
  assertEquals(error.code, "invalid_plan", error.message);
  for (const word of words) assertStringIncludes(error.message, word);
  for (const buffer of buffers) buffer.close();
}

/** The same tensor with other properties; weights keep their scales. */
function like(tensor: unknown, changes: Partial<Tensor>): Tensor {
  return { ...(tensor as Tensor), ...changes };
}

/** Changes one operand. */
function operand(name: string, changes: Partial<Tensor>): Change {
  return (op) => op[name] = like(op[name], changes);
}

function parameter(name: string, value: unknown): Change {
  return (op) => op[name] = value;
}

Deno.test("a linear whose shapes, formats or parts do not fit is refused by name", async () => {
  using device = await Device.open("cpu");
  const cases: [number, string[], Change][] = [
    [1, ["linear, layer 0", "pre_norm", "[63]", "[64]"], operand("preNorm", { shape: [63] })],
    [1, ["y has shape", "[rows, 127]"], operand("y", { shape: ["rows", 127] })],
    [1, ["y has shape", "[out_rows, 128]", "[rows, 128]"], operand("y", { shape: ["out_rows", 128] })],
    [1, ["operand x", "f16"], operand("x", { format: { kind: "f16" } })],
    [1, ["symbol rows or out_rows"], operand("x", { shape: ["sequences", 64] })],
    [1, ["symbol rows or out_rows"], operand("x", { shape: [4, 64] })],
    [1, ["eps must be positive"], parameter("eps", 0)],
    [1, ["float 0 is not finite"], parameter("eps", NaN)],
    [1, ["float 0 is not finite"], parameter("eps", Infinity)],
    [1, ["y shares bytes with x"], (op) => (op.y as Tensor).offset = (op.x as Tensor).offset + 4],
    [
      1,
      ["bias1 has shape"],
      (op) => (op as unknown as LinearOp).biases![1] = like((op.biases as Tensor[])[1], { shape: [31] }),
    ],
    [
      1,
      ["w1 has shape", "[32, 63]"],
      (op) => (op.weights as Tensor[])[1] = like((op.weights as Tensor[])[1], { shape: [32, 63] }),
    ],
    [1, ["y lies in the read-only buffer 1"], operand("y", { buffer: 1, offset: 0 })],
    [1, ["operand w0 is absent"], parameter("weights", [])],
    [2, ["residual has shape"], operand("residual", { shape: ["rows", 63] })],
    [2, ["post_norm and scalar need a residual"], parameter("residual", undefined)],
    [2, ["scalar has shape [2]"], operand("scalar", { shape: [2] })],
    [2, ["h_out shares bytes with residual"], (op) => op.hOut = op.residual],
    [2, ["two weights of one shape"], (op) => op.weights = [(op.weights as Tensor[])[0]]],
    [3, ["columns read from other"], (op) => (op.epilogue as { column: number }).column = 33],
    [3, ["columns read from other"], (op) => (op.epilogue as { column: number }).column = 0xffffffff],
    [5, ["softcap must be positive"], (op) => (op.epilogue as { cap: number }).cap = -1],
  ];
  for (const [n, words, change] of cases) await refused(device, fusedSample(), "linear", n, words, change);
});

Deno.test("an attention that names heads, pages or sizes that cannot be is refused", async () => {
  using device = await Device.open("cpu");
  const kv = (changes: Partial<AttentionOp["kv"]>): Change => (op) =>
    op.kv = { ...(op.kv as AttentionOp["kv"]), ...changes };
  const pool = (changes: Partial<Tensor>): Change => (op) => {
    const { pages, ...rest } = op.kv as AttentionOp["kv"];
    op.kv = { ...rest, pages: like(pages, changes) };
  };
  const rope = (changes: object): Change => (op) => op.rope = { ...(op.rope as object), ...changes };
  const cases: [string[], Change][] = [
    [["heads must be a multiple of kv_heads"], (op) => (op.heads = 3, op.kvHeads = 2)],
    [["heads must be 1 to"], parameter("heads", 0)],
    [["heads must be 1 to"], parameter("kvHeads", 0)],
    [["head_dim must be even"], parameter("headDim", 31)],
    [["rotated_pairs"], rope({ rotatedPairs: 17 })],
    [["theta and position_scale must be positive"], rope({ theta: 0 })],
    [["theta and position_scale must be positive"], rope({ positionScale: -1 })],
    [["kv_layer lies outside"], kv({ layer: 2 })],
    [["kv_layer lies outside"], kv({ layer: 0x80000000 })],
    [["no such page group"], kv({ group: 2 })],
    [["kv has shape"], pool({ shape: [6, 4, 1, 16, 32] })],
    [["operand kv", "rank (4)"], pool({ shape: [6, 4, 32, 32] })],
    [["operand kv", "bf16"], pool({ format: { kind: "bf16" } })],
    // codes carry a scale of four bytes for each head of a token
    [["kv has shape"], pool({ format: { kind: "i8" } })],
    [["kv has shape"], pool({ format: { kind: "i8" }, shape: [6, 4, 1, 32, 40] })],
    [["operand kv"], pool({ format: { kind: "i8" }, shape: [6, 4, 1, 32, 36], offset: 2 })],
    [["outside buffer 2"], pool({ shape: [7, 4, 1, 32, 32] })],
    [["outside buffer 2"], pool({ offset: 4 })],
    [
      ["shares bytes with"],
      (op) => pool({ buffer: 0, offset: 0, shape: [1, 4, 1, 32, 32] })(op, undefined!),
    ],
    [["qkv has shape"], parameter("ownsKv", false)],
    [["qkv has shape"], parameter("keysAreValues", true)],
    [["q_norm has shape [16]"], operand("qNorm", { shape: [16] })],
    [["y has shape"], operand("y", { shape: ["rows", 32] })],
    [["eps must be positive"], parameter("eps", -1)],
  ];
  for (const [words, change] of cases) await refused(device, fusedSample(), "attention", 0, words, change);
});

Deno.test("the other ops are refused where their shapes or parameters do not fit", async () => {
  using device = await Device.open("cpu");
  const fused: [Op["kind"], string[], Change][] = [
    ["embed", ["fewer rows than the vocabulary"], (_, plan) => plan.vocabularySize = 41],
    ["embed", ["y has shape"], operand("y", { shape: ["rows", 65] })],
    ["per_layer_inputs", ["multiple of the slice"], parameter("slice", 24)],
    ["per_layer_inputs", ["multiple of the slice"], parameter("slice", 0)],
    ["per_layer_inputs", ["norm has shape"], operand("norm", { shape: [31] })],
    ["per_layer_inputs", ["y shares bytes with projected"], (op) => op.y = op.projected],
    ["gather", ["x has shape [out_rows, 64]"], operand("x", { shape: ["out_rows", 64] })],
    ["gather", ["y has shape [rows, 64]"], operand("y", { shape: ["rows", 64] })],
    ["candidates", ["ids"], operand("ids", { format: { kind: "f32" } })],
    ["candidates", ["values has shape"], operand("values", { shape: ["out_rows", 255] })],
    ["candidates", ["logits has shape"], operand("logits", { shape: ["out_rows", 39] })],
    [
      "candidates",
      ["values shares bytes with stats"],
      (op) => (op.stats as Tensor).offset = (op.values as Tensor).offset,
    ],
  ];
  for (const [kind, words, change] of fused) await refused(device, fusedSample(), kind, 0, words, change);
  const elementary: [Op["kind"], string[], Change][] = [
    ["rms_norm", ["multiple of the group"], parameter("group", 0)],
    ["rms_norm", ["multiple of the group"], parameter("group", 48)],
    ["rms_norm", ["weight has shape"], parameter("group", 64)],
    ["rms_norm", ["eps must be positive"], parameter("eps", 0)],
    ["rms_norm", ["y shares bytes with x"], (op) => op.y = op.x],
    ["add", ["b has shape"], operand("b", { shape: ["out_rows", 64] })],
    ["add", ["scalar has shape"], operand("scalar", { shape: [2] })],
    ["gelu_mul", ["columns read from b"], parameter("column", 33)],
    ["softcap", ["cap must be positive"], parameter("cap", 0)],
    ["rope", ["x has shape"], parameter("heads", 3)],
    ["rope", ["head_dim must be even"], (op) => (op.headDim = 1, op.heads = 64)],
    ["kv_write", ["k has shape"], operand("k", { shape: ["rows", 64] })],
    ["kv_write", ["kv shares bytes with k"], (op, plan) => {
      plan.buffers[0].bytes = 1 << 16;
      const kv = op.kv as AttentionOp["kv"];
      op.kv = {
        ...kv,
        pages: like(kv.pages, { buffer: 0, offset: 0, shape: [1, 4, 1, 32, 32] }),
      };
    }],
    ["attend", ["q has shape"], parameter("heads", 1)],
    ["attend", ["kv has shape"], parameter("kvHeads", 2)],
  ];
  for (const [kind, words, change] of elementary) {
    await refused(device, elementarySample(), kind, 0, words, change);
  }
});

Deno.test("ops of experts and drafters whose shapes or parts do not fit are refused by name", async () => {
  using device = await Device.open("cpu");
  const weight = (i: number, changes: Partial<Tensor>): Change => (op) =>
    (op.weights as Tensor[])[i] = like((op.weights as Tensor[])[i], changes);
  const cases: [Op["kind"], number, string[], Change][] = [
    ["route", 0, ["scale has shape", "[63]"], operand("scale", { shape: [63] })],
    ["route", 0, ["per_expert_scale has shape"], operand("perExpertScale", { shape: [4] })],
    ["route", 0, ["more experts are chosen"], operand("experts", { shape: ["rows", 6] })],
    ["route", 0, ["experts has shape"], operand("experts", { shape: ["out_rows", 2] })],
    ["route", 0, ["operand experts", "f32"], operand("experts", { format: { kind: "f32" } })],
    ["route", 0, ["y has shape", "[rows, 3]"], operand("y", { shape: ["rows", 3] })],
    [
      "route",
      0,
      ["experts shares bytes with y"],
      (op) => (op.y as Tensor).offset = (op.experts as Tensor).offset,
    ],
    ["route", 0, ["eps and in_scale must be positive"], parameter("inScale", 0)],
    ["route", 0, ["experts lies in the read-only buffer"], operand("experts", { buffer: 1, offset: 0 })],
    [
      "expert_gate_up",
      0,
      ["as many gate rows"],
      weight(0, { shape: [5, 63, 64], scales: undefined, biases: undefined, format: { kind: "bf16" } }),
    ],
    [
      "expert_gate_up",
      0,
      ["operand w0", "rank (2)"],
      weight(0, { shape: [320, 64], scales: undefined, biases: undefined, format: { kind: "bf16" } }),
    ],
    ["expert_gate_up", 0, ["y has shape"], operand("y", { shape: ["rows", 63] })],
    ["expert_gate_up", 0, ["eps must be positive"], parameter("eps", 0)],
    ["expert_gate_up", 1, ["w1 has shape"], weight(1, { shape: [4, 32, 64] })],
    ["expert_gate_up", 1, ["operand w0 is absent"], parameter("weights", [])],
    ["expert_down", 0, ["x has shape"], operand("x", { shape: ["rows", 32] })],
    ["expert_down", 0, ["shares has shape"], operand("shares", { shape: ["rows", 1] })],
    ["expert_down", 0, ["y has shape"], operand("y", { shape: ["rows", 63] })],
    ["top_k", 0, ["per_expert_scale has shape"], operand("logits", { shape: ["rows", 4] })],
    ["expert_linear", 0, ["rows read from w lie outside"], parameter("firstRow", 33)],
    ["expert_linear", 0, ["rows read from w lie outside"], parameter("firstRow", 0xffffffff)],
    ["expert_linear", 0, ["neither one part nor one"], operand("x", { shape: ["rows", 32] })],
    ["expert_linear", 0, ["no multiple of the slots"], operand("y", { shape: ["rows", 63] })],
    ["expert_sum", 0, ["x has shape"], operand("shares", { shape: ["rows", 1] })],
    ["add_norms", 0, ["b_norm has shape"], operand("bNorm", { shape: [63] })],
    ["add_norms", 0, ["operand a_norm is absent"], parameter("aNorm", undefined)],
    ["draft_input", 0, ["state has shape"], operand("state", { shape: ["rows", 63] })],
    ["centroid_head", 0, ["top_k must be"], parameter("topK", 9)],
    ["centroid_head", 0, ["top_k must be"], parameter("topK", 0)],
    ["centroid_head", 0, ["do not divide"], operand("ordering", { shape: [7, 5] })],
    ["centroid_head", 0, ["scores has shape"], operand("scores", { shape: ["rows", 7] })],
    ["centroid_head", 0, ["eps must be positive"], parameter("eps", 0)],
  ];
  for (const [kind, n, words, change] of cases) await refused(device, expertSample(), kind, n, words, change);
});

Deno.test("tensors outside their buffer, misaligned or of overflowing size are refused", async () => {
  using device = await Device.open("cpu");
  const table = (changes: Partial<Tensor>): Change => (op) => op.table = like(op.table, changes);
  const gguf = (type: GgufType): Format => ({ kind: "gguf", type });
  const bare = { scales: undefined, biases: undefined };
  const affine = (bits: number, group: number) => ({ kind: "affine", bits, group }) as Format;
  const cases: [string[], Change][] = [
    [["outside buffer 1"], table({ offset: 2 ** 40 })],
    [["outside buffer 1"], table({ offset: -4 })],
    [["not aligned to"], table({ offset: 1 })],
    [["overflows"], table({ shape: [2 ** 40, 2 ** 40] })],
    [["extent 2199023255552"], table({ shape: [2 ** 41, 64] })],
    [["extent 0"], table({ shape: [0, 64] })],
    [["only the first may be"], table({ shape: [40, "rows"] })],
    [["scales", "wrong format or shape"], table({ shape: ["rows", 64] })],
    [["multiple of its group"], table({ shape: [40, 48] })],
    [["no variant of 7 bits"], table({ format: affine(7, 32) })],
    [["no group of 16"], table({ format: affine(4, 16) })],
    [["scales", "wrong format or shape"], table({ format: affine(4, 64) })],
    [["scales or biases do not fit"], table({ scales: undefined })],
    [["scales or biases do not fit"], table({ biases: undefined })],
    [["differ in format"], (op) => {
      const { biases } = op.table as Tensor;
      op.table = like(op.table, { biases: like(biases, { format: { kind: "f16" } }) });
    }],
    [["scales or biases do not fit"], table({ format: { kind: "f32" } })],
    [["scales or biases do not fit the format q4_0"], table({ format: gguf("q4_0") })],
    [["scales or biases do not fit the format mxfp4"], table({ format: { kind: "mxfp4", group: 32 } })],
    [["mxfp4 has no group of 16"], table({ format: { kind: "mxfp4", group: 16 }, biases: undefined })],
    [
      ["(mxfp4)", "bf16", "wrong format or shape"],
      table({ format: { kind: "mxfp4", group: 32 }, biases: undefined }),
    ],
    [
      ["(nvfp4)", "bf16", "wrong format or shape"],
      table({ format: { kind: "nvfp4", group: 16 }, biases: undefined }),
    ],
    [["64 columns", "256 of a block of q4_k"], table({ format: gguf("q4_k"), ...bare })],
    [["48 columns", "32 of a block of iq4_nl"], table({ format: gguf("iq4_nl"), shape: [40, 48], ...bare })],
    [["outside buffer 1"], table({ format: gguf("q8_0"), shape: [4000, 64], ...bare })],
    [["not aligned to 2"], table({ format: gguf("q8_0"), offset: 1, ...bare })],
    [["buffer 9 of 3"], table({ buffer: 9 })],
  ];
  for (const [words, change] of cases) {
    await refused(device, fusedSample(), "embed", 0, words, (op, plan) => {
      const before = op.table;
      change(op, plan);
      if ("offset" in (op.table as Tensor) && op.table === before) throw new Error("the change did nothing");
    });
  }
});

Deno.test("buffers that are too few, too small or read-only are refused", async () => {
  using device = await Device.open("cpu");
  const { plan } = fusedSample();
  const sizes = plan.buffers.map((buffer) => buffer.bytes);
  const withSizes = async (bytes: number[], words: string) => {
    const error = await assertRejects(
      () => device.compile(plan, bytes.map((size) => device.createBuffer(size))),
      DeviceError,
      words,
    );
    assertEquals(error.code, "invalid_plan");
  };
  await withSizes([], "3 buffers but 0");
  await withSizes(sizes.slice(0, 2), "3 buffers but 2");
  await withSizes([...sizes, 8], "3 buffers but 4");
  for (let i = 0; i < 3; i++) {
    await withSizes(sizes.map((size, j) => size - (i === j ? 1 : 0)), `buffer ${i} has`);
  }
  const path = await Deno.makeTempFile();
  await Deno.writeFile(path, new Uint8Array(sizes[0]));
  using mapped = await device.mapFile(path, 0, sizes[0]);
  const [, weights, pages] = sizes.map((size) => device.createBuffer(size));
  await assertRejects(
    () => device.compile(plan, [mapped, weights, pages]),
    DeviceError,
    "read-only but the plan writes",
  );
  await Deno.remove(path);
});

Deno.test("one buffer bound twice is seen as the same bytes", async () => {
  using device = await Device.open("cpu");
  const b = new PlanBuilder({ rows: 2, out_rows: 1, sequences: 1, pages: 0 });
  const x = b.activation("x", ["rows", 16]);
  const y: Tensor = {
    name: "y",
    format: { kind: "f32" },
    shape: ["rows", 16],
    buffer: b.buffer("other", 128, true),
    offset: 0,
  };
  b.add({ kind: "softcap", x, y, cap: 1 });
  const plan = b.finish({ groups: 0, vocabularySize: 8, exact: true });
  using arena = device.createBuffer(256);
  using other = device.createBuffer(256);
  const pass = await device.compile(plan, [arena, other]);
  pass.close();
  await assertRejects(() => device.compile(plan, [arena, arena]), DeviceError, "y shares bytes with x");
});

Deno.test("a plan with a wrong header is refused with what is wrong", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample();
  const buffers = sampleBuffers(device, sample);
  const good = encodePlan(sample.plan);
  const cases: [number, number, string][] = [
    [0, 0, "these bytes are no plan"],
    [1, 2, "version 2; this library reads 1"],
    [2, 8, "unknown flags"],
    [3, 4, "bytes of records"],
    [4, 0xffffffff, "bytes of records"],
    [5, 0, "no ops"],
    [6, 33, "33 outputs"],
    [7, 17, "17 page groups"],
    [8, 0, "vocabulary of 0"],
    [9, 1, "reserved"],
    [12, 0, "symbol 0 has the maximum 0"],
    [13, 1, "symbol 0 has the maximum"],
  ];
  for (const [word, value, text] of cases) {
    const plan = good.slice();
    new DataView(plan.buffer).setUint32(word * 4, value, true);
    const error = await assertRejects(() => device.compile(plan, buffers), DeviceError, text);
    assertEquals(error.code, "invalid_plan");
  }
  await assertRejects(
    () => device.compile(good.slice(0, 47), buffers),
    DeviceError,
    "ends inside its header",
  );
});
