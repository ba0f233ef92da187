/** Keys and values as 8-bit codes on software Metal: what the pages hold, and whole models, beside the CPU device and f16. */
import { assert, assertEquals } from "@std/assert";
import { load, type Model } from "../../mod.ts";
import { pageBytes } from "../../src/schedule/groups.ts";
import { generated } from "../support/calls.ts";
import { divergence, fixtureModel, maxDifference, readGolden } from "../support/models.ts";
import { EXACT, loadMetal } from "./load.ts";
import { checkTogether, PLAIN, PROMPTS, tokens } from "./together.ts";

const Q8 = { ...EXACT, kvCache: "q8" } as const;
const HALF = { ...EXACT, kvCache: "f16" } as const;
const CPU_Q8 = { ...Q8, device: "cpu" } as const;
/**
 * The last bits of two devices make a few codes in a thousand one off, where all codes are off by up to a half. So the devices differ
 * by a small part, 0.07 at most as measured, of what codes change at all.
 */
const SHARE = 0.2;
/** Where the two best logits of the CPU are closer than this, codes that are one off may turn them round. */
const MARGIN = 0.2;
const GREEDY = { temperature: 0, ignoreEos: true } as const;

/** Difference of the best two logits of each row. */
function margins(logits: Float32Array, V: number): number[] {
  return Array.from({ length: logits.length / V }, (_, row) => {
    const [best, next] = logits.subarray(row * V, (row + 1) * V).toSorted().subarray(-2).reverse();
    return best - next;
  });
}

/** Root mean square of a difference. */
function rootMeanSquare(a: Float32Array, b: Float32Array): number {
  return Math.sqrt(a.reduce((sum, x, i) => sum + (x - b[i]) ** 2, 0) / a.length);
}

/** Greedy tokens of the CPU up to the first that hardly stands out, as `model` must have them too. */
async function clearTokens(cpu: Model, ids: readonly number[], count: number): Promise<number[]> {
  const greedy = await generated(cpu, ids, { ...GREEDY, maxTokens: count });
  const V = cpu.config.vocabularySize;
  const logits = await cpu.logits([...ids, ...greedy.slice(0, -1)], { last: count });
  const close = margins(logits, V).findIndex((margin) => margin < MARGIN);
  return close < 0 ? greedy : greedy.slice(0, close);
}

// Both kinds of page in each; in 31b keys of full layers are their values.
for (const name of ["e2b", "31b"]) {
  const folder = fixtureModel(name);
  const ignore = Deno.build.os !== "linux" || folder === null;

  Deno.test(
    `${name} on software Metal writes the codes and scales that the CPU writes, in both kinds of page`,
    {
      ignore,
    },
    async () => {
      await using metal = await loadMetal(folder!, Q8);
      await using cpu = await load(folder!, CPU_Q8);
      const ids = tokens(70);
      const pagesOf = async (model: typeof metal) => {
        const { forward } = model.engine;
        const sequence = forward.sequence();
        await forward.prefill(sequence, ids, { outputs: 0, mask: 0 }, () => {});
        const pages = await Promise.all(forward.groups.map(async (group, g) => {
          const bytes = new Uint8Array(pageBytes(group, "q8"));
          await forward.readPage(g, sequence.tables[g].pages[0], bytes);
          return bytes;
        }));
        sequence.dispose();
        return pages;
      };
      const [found, expected] = [await pagesOf(metal), await pagesOf(cpu as typeof metal)];
      for (const [g, { name: kind, headDim: d }] of metal.engine.forward.groups.entries()) {
        const [a, b] = [found[g], expected[g]].map((bytes) => new DataView(bytes.buffer));
        const headBytes = 32 * (d + 4);
        let codes = 0, moved = 0;
        for (let at = 0; at < found[g].length; at += headBytes) {
          for (let i = 0; i < 32 * d; i++) {
            const off = Math.abs(a.getInt8(at + i) - b.getInt8(at + i));
            assert(off <= 1, `${kind} page: a code is off by ${off}`);
            codes++;
            moved += off;
          }
          for (let token = 0; token < 32; token++) {
            const byte = at + 32 * d + 4 * token;
            const [scale, wanted] = [a.getFloat32(byte, true), b.getFloat32(byte, true)];
            // After some layers the states differ in their last bits.
            assert(Math.abs(scale - wanted) <= 1e-3 * wanted, `${kind} page: scale ${scale}, not ${wanted}`);
          }
        }
        assert(moved <= 0.01 * codes, `${kind} page: ${moved} of ${codes} codes are off by one`);
      }
    },
  );

  Deno.test(`${name} on software Metal with a cache of codes gives the CPU's logits and greedy tokens`, {
    ignore,
  }, async () => {
    await using metal = await loadMetal(folder!, Q8);
    await using cpu = await load(folder!, CPU_Q8);
    await using numbers = await load(folder!, { ...CPU_Q8, kvCache: "f32" });
    const { prompts } = await readGolden(folder!);
    let compared = 0;
    for (const { name: prompt, input_ids: ids } of prompts.filter(({ media }) => !media?.length)) {
      const [logits, expected, uncoded] = await Promise.all(
        [metal, cpu, numbers].map((model) => model.logits(ids, { last: 8 })),
      );
      const [off, own] = [logits, uncoded].map((other) => rootMeanSquare(other, expected));
      assert(
        own > 0 && off <= SHARE * own,
        `${prompt}: logits differ by ${off}, codes change them by ${own}`,
      );
      assert(maxDifference(logits, expected) < MARGIN / 2, `${prompt}: ${maxDifference(logits, expected)}`);
      const clear = await clearTokens(cpu, ids, 12);
      assertEquals(await generated(metal, ids, { ...GREEDY, maxTokens: clear.length }), clear, prompt);
      compared += clear.length;
    }
    assert(compared >= 12, `${compared} tokens stand out`);
  });

  Deno.test(`R47: ${name} on software Metal with a cache of codes diverges from f16 by less than 0.01 nats`, {
    ignore,
  }, async () => {
    await using half = await loadMetal(folder!, HALF);
    await using coded = await loadMetal(folder!, Q8);
    const ids = tokens(300);
    const last = ids.length;
    const V = half.config.vocabularySize;
    const found = divergence(await half.logits(ids, { last }), await coded.logits(ids, { last }), V);
    assert(found > 0 && found < 0.01, `${found}`);
    // What a page of a group takes, by what the device holds in all.
    for (const [model, format] of [[half, "f16"], [coded, "q8"]] as const) {
      const { groups, shared: { kvPages } } = model.engine.forward;
      const bytes = groups.reduce((sum, group, g) => sum + kvPages[g] * pageBytes(group, format), 0);
      assertEquals(model.memory().kv, bytes);
    }
    for (const group of half.engine.forward.groups) {
      const { headDim: d } = group;
      assertEquals(pageBytes(group, "q8") / pageBytes(group, "f16"), (d + 4) / (2 * d));
    }
  });
}

const TARGET = fixtureModel("e2b"), DRAFTER = fixtureModel("assistant-e2b");

Deno.test(
  "with a cache of codes on software Metal mates, chunks, prefixes, forks and drafts change no token",
  {
    ignore: Deno.build.os !== "linux" || TARGET === null || DRAFTER === null,
  },
  async () => {
    await using model = await loadMetal(TARGET!, { ...Q8, drafter: DRAFTER! });
    const expected = await checkTogether(model);
    using session = model.session();
    await session.append(PROMPTS[2]);
    const next = async (one: typeof session) => await Array.fromAsync(one.generate(PLAIN));
    using fork = session.fork();
    assertEquals([await next(session), await next(fork)], [expected[2], expected[2]]);
  },
);

Deno.test(
  "a session with a cache of codes saved on software Metal goes on on the CPU, and the other way round",
  {
    ignore: Deno.build.os !== "linux" || TARGET === null,
  },
  async () => {
    const ids = (await readGolden(TARGET!)).prompts.find(({ name }) => name === "long")!.input_ids;
    const path = await Deno.makeTempFile();
    await using metal = await loadMetal(TARGET!, Q8);
    await using cpu = await load(TARGET!, CPU_Q8);
    const clear = await clearTokens(cpu, ids, 8);
    assert(clear.length > 3);
    try {
      for (const [from, to] of [[metal, cpu], [cpu, metal]]) {
        using session = from.session();
        await session.append(ids);
        const first = await Array.fromAsync(session.generate({ ...GREEDY, maxTokens: 2 }));
        await session.save(path);
        using restored = to.session();
        await restored.restore(path);
        const rest = await Array.fromAsync(restored.generate({ ...GREEDY, maxTokens: clear.length - 2 }));
        assertEquals([...first, ...rest], clear);
      }
    } finally {
      await Deno.remove(path);
    }
  },
);
