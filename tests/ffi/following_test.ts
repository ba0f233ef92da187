/** Runs that begin when others end, before they are asked for. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { DRAW_NUMBERS, type FollowingRun, NO_LOGITS } from "../../ffi/pass.ts";
import { DeviceError, Disposed, InvalidArgument } from "../../src/errors.ts";
import { encodeInput, HEADER_WORDS } from "../../src/engine/input.ts";
import { sampleCandidates, type SamplingOptions } from "../../src/sample/sampler.ts";
import { until } from "../support/until.ts";
import { Holder } from "./holder.ts";
import { fusedSample, sampleBuffers, sampleInput } from "./sample.ts";

/** Where the outputs of one row lie: 256 candidates, their logits, four statistics. */
const IDS = 0, VALUES = 1024, STATS = 2048, BYTES = 2064;
const GREEDY: SamplingOptions = { temperature: 0, topK: 0, topP: 1, minP: 0, seed: 0 };

/** A decode row at `position` of a sequence of two pages. */
function blockOf(token: number, position: number): Uint8Array<ArrayBuffer> {
  const { sequences, groups, vocabularySize } = sampleInput();
  return encodeInput({
    rows: [{ token, position, sequence: 0, rowClass: "decode" }],
    outputs: [{ row: 0 }],
    sequences: [sequences[1]],
    groups,
    vocabularySize,
    outputMask: 0b1110,
  });
}

function drawOf(
  { seed, temperature, topK, topP, minP }: SamplingOptions,
  position: number,
): Float64Array<ArrayBuffer> {
  return Float64Array.of(
    IDS,
    VALUES,
    STATS,
    256,
    position,
    seed,
    temperature,
    topK,
    topP,
    minP,
    0,
    0,
    NO_LOGITS,
  );
}

/** The row after one at `position`, drawn so. */
function following(options: SamplingOptions, position: number): FollowingRun {
  return { input: blockOf(39, position + 1), draws: drawOf(options, position + 1) };
}

/** What is drawn from the outputs of a row. */
function drawn(output: Uint8Array<ArrayBuffer>, options: SamplingOptions, position: number): number {
  const ids = new Uint32Array(output.buffer, IDS, 256), values = new Float32Array(output.buffer, VALUES, 256);
  let count = 256;
  while (values[count - 1] === -Infinity || ids[count - 1] === 0xffffffff) count--;
  const candidates = { ids, values, count, more: false, vocabularySize: 40, logSumExp: 0 };
  return sampleCandidates(candidates, options, position)!;
}

/** A pass of a device that others can have meanwhile. */
async function opened() {
  const device = await Device.open("cpu", { threads: 1 });
  const sample = fusedSample();
  const compiled = () => device.compile(sample.plan, sampleBuffers(device, sample));
  const pass = await compiled();
  const holder = await Holder.open(device);
  await pass.run(blockOf(1, 40), new Uint8Array(BYTES)); // the first run of a pass is not foreseen
  /** What is begun while the device is taken, so that it waits until it was told all that it is told. */
  const held = async <T>(begin: () => Promise<T>): Promise<T> => {
    const letGo = await holder.hold();
    const begun = begin();
    begun.catch(() => {}); // awaited below
    await letGo();
    return await begun;
  };
  const run = async (input: Uint8Array<ArrayBuffer>, next?: FollowingRun) => {
    const output = new Uint8Array(BYTES);
    const statistics = await pass.run(input, output, { foreseen: "block", following: next && (() => next) });
    return { output, ...statistics };
  };
  return { device, pass, holder, compiled, held, run };
}

const sleep = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

Deno.test("the run that follows has the token that is drawn, and gives what it gives alone", async () => {
  const { device, pass, holder, held, run } = await opened();
  const cases: SamplingOptions[] = [GREEDY, { ...GREEDY, temperature: 1, topK: 1 }];
  for (const temperature of [0.7, 3, 20]) {
    for (const topK of [3, 40, 256]) {
      for (const topP of [1, 0.6]) {
        for (const minP of [0, 0.05]) {
          const seed = (cases.length * 2 ** 47 + 12345 * cases.length) % 2 ** 53;
          cases.push({ temperature, topK, topP, minP, seed });
        }
      }
    }
  }
  const tokens = new Set<number>();
  for (const [i, options] of cases.entries()) {
    const position = 32 + i % 20;
    const begin = () => run(blockOf(i % 40, position), following(options, position));
    await until("the run began ahead, and was asked for before it was given up", async () => {
      const token = drawn((await held(begin)).output, options, position + 1);
      const second = await run(blockOf(token, position + 1));
      assert(!second.instead, JSON.stringify(options));
      tokens.add(token);
      const alone = new Uint8Array(BYTES);
      pass.runSync(blockOf(token, position + 1), alone);
      assertEquals(second.output, alone);
      return second.ahead;
    });
  }
  assert(tokens.size > 8, `${tokens.size} tokens`);
  for (const object of [pass, holder, device]) object[Symbol.dispose]();
});

Deno.test("a run with any other input ends the one that has begun, and gives its own bytes", async () => {
  const { device, pass, holder, held, run } = await opened();
  const alone = new Uint8Array(BYTES);
  const first = () => held(() => run(blockOf(1, 40), following(GREEDY, 40)));
  const token = drawn((await first()).output, GREEDY, 41);
  const inputs = [blockOf((token + 1) % 40, 41), blockOf(token, 42)];
  for (const input of inputs) {
    const gives = async () => {
      const { output, ahead, instead } = await run(input);
      assertEquals(ahead, false);
      pass.runSync(input, alone);
      assertEquals(output, alone);
      return instead;
    };
    await until("the other run had begun and was still there", async () => (await first(), await gives()));
    await first();
    pass.drop();
    pass.drop(); // harmless
    assertEquals(await gives(), false);
  }
  await first();
  pass.runSync(inputs[1], alone); // ends it too
  const { ahead, instead } = await run(blockOf(token, 41));
  assertEquals([ahead, instead], [false, false]);
  for (const object of [pass, holder, device]) object[Symbol.dispose]();
});

Deno.test("a run that nobody asks for does not keep the device from others", async () => {
  const { device, pass, holder, compiled, held, run } = await opened();
  const other = await compiled();
  const first = await held(() => run(blockOf(1, 40), following(GREEDY, 40)));
  const token = drawn(first.output, GREEDY, 41);
  const output = new Uint8Array(BYTES);
  await other.run(blockOf(1, 40), output);
  assertEquals(output, first.output);
  const late = await run(blockOf(token, 41));
  assertEquals(late.instead, false);
  pass.runSync(blockOf(token, 41), output);
  assertEquals(late.output, output);
  for (const object of [pass, other, holder, device]) object[Symbol.dispose]();
});

Deno.test("a run that was started meanwhile comes before what begins ahead", async () => {
  const { device, pass, holder, compiled, held, run } = await opened();
  const other = await compiled();
  const alone = new Uint8Array(BYTES), output = new Uint8Array(BYTES);
  await other.run(blockOf(1, 40), alone); // the first run of a pass is not foreseen
  for (let round = 0; round < 3; round++) {
    await until("the run began ahead, and was asked for before it was given up", async () => {
      let between: Promise<unknown>;
      output.fill(0);
      const first = await held(() => {
        const begun = run(blockOf(1, 40), following(GREEDY, 40));
        between = other.run(blockOf(1, 40), output, { foreseen: "block" });
        return begun;
      });
      await between!;
      assertEquals(output, alone);
      // What begins ahead waits a tenth of a second to be asked for, and would be gone if it had begun first.
      const second = await run(blockOf(drawn(first.output, GREEDY, 41), 41));
      return second.ahead;
    });
  }
  for (const object of [pass, other, holder, device]) object[Symbol.dispose]();
});

Deno.test("whoever waits for the device gets it before what begins ahead", async () => {
  const { device, pass, holder, compiled, run } = await opened();
  const other = await compiled();
  for (let round = 0; round < 3; round++) {
    await until(
      "all three waited when the device came free, and the last was asked for at once",
      async () => {
        const letGo = await holder.hold();
        const first = run(blockOf(1, 40), following(GREEDY, 40));
        await sleep(30);
        const between = other.time(blockOf(1, 40), 5000);
        await sleep(30);
        await letGo();
        const token = drawn((await first).output, GREEDY, 41);
        const second = await run(blockOf(token, 41));
        const seconds = (await between).reduce((sum, each) => sum + each, 0);
        return second.ahead && second.wallNs > seconds * 0.5e9;
      },
    );
  }
  for (const object of [pass, other, holder, device]) object[Symbol.dispose]();
});

Deno.test("nothing follows a run that fails, is cancelled or gives no candidates, and closing ends what has begun", async () => {
  const { device, pass, holder, held, run } = await opened();
  const token = drawn((await run(blockOf(1, 40))).output, GREEDY, 41);
  const isPlain = async () => {
    const { ahead, instead } = await run(blockOf(token, 41));
    assertEquals([ahead, instead], [false, false]);
  };
  const controller = new AbortController();
  await assertRejects(
    () =>
      held(() => {
        const { signal } = controller;
        const begun = pass.run(blockOf(1, 40), new Uint8Array(BYTES), {
          foreseen: "block",
          following: () => following(GREEDY, 40),
          signal,
        });
        controller.abort(new Error("enough"));
        return begun;
      }),
    Error,
    "enough",
  );
  await isPlain();
  const bad = blockOf(1, 40);
  bad[0]++; // its magic
  await assertRejects(() => held(() => run(bad, following(GREEDY, 40))));
  await isPlain();
  const badNext = following(GREEDY, 40);
  const words = new Uint32Array(badNext.input.buffer);
  words[HEADER_WORDS + 1] = 1e6; // its position
  await held(() => run(blockOf(1, 40), badNext));
  words[HEADER_WORDS] = token;
  assertEquals((await assertRejects(() => run(badNext.input), DeviceError)).code, "invalid_input");
  await isPlain();
  await held(() => run(blockOf(1, 40), following(GREEDY, 40)));
  await pass[Symbol.asyncDispose]();
  assertEquals(device.memory().livePasses, 1, "the other's");
  await assertRejects(() => run(blockOf(1, 40)), Disposed);
  pass.drop(); // harmless
  for (const object of [holder, device]) object[Symbol.dispose]();
});

Deno.test("a draw that points elsewhere, that candidates do not decide, or that cannot be made is refused, and the run ends before that", async () => {
  const { device, pass, holder, held, run } = await opened();
  const good = following({ ...GREEDY, temperature: 1, topK: 64 }, 40);
  const hostile = [-1, 0.5, 3, 2, 1e6, 2 ** 40, 2 ** 60, NaN, Infinity];
  for (let at = 0; at < DRAW_NUMBERS; at++) {
    for (const value of hostile) {
      const draws = good.draws.slice();
      draws[at] = value;
      try {
        await run(blockOf(1, 40), { input: good.input, draws });
      } catch (error) {
        assert(error instanceof InvalidArgument, String(error));
      }
      pass.drop();
    }
  }
  for (
    const [at, value] of [[0, 2064], [1, 1044], [2, 2064], [3, 257 * 4], [4, -1], [5, 2 ** 54], [6, -1], [
      7,
      0,
    ], [7, 257]]
  ) {
    const draws = good.draws.slice();
    draws[at] = value;
    await assertRejects(() => held(() => run(blockOf(1, 40), { input: good.input, draws })), InvalidArgument);
  }
  const short = { input: good.input.slice(0, 64), draws: good.draws };
  await assertRejects(() => run(blockOf(1, 40), short));
  const failing = () => {
    throw new RangeError("none");
  };
  await assertRejects(
    () => pass.run(blockOf(1, 40), new Uint8Array(BYTES), { foreseen: "block", following: failing }),
    RangeError,
    "none",
  );
  assertEquals((await run(blockOf(1, 40))).instead, false);
  for (const object of [pass, holder, device]) object[Symbol.dispose]();
});
