/** Whole models through the public API on software Metal: the real host code and kernels against the golden values. */
import { assert, assertEquals } from "@std/assert";
import { Pass } from "../../ffi/pass.ts";
import { checkLogits, checkStates } from "../support/golden.ts";
import { cosine, fixtureModel, MODELS, readGolden, TINY } from "../support/models.ts";
import { EXACT, loadMetal } from "./load.ts";
import { SoftwareMetal } from "./metal.ts";

const supported = Deno.build.os === "linux";
const ROWS = [...MODELS.small, ...MODELS.experts, ...MODELS.gemma3, "kq-gguf-q4_k_m"];
const MOST_DISPATCHES = 310; // of a one-row forward

/** A fixture on "metal", with its golden values. */
async function open(name: string, options: Parameters<typeof loadMetal>[1] = EXACT) {
  const folder = fixtureModel(name);
  assert(folder, `Fixture ${name} is missing.`);
  const golden = await readGolden(folder);
  const prompts = golden.prompts.filter(({ media }) => !media?.length);
  return { model: await loadMetal(folder, options), golden, prompts };
}

/** Runs of any pass since `forwards.count` was set to 0. */
const forwards = { count: 0 };
for (const method of ["run", "runSync"] as const) {
  const original = Pass.prototype[method] as (...args: unknown[]) => unknown;
  Object.defineProperty(Pass.prototype, method, {
    value: function (this: Pass, ...args: unknown[]) {
      forwards.count++;
      return original.apply(this, args);
    },
  });
}

/** Sets the counts to 0. */
function restart(metal: SoftwareMetal): void {
  metal.reset();
  forwards.count = 0;
}

/** Throws unless each forward since `restart` was one command buffer, one commit and one wait. */
function checkForwards(metal: SoftwareMetal): void {
  const n = forwards.count;
  assert(n > 0);
  const counted = ["command_buffers", "commits", "waits", "encoders", "blits"].map((name) =>
    metal.count(name)
  );
  assertEquals(counted, [n, n, n, n, 0]);
}

for (const name of ROWS) {
  const ignore = !supported || fixtureModel(name) === null;

  Deno.test({
    name: `${name} on software Metal meets the golden logits, one command buffer and one wait a forward`,
    ignore,
    fn: async () => {
      const { model, golden, prompts } = await open(name);
      await using _ = model;
      const metal = await SoftwareMetal.open();
      for (const { name: prompt, input_ids: ids } of prompts) {
        const expected = golden.tensors.get(`${prompt}.logits_last8`)!.data;
        restart(metal);
        const logits = await model.logits(ids, { last: 8 });
        checkForwards(metal);
        checkLogits(logits, expected, model.config.vocabularySize, prompt);
      }
    },
  });

  Deno.test({
    name: `${name} on software Metal meets the golden hidden state of every layer`,
    ignore,
    fn: async () => {
      const { model, golden, prompts } = await open(name);
      await using _ = model;
      for (const { name: prompt, input_ids: ids } of prompts) {
        checkStates(await model.hidden(ids), golden.tensors.get(`${prompt}.hidden_states`)!, prompt);
      }
    },
  });

  Deno.test({
    name: `${name} on software Metal continues greedily as the golden tokens, one command buffer a token`,
    ignore,
    fn: async () => {
      const { model, prompts } = await open(name);
      await using _ = model;
      const metal = await SoftwareMetal.open();
      for (const { input_ids: ids, greedy } of prompts) {
        restart(metal);
        const options = { maxTokens: greedy.length, temperature: 0, ignoreEos: true };
        assertEquals(await Array.fromAsync(model.generate(ids, options)), greedy);
        checkForwards(metal);
        assert(metal.count("dispatches") <= MOST_DISPATCHES * forwards.count);
      }
    },
  });
}

Deno.test({
  name: "e2b-mlx-4bit in fast mode with an f16 cache stays close to the golden logits on software Metal",
  ignore: !supported,
  fn: async () => {
    const { model, golden, prompts } = await open("e2b-mlx-4bit", {
      device: "metal",
      precision: "fast",
      kvCache: "f16",
    });
    await using _ = model;
    for (const { name: prompt, input_ids: ids } of prompts) {
      const expected = golden.tensors.get(`${prompt}.logits_last8`)!.data;
      const logits = await model.logits(ids, { last: 8 });
      assert(cosine(logits, expected) >= 0.999, `${prompt}: cosine ${cosine(logits, expected)}`);
    }
  },
});

Deno.test({
  name: "e2b-mlx-4bit on matrix units continues as the golden tokens on software Metal, alone and together",
  ignore: !supported,
  fn: async () => {
    const { model, prompts } = await open("e2b-mlx-4bit", {
      device: "metal",
      precision: "fast",
      kvCache: "f16",
      matrixUnits: true,
    });
    await using _ = model;
    const expected = prompts.map(({ greedy }) => greedy);
    const start = ({ input_ids, greedy }: typeof prompts[number]) =>
      Array.fromAsync(
        model.generate(input_ids, { maxTokens: greedy.length, temperature: 0, ignoreEos: true }),
      );
    const metal = await SoftwareMetal.open();
    restart(metal);
    assertEquals(await start(prompts[0]), expected[0]);
    assert(metal.count("dispatches") <= MOST_DISPATCHES * forwards.count);
    assertEquals(await Promise.all(prompts.map(start)), expected);
  },
});

for (const name of ["text_sum", "tool_call"]) {
  Deno.test({
    name: `tiny on software Metal answers ${name} as the golden text does`,
    ignore: !supported,
    fn: async () => {
      await using model = await loadMetal(TINY);
      const path = new URL(`../fixtures/tiny/${name}.json`, import.meta.url);
      const golden = JSON.parse(await Deno.readTextFile(path));
      const options = { temperature: 0, tools: golden.tools ?? undefined, thinking: golden.enable_thinking };
      const reply = await model.chat(golden.messages, options);
      assertEquals(reply.receipt.promptIds, golden.input_ids);
      const ids = await Array.fromAsync(
        model.generate(golden.input_ids, { temperature: 0, maxTokens: golden.output_ids.length + 4 }),
      );
      assertEquals(ids, golden.output_ids);
      assertEquals(reply.usage.completionTokens, ids.length);
      if (name === "text_sum") assertEquals(reply.text, golden.output_text.replace("<turn|>", ""));
      else assertEquals(reply.toolCalls.map((call) => call.name), ["get_weather"]);
    },
  });
}
