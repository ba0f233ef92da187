import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { load } from "../../mod.ts";
import { isMediaTensor, modulePath } from "../../src/checkpoint/names.ts";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";
import type { FileRange, WeightTensor } from "../../src/checkpoint/tensor.ts";
import { dequantizeRow } from "../../src/conformance/oracle/dequantize.ts";
import { fromBf16 } from "../../src/convert/affine.ts";
import { configFile } from "../../src/convert/config_file.ts";
import { namedRecipe, recipeFromJson, uniform } from "../../src/convert/recipe.ts";
import { InvalidArgument } from "../../src/errors.ts";
import { cosine, fixtureModel, maxDifference, readGolden, sharedTiny, TINY } from "../support/models.ts";
import { entriesOf, withFolder, writeSafetensors } from "../checkpoint/support.ts";
import { converted, tensorsOf } from "./support.ts";

/** Unquantised checkpoints beside what the MLX converter made of them. */
const PAIRS: [name: string, original: string | null, conversion: string | null][] = [
  ...[
    ["e2b", "e2b-mlx-4bit"],
    ["26b-a4b", "26b-a4b-mlx-4bit"],
    ["31b", "31b-mlx-4bit"],
    ["e2b-mm-clipped", "e2b-mm-clipped-mlx-4bit"],
  ].map(([a, b]): [string, string | null, string | null] => [a, fixtureModel(a), fixtureModel(b)]),
  ["the shipped model", TINY, sharedTiny("model-mlx-4bit")],
];

for (const [name, original, conversion] of PAIRS) {
  Deno.test({
    name: `${name}: every tensor of a 4-bit conversion equals the MLX converter's, bit for bit`,
    ignore: original === null || conversion === null,
    fn: async () => {
      await using out = await converted(original!);
      const [ours, theirs] = [await tensorsOf(out.folder), await tensorsOf(conversion!)];
      // That converter quantises the projection of sound into the text; here the media parts stay as they are.
      const text = (name: string) => !isMediaTensor(name);
      assertEquals([...ours.keys()].filter(text).sort(), [...theirs.keys()].filter(text).sort());
      let compared = 0;
      for (const [name, wanted] of theirs) {
        const own = ours.get(name);
        if (!text(name) && (own === undefined || own.dtype !== wanted.dtype)) continue;
        compared++;
        assertEquals([own!.dtype, own!.shape], [wanted.dtype, wanted.shape], name);
        assert(own!.bytes.every((byte, i) => byte === wanted.bytes[i]), `${name} differs`);
      }
      assert(compared >= theirs.size * 0.9);
      const configs = [out.folder, conversion!].map((folder) =>
        JSON.parse(Deno.readTextFileSync(`${folder}/config.json`))
      );
      const overrides = ({ quantization }: { quantization: Record<string, unknown> }) =>
        Object.fromEntries(
          Object.entries(quantization).filter(([key, value]) => text(key) && value !== false).sort(),
        );
      assertEquals(overrides(configs[0]), overrides(configs[1]));
    },
  });
}

Deno.test("a conversion loads, with weights that lie aligned in its file and are used in place", async () => {
  await using out = await converted(TINY);
  await using model = await load(out.folder, { device: "cpu" });
  assertEquals(model.config.quantization?.base, { kind: "affine", bits: 4, groupSize: 64 });
  const reply = await model.chat([{ role: "user", content: "What is 27 + 45?" }], { temperature: 0 });
  assertEquals(reply.text, "72");
  assertEquals(reply.warnings, []);
  const { copied, mapped } = model.memory();
  assert(copied < mapped / 100, `${copied} bytes were copied, ${mapped} are mapped`);
});

/** All numbers of a weight by the oracle, row by row. */
async function numbersOf(
  { files }: Checkpoint,
  { parts, format, scaleDtype, shape }: WeightTensor,
): Promise<Float64Array[]> {
  const read = async (range: FileRange | undefined) =>
    range &&
    (await Deno.readFile(files[range.file].path)).subarray(range.offset, range.offset + range.length);
  const [data, scales, biases] = await Promise.all([parts.data, parts.scales, parts.biases].map(read));
  const columns = shape.at(-1)!;
  const rows = shape.slice(0, -1).reduce((product, size) => product * size, 1);
  return Array.from(
    { length: rows },
    (_, row) => dequantizeRow({ data: data!, scales, biases }, format, scaleDtype, columns, row),
  );
}

/** The matrices of a model by role, experts with gate and up apart. */
async function matricesOf(checkpoint: Checkpoint): Promise<Map<string, Float64Array[]>> {
  const found = new Map<string, Float64Array[]>();
  const visit = async (path: string, value: unknown): Promise<void> => {
    if (typeof value !== "object" || value === null) return;
    if (!("parts" in value)) {
      for (const [key, inner] of Object.entries(value)) await visit(`${path}.${key}`, inner);
      return;
    }
    const weight = value as WeightTensor;
    const rows = weight.shape.length > 1 ? await numbersOf(checkpoint, weight) : [];
    if (!path.endsWith("gateUp.weight")) found.set(path, rows);
    else {
      const both = weight.shape[1];
      found.set(path.replace("weight", "gate"), rows.filter((_, row) => row % both < both / 2));
      found.set(path.replace("weight", "up"), rows.filter((_, row) => row % both >= both / 2));
    }
  };
  await visit("", checkpoint.weights());
  return found;
}

for (
  const name of ["e2b-gguf-q4_0", "e4b-gguf-mixed", "kq-gguf-q4_k_m", "26b-a4b-gguf-q4_0", "tiny-gguf-iq4_nl"]
) {
  const source = fixtureModel(name);
  Deno.test({
    name: `${name}: every weight is within a step and a half of what its blocks say, and the conversion runs`,
    ignore: source === null,
    fn: async () => {
      await using out = await converted(source!, { base: { bits: 8, groupSize: 32 } });
      const [original, conversion] = [await openCheckpoint(source!), await openCheckpoint(out.folder)];
      const [wanted, own] = [await matricesOf(original), await matricesOf(conversion)];
      assertEquals([...own.keys()].sort(), [...wanted.keys()].sort());
      for (const [role, rows] of wanted) {
        assertEquals(own.get(role)!.length, rows.length, role);
        rows.forEach((row, r) => {
          for (let start = 0; start < row.length; start += 32) {
            const group = row.subarray(start, start + 32),
              read = own.get(role)![r].subarray(start, start + 32);
            const range = Math.max(...group) - Math.min(...group);
            // Up to a step at the end that gives way to a code for zero, half a step, and bf16 scale and bias.
            const allowed = 1.5 * range / 255 + (range + Math.max(...group.map(Math.abs))) * 2 ** -8;
            assert(maxDifference(group, read) <= allowed, `${role} row ${r}`);
          }
        });
      }
      const options = { device: "cpu", precision: "exact", kvCache: "f32" } as const;
      const { prompts } = await readGolden(source!);
      await using a = await load(source!, options);
      await using b = await load(out.folder, options);
      const [first, second] = [a, b].map((model) => model.logits(prompts[0].input_ids));
      // These weights are random, so that small differences grow from layer to layer.
      assert(cosine(await first, await second) > 0.95);
    },
  });
}

Deno.test("a conversion is divided into files that load together", async () => {
  await using whole = await converted(TINY);
  await using parts = await converted(TINY, { shardBytes: 1_000_000 });
  const names = [...Deno.readDirSync(parts.folder)].map(({ name }) => name).filter((name) =>
    name.endsWith(".safetensors")
  ).sort();
  assertEquals(names.length, 6);
  assertEquals(names[0], "model-00001-of-00006.safetensors");
  for (const name of names) assert(Deno.statSync(`${parts.folder}/${name}`).size < 1_050_000);
  const [a, b] = [await tensorsOf(whole.folder), await tensorsOf(parts.folder)];
  assertEquals([...a.keys()].sort(), [...b.keys()].sort());
  for (const [name, { bytes }] of a) assertEquals(bytes, b.get(name)!.bytes, name);
});

Deno.test("recipes are written into the config, and what they leave alone stays as it is", async () => {
  const json = JSON.stringify({ "layers.0.*": false, "*.down_proj": { bits: 6, group: 32 } });
  const base = { bits: 4, groupSize: 64 } as const;
  await using out = await converted(TINY, {
    base,
    recipe: recipeFromJson(json, "r.json", uniform(base), 64),
  });
  const checkpoint = await openCheckpoint(out.folder);
  const { layers } = checkpoint.weights();
  assertEquals(layers[0].down.format, { kind: "bf16" });
  assertEquals(layers[1].down.format, { kind: "affine", bits: 6, groupSize: 32 });
  assertEquals(layers[1].up.format, { kind: "affine", bits: 4, groupSize: 64 });
  const [original, ours] = [await tensorsOf(TINY), await tensorsOf(out.folder)];
  const find = (all: typeof ours) =>
    [...all].find(([name]) => modulePath(name) === "layers.0.mlp.down_proj.weight")![1];
  assertEquals(find(ours), find(original));
});

Deno.test("R48: the table of per-layer inputs keeps 8 bits in mixed_4_8, and where it has fewer a note says so", async () => {
  const base = { bits: 4, groupSize: 64 } as const;
  const table = async (folder: string) => (await openCheckpoint(folder)).weights().perLayerEmbedding!;
  const notes = ({ result }: { result: { notes: string[] } }) =>
    result.notes.filter((note) => note.includes("per-layer"));
  for (const row of [TINY, fixtureModel("e2b")!]) {
    await using kept = await converted(row, { recipe: namedRecipe("mixed_4_8", 64), base });
    assertEquals((await table(kept.folder)).format, { kind: "affine", bits: 8, groupSize: 64 });
    assertEquals(notes(kept), []);
    await using coarse = await converted(row, { recipe: uniform(base), base });
    assertEquals((await table(coarse.folder)).format, { kind: "affine", bits: 4, groupSize: 64 });
    assertEquals(notes(coarse), [
      "The table of per-layer inputs has 4 bits. Models that have one lose most there: --mixed mixed_4_8 keeps it at 8.",
    ]);
    const [most, least] = await Promise.all([kept, coarse].map(({ folder }) => table(folder)));
    assertEquals(most.shape, least.shape);
  }
  const without = fixtureModel("26b-a4b");
  if (without === null) return console.log("skipped in part: fixture 26b-a4b is absent");
  await using plain = await converted(without, { recipe: uniform(base), base });
  assertEquals(notes(plain), []);
});

Deno.test("what cannot be converted is refused before anything is written", async () => {
  const parent = await Deno.makeTempDir();
  try {
    const refused = async (source: string, says: string) => {
      const error = await assertRejects(() => converted(source), InvalidArgument);
      assertStringIncludes(error.message, says);
    };
    await refused(fixtureModel("e2b-mlx-4bit")!, "quantised already");
    const drafter = fixtureModel("assistant-e2b");
    if (drafter !== null) await refused(drafter, "drafter");
    await Deno.mkdir(`${parent}/there`);
    const { quantize } = await import("../../src/convert/quantize.ts");
    const base = { bits: 4, groupSize: 64 } as const;
    const options = { base, recipe: uniform(base), recipeName: "x", search: false, measure: false };
    await assertRejects(() => quantize(TINY, `${parent}/there`, options), InvalidArgument, "exists already");
    const search = { ...options, search: true };
    await assertRejects(
      () => quantize(fixtureModel("e2b")!, `${parent}/new`, search),
      InvalidArgument,
      "tokenizer",
    );
    assertEquals([...Deno.readDirSync(parent)].map(({ name }) => name), ["there"]);
  } finally {
    await Deno.remove(parent, { recursive: true });
  }
});

Deno.test("an aborted conversion leaves nothing behind", async () => {
  const parent = await Deno.makeTempDir();
  try {
    const { quantize } = await import("../../src/convert/quantize.ts");
    for (const threads of [0, 2]) {
      const controller = new AbortController();
      const reason = new Error("enough");
      const base = { bits: 4, groupSize: 64 } as const;
      const converting = quantize(TINY, `${parent}/out`, {
        base,
        recipe: uniform(base),
        recipeName: "uniform",
        search: false,
        measure: false,
        threads,
        signal: controller.signal,
        onProgress: ({ stage, completed, total }) =>
          stage === "quantize" && completed > total / 2 && controller.abort(reason),
      });
      assertEquals(await converting.catch((error) => error), reason);
      assertEquals([...Deno.readDirSync(parent)], []);
    }
  } finally {
    await Deno.remove(parent, { recursive: true });
  }
});

Deno.test("threads write the same files", async () => {
  await using one = await converted(TINY, { threads: 0 });
  await using more = await converted(TINY, { threads: 3 });
  const read = (folder: string) => Deno.readFile(`${folder}/model.safetensors`);
  assertEquals(await read(one.folder), await read(more.folder));
});

Deno.test("the divergence is measured, and a search or more bits make it smaller", async () => {
  const measure = true;
  await using plain = await converted(TINY, { measure });
  await using searched = await converted(TINY, { measure, search: true });
  await using mixed = await converted(TINY, {
    measure,
    search: true,
    recipe: namedRecipe("mixed_4_8", 64),
    recipeName: "mixed_4_8",
  });
  const kl = ({ result }: typeof plain) => result.divergence!.kl;
  console.log(`mean KL: plain ${kl(plain)}, searched ${kl(searched)}, mixed_4_8 ${kl(mixed)}`);
  assert(kl(plain) < 0.06, `${kl(plain)}`);
  assert(kl(searched) < 0.8 * kl(plain), `${kl(searched)} after ${kl(plain)}`);
  assert(kl(mixed) < 0.8 * kl(searched), `${kl(mixed)} after ${kl(searched)}`);
  assert(mixed.result.bitsPerWeight > plain.result.bitsPerWeight);
  const readme = await Deno.readTextFile(`${searched.folder}/README.md`);
  assertStringIncludes(readme, `| mean KL to the original | ${kl(searched).toPrecision(3)} nats a token |`);
  assertStringIncludes(readme, "searched for the least error");
});

Deno.test("texts of the user's own are divided into those to calibrate and those to measure on", async () => {
  const content = Array.from({ length: 6 }, (_, i) => `What is ${i} + 2? ${i + 2}`).join("\n\n");
  await using out = await converted(TINY, {
    measure: true,
    search: true,
    text: { name: "mine.txt", content },
  });
  assertEquals(out.result.measuredOn, "mine.txt");
  assert(out.result.divergence!.tokens > 20 && out.result.divergence!.tokens < 60);
  await assertRejects(
    () => converted(TINY, { measure: true, text: { name: "mine.txt", content: "one" } }),
    InvalidArgument,
    "paragraphs",
  );
});

Deno.test("checkpoints in f32 and f16 give the codes of the bf16 one", async () => {
  const folder = fixtureModel("e2b")!;
  await using reference = await converted(folder);
  const wanted = await tensorsOf(reference.folder);
  const config = await Deno.readTextFile(`${folder}/config.json`);
  for (const [dtype, size] of [["F32", 4], ["F16", 2]] as const) {
    const entries = await entriesOf("e2b");
    for (const entry of Object.values(entries)) {
      if (entry.dtype !== "BF16") continue;
      const words = new Uint16Array(entry.data.slice().buffer),
        data = new DataView(new ArrayBuffer(words.length * size));
      words.forEach((word, i) => {
        if (size === 4) data.setFloat32(4 * i, fromBf16(word), true);
        else data.setFloat16(2 * i, fromBf16(word), true);
      });
      entry.dtype = dtype;
      entry.data = new Uint8Array(data.buffer);
    }
    await withFolder(
      { "config.json": config, "model.safetensors": writeSafetensors(entries) },
      async (source) => {
        await using out = await converted(source);
        let codes = 0, differing = 0;
        for (const [name, { dtype: kind, bytes }] of await tensorsOf(out.folder)) {
          if (kind !== "U32") continue;
          const other = wanted.get(name)!.bytes;
          codes += bytes.length;
          bytes.forEach((byte, i) => differing += byte === other[i] ? 0 : 1);
        }
        assert(codes > 100_000);
        // f16 rounds the smallest of these weights.
        assert(differing <= (dtype === "F32" ? 0 : codes / 1000), `${differing} of ${codes} bytes differ`);
      },
    );
  }
});

Deno.test("config.json keeps numbers as they were spelled, since other readers take 30 for an integer", async () => {
  await using out = await converted(TINY);
  const [before, after] = await Promise.all(
    [TINY, out.folder].map((folder) => Deno.readTextFile(`${folder}/config.json`)),
  );
  const numbers = (text: string) => [...text.matchAll(/: (-?\d[\d.eE+-]*)/g)].map(([, number]) => number);
  assert(numbers(before).includes("30.0"));
  const rest = numbers(after.slice(0, after.indexOf('"quantization"')));
  assertEquals(rest, numbers(before));
});

Deno.test("the config of a GGUF file spells fractions as such, and an absent soft cap as null", async () => {
  const source = fixtureModel("kq-gguf-q4_k_m");
  if (source === null) return;
  await using out = await converted(source);
  const text = await Deno.readTextFile(`${out.folder}/config.json`);
  assertStringIncludes(text, '"final_logit_softcapping": 30.0');
  assertStringIncludes(text, '"rope_theta": 1000000.0');
  const checkpoint = await openCheckpoint(source);
  const base = { bits: 4, groupSize: 64 } as const;
  const uncapped = { ...checkpoint, rawConfig: { ...checkpoint.rawConfig, final_logit_softcapping: 0 } };
  assertEquals(JSON.parse(await configFile(uncapped, base, {})).final_logit_softcapping, null);
});
