import { assert, assertAlmostEquals, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { explain, InvalidArgument, UnknownOption } from "../../mod.ts";
import { configOf, shapes } from "../../bench/synthetic.ts";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { explainPlan } from "../../src/schedule/explain.ts";
import { MACHINES } from "../../src/schedule/machines.ts";
import { fixtureModel } from "../support/models.ts";

/** Text networks of published models in bf16. What a token of each costs is in rows_test.ts. */
const [E2B, E4B] = ["e2b", "e4b"].map((name) =>
  parseConfig(configOf({ ...shapes[name], unquantised: true }))
);

Deno.test("a token of E4B takes 310 dispatches at most, and a token of E2B fewer", () => {
  assert(explainPlan(E4B, { device: "metal" }).totals.dispatches <= 310);
  assert(explainPlan(E2B, { device: "metal" }).totals.dispatches <= 310);
});

Deno.test("a plan is explained from a config alone as from its weights", async () => {
  for (const name of ["e2b", "e4b", "e2b-mlx-4bit"]) {
    const checkpoint = await openCheckpoint(fixtureModel(name)!);
    const real = explainPlan(checkpoint.config, {}, checkpoint.weights());
    const { model, totals } = explainPlan(checkpoint.config);
    assertEquals(totals.dispatches, real.totals.dispatches);
    assert(Math.abs(model.weightBytes / real.model.weightBytes - 1) < 0.01, `${name}: ${model.weightBytes}`);
    assertEquals(await explain(fixtureModel(name)!), explainPlan(checkpoint.config));
    assertEquals((await explain(`${fixtureModel(name)}/model.safetensors`)).model, model);
  }
});

Deno.test("layers name their KV owner and page group", () => {
  const { layers, groups } = explainPlan(E4B);
  assertEquals(groups.map(({ name, layers }) => [name, layers.length]), [["sliding", 20], ["full", 4]]);
  assertEquals(layers[23].kvOwner, 23);
  assertEquals([layers[41].kvOwner, layers[40].kvOwner], [23, 22]);
  assertEquals([layers[41].pageGroup, layers[40].pageGroup], ["full", "sliding"]);
});

Deno.test("bytes and operations of a token are those of its weights, and grow with the context", () => {
  const { totals, model } = explainPlan(E4B, { context: 0 });
  // Tables are read by rows only; every other weight once. Two operations a weight.
  const tables = 262_144 * (42 * 256) * 2; // bf16
  assert(Math.abs(totals.weightBytes / (model.weightBytes - tables) - 1) < 0.01);
  assert(Math.abs(totals.flops / (totals.weightBytes / 2 * 2) - 1) < 0.02);
  const far = explainPlan(E4B, { context: 8192 });
  assert(far.totals.bytes > totals.bytes && far.totals.seconds > totals.seconds);
});

Deno.test("a prompt stops before the shared layers: it costs less than half of as many output rows", () => {
  const { variant, totals } = explainPlan(E4B, { rows: 512, context: 0 });
  assertEquals(variant, "prefill");
  const decode = explainPlan(E4B, { rows: 16, context: 0 });
  assertEquals(decode.variant, "decode");
  assert(
    totals.flops / 512 < 0.6 * decode.totals.flops / 16,
    `${totals.flops / 512} against ${decode.totals.flops / 16}`,
  );
});

Deno.test("predictions order devices by their figures and take figures of one's own", () => {
  const seconds = (device: string) => explainPlan(E4B, { device }).totals.seconds;
  assert(
    seconds("M1") > seconds("M4") && seconds("M4") > seconds("M4 Max") && seconds("m4 max") > seconds("H200"),
  );
  for (const { name } of MACHINES) assert(seconds(name) > 0);
  const own = { name: "mine", bandwidth: 1e12, flops: 1e13, dispatch: 1e-6 };
  assertEquals(explainPlan(E4B, { device: own }).device, own);
});

Deno.test("a prediction is the sum of its parts: memory or arithmetic, dispatches, and the forward", () => {
  const plain = { name: "mine", bandwidth: 1e11, flops: 1e15, dispatch: 0 };
  const { totals } = explainPlan(E4B, { device: plain });
  assertAlmostEquals(totals.seconds, totals.bytes / (0.75 * 1e11), 1e-9);
  const slow = explainPlan(E4B, { device: { ...plain, dispatch: 1e-5, forward: 1e-3, bandwidthShare: 0.5 } });
  assertAlmostEquals(
    slow.totals.seconds,
    totals.bytes / (0.5 * 1e11) + 1e-5 * totals.dispatches + 1e-3,
    1e-9,
  );
  // a prompt is bound by its matrix products, which may have a rate of their own
  const prompt = { rows: 512, context: 0 };
  const weak = { ...plain, bandwidth: 1e15, flops: 1e12 };
  const before = explainPlan(E4B, { ...prompt, device: weak });
  assertAlmostEquals(before.totals.seconds, before.totals.flops / (0.5 * 1e12), 1e-6 * before.totals.seconds);
  const products = before.ops.filter(({ op }) => op === "linear").reduce(
    (sum, { seconds }) => sum + seconds,
    0,
  );
  const after = explainPlan(E4B, { ...prompt, device: { ...weak, matrixFlops: 1e13 } });
  assertAlmostEquals(
    after.totals.seconds,
    before.totals.seconds - 0.9 * products,
    1e-6 * before.totals.seconds,
  );
});

Deno.test("chips go by the names that their drivers give them", () => {
  assertEquals(explainPlan(E4B, { device: "Apple M2 Max" }).device.name, "M2 Max");
  assertEquals(explainPlan(E4B, { device: "NVIDIA H200" }).device.name, "H200");
});

Deno.test("every family from M1 to M5 has figures of its size", () => {
  for (const family of ["M1", "M2", "M3", "M4", "M5"]) {
    const chips = MACHINES.filter(({ name }) => name === family || name.startsWith(`${family} `));
    assert(chips.length >= 3, family);
    for (const { name, bandwidth, flops } of chips) {
      assert(bandwidth >= 60e9 && bandwidth <= 1e12, name);
      // larger GPUs of a family have about as many bytes for each operation
      assert(flops / bandwidth > 15 && flops / bandwidth < 50, `${name}: ${flops / bandwidth}`);
    }
  }
});

Deno.test("an unknown device or a wrong size is an InvalidArgument", async () => {
  assertThrows(() => explainPlan(E4B, { device: "M99" }), InvalidArgument, "M99");
  assertThrows(() => explainPlan(E4B, { device: { name: "x" } as never }), InvalidArgument);
  assertThrows(() => explainPlan(E4B, { rows: 0 }), InvalidArgument, "rows");
  assertThrows(() => explainPlan(E4B, { context: -1 }), InvalidArgument, "context");
  assertThrows(() => explainPlan(E4B, { matrixUnits: 1 as never }), InvalidArgument, "matrixUnits");
  await assertRejects(() => explain("tiny", { rows: 1.5 }), InvalidArgument);
});

Deno.test("figures of one's own that say nothing, or have a name that no figure has, are refused by name", () => {
  const own = { name: "mine", bandwidth: 1e12, flops: 1e13, dispatch: 1e-6 };
  const wrong: Record<string, unknown>[] = [
    { bandwidth: NaN },
    { bandwidth: "1e12" },
    { flops: 0 },
    { dispatch: -1 },
    { forward: Infinity },
    { matrixFlops: -1 },
    { bandwidthShare: 75 },
    { threadgroupBytes: 1.5 },
    { copiesCodes: 1 },
    { clusters: "yes" },
    { cores: 0 },
  ];
  for (const change of wrong) {
    const device = { ...own, ...change } as never;
    assertThrows(() => explainPlan(E4B, { device }), InvalidArgument, Object.keys(change)[0]);
  }
  assertThrows(
    () => explainPlan(E4B, { device: { ...own, bandwith: 1 } as never }),
    UnknownOption,
    "bandwith",
  );
  const full = {
    ...own,
    matrixShare: 1,
    forward: 0,
    threadgroupBytes: 65_536,
    copiesCodes: true,
    clusters: true,
    cores: 10,
  };
  assertEquals(explainPlan(E4B, { device: full, matrixUnits: true }).device, full);
});

Deno.test("with a cache of codes an attention reads a byte for each element and a scale for each head of a token", () => {
  const context = 1024;
  const [half, coded] = (["f16", "q8"] as const).map((format) =>
    explainPlan(E4B, { rows: 1, context }, undefined, format)
  );
  for (const [i, layer] of E4B.layers.entries()) {
    const bytes = ({ ops }: typeof half) => ops.find((op) => op.op === "attention" && op.layer === i)!.bytes;
    const keys = Math.min(context + 1, layer.window ?? Infinity);
    const written = layer.kvOwner === i ? 1 : 0;
    const saved = 2 * layer.kvHeads * (2 * layer.headDim - (layer.headDim + 4));
    assertEquals(bytes(half) - bytes(coded), (keys + written) * saved, `layer ${i}`);
  }
  for (const [g, { bytesPerToken }] of coded.groups.entries()) {
    assert(bytesPerToken < 0.51 * half.groups[g].bytesPerToken);
  }
});
