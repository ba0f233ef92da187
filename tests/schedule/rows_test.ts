/**
 * What a token of each published model costs, explained from its config alone. Expected bytes are counted here from the sizes,
 * apart from the schedule.
 */
import { assert, assertEquals } from "@std/assert";
import { configOf, type Shape, shapes } from "../../bench/synthetic.ts";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { explainPlan } from "../../src/schedule/explain.ts";

interface Row {
  name: string;
  shape: string;
  sliding: number;
  full: number;
  /** ops of a layer, and of the plan */ ops: [number, number];
  /** dispatches of a token where full attention takes two: a sliding layer, a full layer, all */ dispatches:
    [number, number, number];
  /** bytes that one token adds to the caches of sliding and full layers, f16 */ cached: [number, number];
}

/** 12B, beyond its hidden size, and so its figures here, are an assumption: see bench/synthetic.ts. */
const ROWS: Row[] = [
  {
    name: "E2B",
    shape: "e2b",
    sliding: 28,
    full: 7,
    ops: [7, 35 * 7 + 5],
    dispatches: [7, 8, 3 + 28 * 7 + 7 * 8 + 3],
    cached: [12 * 1024, 3 * 2048],
  },
  {
    name: "E4B",
    shape: "e4b",
    sliding: 35,
    full: 7,
    ops: [7, 42 * 7 + 5],
    dispatches: [7, 8, 3 + 35 * 7 + 7 * 8 + 3],
    cached: [20 * 2048, 4 * 4096],
  },
  {
    name: "12B",
    shape: "12b",
    sliding: 40,
    full: 8,
    ops: [5, 48 * 5 + 3],
    dispatches: [5, 6, 1 + 40 * 5 + 8 * 6 + 3],
    cached: [40 * 8192, 8 * 4096],
  },
  // four more a layer: router, gate and up, down, sum of the two norms; the first takes two dispatches
  {
    name: "26B-A4B",
    shape: "26b-a4b",
    sliding: 25,
    full: 5,
    ops: [9, 30 * 9 + 3],
    dispatches: [10, 11, 1 + 25 * 10 + 5 * 11 + 3],
    cached: [25 * 8192, 5 * 4096],
  },
  {
    name: "26B-Standard",
    shape: "26b-standard",
    sliding: 25,
    full: 5,
    ops: [9, 30 * 9 + 3],
    dispatches: [10, 11, 1 + 25 * 10 + 5 * 11 + 3],
    cached: [25 * 8192, 5 * 4096],
  },
  {
    name: "31B",
    shape: "31b",
    sliding: 50,
    full: 10,
    ops: [5, 60 * 5 + 3],
    dispatches: [5, 6, 1 + 50 * 5 + 10 * 6 + 3],
    cached: [50 * 16384, 10 * 8192],
  },
];

/** Numbers of all matrices that one token multiplies with; routers apart. */
function numbersOf(s: Shape): { matrices: number; routers: number } {
  let matrices = s.vocabulary * s.hidden + (s.perLayer > 0 ? s.layers * s.perLayer * s.hidden : 0);
  let routers = 0;
  for (let i = 0; i < s.layers; i++) {
    const full = i % s.fullEvery === s.fullEvery - 1;
    const d = full ? s.globalHeadDim : s.headDim;
    const shares = i >= s.layers - s.sharedKv;
    const keys = full && s.globalKvHeads !== undefined ? s.globalKvHeads : 2 * s.kvHeads;
    matrices += 2 * s.heads * d * s.hidden + (shares ? 0 : keys * d * s.hidden);
    matrices += 3 * s.mlp * (shares && s.doubleWide ? 2 : 1) * s.hidden + 2 * s.perLayer * s.hidden;
    if (!s.experts) continue;
    matrices += 3 * s.experts.topK * s.experts.width * s.hidden;
    routers += s.experts.count * s.hidden;
  }
  return { matrices, routers };
}

for (const row of ROWS) {
  Deno.test(`a config alone explains layers, KV owners, bytes and dispatches of a token of ${row.name}`, () => {
    const shape = shapes[row.shape];
    const { layers, groups, ops, totals, model } = explainPlan(parseConfig(configOf(shape)), {
      device: "H200",
      context: 0,
    });
    assertEquals(layers.filter(({ kind }) => kind === "sliding").length, row.sliding);
    assertEquals(layers.filter(({ kind }) => kind === "full").length, row.full);
    const firstShared = shape.layers - shape.sharedKv;
    for (const { index, kind, kvOwner, keysAreValues, experts } of layers) {
      const owner = layers.findLast((other) => other.kind === kind && other.index < firstShared)!.index;
      assertEquals(kvOwner, index < firstShared ? index : owner, `layer ${index}`);
      assertEquals(keysAreValues, kind === "full" && shape.globalKvHeads !== undefined);
      assertEquals(experts, shape.experts ?? null);
    }
    assertEquals(groups.map(({ bytesPerToken }) => bytesPerToken), row.cached);
    for (const { index } of layers) {
      assertEquals(ops.filter(({ layer }) => layer === index).length, row.ops[0], `layer ${index}`);
    }
    assertEquals(ops.length, row.ops[1]);
    assertEquals(totals.dispatches, ops.reduce((sum, { dispatches }) => sum + dispatches, 0));
    const [ofSliding, ofFull, ofToken] = row.dispatches;
    for (const { index, dispatches } of layers) assertEquals(dispatches, ofSliding, `layer ${index}`);
    assertEquals(totals.dispatches, ofToken - row.full * (ofFull - ofSliding));
    // Where threadgroups cannot send each other values, full attention takes a second dispatch for the sum of its parts.
    const elsewhere = explainPlan(parseConfig(configOf(shape)), { device: "M4 Max", context: 0 });
    for (const { index, kind, dispatches } of elsewhere.layers) {
      assertEquals(dispatches, kind === "full" ? ofFull : ofSliding, `layer ${index}`);
    }
    assertEquals(elsewhere.totals.dispatches, ofToken);

    // 4-bit weights with two bf16 numbers for 64 of them take 4.5 bits, those of 8 bits 8.5.
    const { matrices, routers } = numbersOf(shape);
    const bytes = shape.unquantised ? 2 * (matrices + routers) : (matrices * 4.5 + routers * 8.5) / 8;
    assert(Math.abs(totals.weightBytes / bytes - 1) < 2e-3, `${totals.weightBytes} bytes, not ${bytes}`);
    assert(totals.bytes > totals.weightBytes && totals.bytes < 1.01 * totals.weightBytes);
    assert(totals.seconds > bytes / 4.8e12 && totals.seconds < 10 * bytes / 4.8e12);
    if (shape.experts) assert(model.weightBytes > 5 * totals.weightBytes);
  });
}

Deno.test("a prompt of 512 tokens reads every expert once, one of two tokens twice as many as one at most", () => {
  const config = parseConfig(configOf(shapes["26b-a4b"]));
  const bytesOf = (rows: number) =>
    explainPlan(config, { rows, context: 0 }).ops.filter(({ op, layer }) =>
      op.startsWith("expert_") && layer! < config.layers.length - 1 // of the last layer few rows go on
    )
      .reduce((sum, { weightBytes }) => sum + weightBytes, 0);
  const { count, topK } = shapes["26b-a4b"].experts!;
  assert(Math.abs(bytesOf(512) / (bytesOf(1) * count / topK) - 1) < 1e-3);
  assert(bytesOf(2) > 1.8 * bytesOf(1) && bytesOf(2) <= 2 * bytesOf(1));
});
