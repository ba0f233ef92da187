/** Memory: what `memory()` says against what the process takes, and refusals before anything large happens. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { load, MemoryLimit } from "../../mod.ts";
import { type Shape, shapes, writeSynthetic } from "../../bench/synthetic.ts";
import { fixtureModel } from "../support/models.ts";
import { deno } from "../support/process.ts";

const ignore = Deno.build.os !== "linux";

/** Some hundred megabytes, mostly experts. Room for logits is a small share of it, as it is of a model of full size. */
const EXPERTS: Shape = {
  ...shapes["26b-a4b"],
  hidden: 1024,
  layers: 12,
  mlp: 2048,
  heads: 8,
  kvHeads: 2,
  globalKvHeads: 1,
  vocabulary: 4096,
  experts: { count: 32, topK: 8, width: 1024 },
};
/** Mostly a table that is read by rows. */
const TABLE: Shape = { ...shapes.e2b, hidden: 512, layers: 10, mlp: 1024, sharedKv: 5, vocabulary: 131072 };

interface Measured {
  /** resident bytes before the load, and most ever */ before: number;
  peak: number;
  memory: ReturnType<Awaited<ReturnType<typeof load>>["memory"]>;
}

const PROGRAM = `
import { load } from ${JSON.stringify(new URL("../../mod.ts", import.meta.url).href)};
const status = async (key) =>
  1024 * Number(new RegExp(key + ":\\\\s*(\\\\d+)").exec(await Deno.readTextFile("/proc/self/status"))[1]);
await using tiny = await load("tiny", { device: "cpu", contextLength: 256 }); // opens the library, warms the runtime up
for await (const _ of tiny.generate([2, 5, 6], { maxTokens: 4 }));
gc();
const before = await status("VmRSS");
await using model = await load(Deno.args[0], { device: "cpu", contextLength: 512 });
const ids = Array.from({ length: 400 }, (_, i) => 3 + i * 37 % (model.config.vocabularySize - 3));
for await (const _ of model.generate(ids, { maxTokens: 8, ignoreEos: true, temperature: 0 }));
console.log(JSON.stringify({ before, peak: await status("VmHWM"), memory: model.memory() }));
`;

/** Writes a model of this shape, runs a prompt of it in a process of its own and measures that. */
async function measure(shape: Shape): Promise<Measured> {
  const folder = await Deno.makeTempDir();
  try {
    await writeSynthetic(shape, folder);
    const { stdout, stderr, code } = await deno(
      ["run", "-A", "--quiet", "--v8-flags=--expose-gc", "-", folder],
      { input: PROGRAM },
    );
    assertEquals(code, 0, stderr);
    return JSON.parse(stdout);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

Deno.test({
  name: "memory() of a model with experts is within a tenth of what the process takes at its peak",
  ignore,
  async fn() {
    const { before, peak, memory } = await measure(EXPERTS);
    const said = memory.mapped + memory.copied + memory.repacked + memory.kvUsed + memory.activations;
    const taken = peak - before;
    assert(memory.mapped > 300e6, `${memory.mapped}`);
    assert(
      Math.abs(said / taken - 1) < 0.1,
      `memory() says ${said} bytes, the process took ${taken}: ${JSON.stringify(memory)}`,
    );
  },
});

Deno.test({
  name: "rows of the per-layer table are read as tokens need them, never the whole table",
  ignore,
  async fn() {
    const { before, peak, memory } = await measure(TABLE);
    const table = TABLE.vocabulary * TABLE.layers * TABLE.perLayer * 4.5 / 8;
    assert(memory.mapped > table);
    // Of all the weights only the others become resident, and what the system reads ahead.
    const taken = peak - before - memory.kvUsed - memory.activations;
    assert(
      taken < memory.mapped + memory.repacked - 0.7 * table,
      `${taken} of ${memory.mapped} and ${memory.repacked} bytes, ${table} of them the table`,
    );
  },
});

Deno.test("a model with experts that does not fit is refused with needed and available bytes", async () => {
  const folder = fixtureModel("26b-a4b")!;
  const error = await assertRejects(() => load(folder, { device: "cpu", memory: 1_000_000 }), MemoryLimit);
  assert(error.message.includes("1000000"), error.message);
  const weights = (await Deno.stat(`${folder}/model.safetensors`)).size;
  const needed = Number(/needs? (\d+)/.exec(error.message)?.[1]);
  assert(needed > weights, error.message);
  await using model = await load(folder, { device: "cpu", memory: 2 * needed });
  const { mapped, copied } = model.memory();
  assert(mapped + copied > 0.95 * weights && mapped + copied < 1.05 * weights);
  assertEquals(model.memory().repacked, 0);
});

Deno.test("towers keep to the memory of the model: what would not fit is refused with the numbers, and text goes on", async () => {
  const image = new URL("../../examples/media/circles.png", import.meta.url);
  const large = { data: new Uint8Array(3 * 1000 * 1000), width: 1000, height: 1000 };
  const sound = { data: new Float32Array(480_000), sampleRate: 16_000 };
  const taken = (model: Awaited<ReturnType<typeof load>>) => {
    const { mapped, peak } = model.memory();
    return mapped + peak;
  };
  const least = await assertRejects(
    () => load("tiny", { device: "cpu", memory: 1, contextLength: 2048 }),
    MemoryLimit,
  );
  {
    const memory = least.neededBytes;
    await using model = await load("tiny", { device: "cpu", memory, contextLength: 2048 });
    for (
      const call of [() => model.embedImage(large, { imageTokens: 1120 }), () => model.embedAudio(sound)]
    ) {
      const { neededBytes, availableBytes } = await assertRejects(call, MemoryLimit, "tower");
      assertEquals(availableBytes, memory);
      assert(neededBytes > memory && taken(model) <= memory, `${neededBytes}, ${taken(model)} of ${memory}`);
    }
    const reply = await model.chat([{ role: "user", content: "What is 2 + 3?" }], { temperature: 0 });
    assertEquals(reply.text, "5");
  }
  // Room for either tower but not for both: one lets the other's plans go. A short context leaves nearly all to them.
  await using roomy = await load("tiny", { device: "cpu", contextLength: 256 });
  const alone = taken(roomy) - roomy.memory().kv;
  const soft = await roomy.embedAudio(sound);
  const memory = taken(roomy) - roomy.memory().kv + 4 * 2 ** 20;
  assert(memory > 1.5 * alone);
  await using model = await load("tiny", { device: "cpu", memory, contextLength: 256 });
  for (let round = 0; round < 2; round++) {
    assertEquals(await model.embedAudio(sound), soft);
    assertEquals((await model.embedImage(image)).length, 64 * model.config.hiddenSize);
  }
  assert(taken(model) <= memory, `${taken(model)} of ${memory}`);
});
