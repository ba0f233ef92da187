/** One pass that several threads use at once, which the C ABI allows and `Pass` does not do. */
import { assertEquals } from "@std/assert";
import { ErrorText, utf8 } from "../../ffi/call.ts";
import { openLibrary } from "../../ffi/library.ts";
import { DRAW_NUMBERS, NO_LOGITS } from "../../ffi/pass.ts";
import { encodeInput } from "../../src/engine/input.ts";
import { encodePlan } from "../../src/schedule/plan.ts";
import { until } from "../support/until.ts";
import { fusedSample, sampleInput } from "./sample.ts";

/** Where the outputs of one row lie: 256 candidates, their logits, four statistics. */
const IDS = 0, VALUES = 1024, STATS = 2048, BYTES = 2064;
const CANCELLED = 10;

type Memory = Uint8Array<ArrayBuffer> | BigUint64Array<ArrayBuffer> | Float64Array<ArrayBuffer>;

/** A decode row of a sequence in two pages of the second group. */
function blockOf(token: number, position: number, pages: number[]): Uint8Array<ArrayBuffer> {
  const { groups, vocabularySize } = sampleInput();
  return encodeInput({
    rows: [{ token, position, sequence: 0, rowClass: "decode" }],
    outputs: [{ row: 0 }],
    sequences: [[{ first: 0, pages: [] }, { first: 0, pages }]],
    groups,
    vocabularySize,
    outputMask: 0b1110,
  });
}

/** A device and passes of it by their pointers. */
async function opened(count: number) {
  const { symbols } = await openLibrary();
  const error = new ErrorText();
  const made = (call: (out: BigUint64Array<ArrayBuffer>) => number): bigint => {
    const out = new BigUint64Array(1);
    error.unwrap(call(out));
    return out[0];
  };
  const room = [error.bytes, error.capacity] as const;
  const kind = utf8("cpu", "kind"), options = utf8('{"threads":1}', "options");
  const device = made((out) =>
    symbols.mb_device_open(kind, BigInt(kind.length), options, BigInt(options.length), out, ...room)
  );
  const { plan, weights } = fusedSample();
  const bytes = encodePlan(plan);
  const passes: bigint[] = [];
  for (let i = 0; i < count; i++) {
    const buffers = BigUint64Array.from(
      plan.buffers,
      (buffer) => made((out) => symbols.mb_buffer_create(device, BigInt(buffer.bytes), out, ...room)),
    );
    error.unwrap(symbols.mb_buffer_write(buffers[1], 0n, weights, BigInt(weights.length), ...room));
    passes.push(
      made((out) =>
        symbols.mb_pass_compile(
          device,
          bytes,
          BigInt(bytes.length),
          buffers,
          BigInt(buffers.length),
          out,
          ...room,
        )
      ),
    );
    for (const buffer of buffers) symbols.mb_buffer_release(buffer);
  }
  const sized = (memory: Memory) => [memory, BigInt(memory.byteLength)] as const;
  const asynchronous = async (call: (err: Uint8Array<ArrayBuffer>, cap: bigint) => Promise<number>) => {
    const own = new ErrorText();
    return await call(own.bytes, own.capacity);
  };
  return {
    run: (pass: bigint, input: Memory, output: Memory) =>
      asynchronous((...err) =>
        symbols.mb_pass_run_async(pass, ...sized(input), ...sized(output), null, ...err)
      ),
    time: (pass: bigint, input: Memory, times: number) =>
      asynchronous((...err) =>
        symbols.mb_pass_time_async(pass, ...sized(input), new Float64Array(times), BigInt(times), ...err)
      ),
    start: (pass: bigint, input: Memory) =>
      error.unwrap(symbols.mb_pass_start(pass, ...sized(input), ...room)),
    /** the token of the highest logit follows */
    follow: (pass: bigint, input: Memory) => {
      const draws = new Float64Array(DRAW_NUMBERS);
      draws.set([IDS, VALUES, STATS, 256]);
      draws.set([1, 0, 0, 0, NO_LOGITS], 8); // top-p, min-p, no penalties
      error.unwrap(
        symbols.mb_pass_follow(pass, ...sized(input), draws, BigInt(DRAW_NUMBERS), BigInt(BYTES), ...room),
      );
    },
    finish: (pass: bigint, output: Memory) =>
      asynchronous((...err) =>
        symbols.mb_pass_finish_async(pass, ...sized(output), new BigUint64Array(8), ...err)
      ),
    /** Resolves once a pass has the device, to a function that lets go of it. */
    hold: async (pass: bigint, input: Memory) => {
      const seconds = new Float64Array(1e6); // of runs, written as they end
      const held = asynchronous((...err) =>
        symbols.mb_pass_time_async(pass, ...sized(input), seconds, BigInt(seconds.length), ...err)
      );
      while (seconds[0] === 0) await sleep(1);
      return async () => {
        symbols.mb_pass_cancel(pass);
        assertEquals(await held, CANCELLED);
        symbols.mb_pass_resume(pass);
      };
    },
    [Symbol.dispose]() {
      for (const pass of passes) symbols.mb_pass_release(pass);
      symbols.mb_device_release(device);
    },
    passes,
  };
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

Deno.test("a run that begins ahead is not what makes another thread's run of its pass wait to be asked for", async () => {
  using library = await opened(2);
  const { passes: [pass, other] } = library;
  const [alone, beside, output] = [0, 1, 2].map(() => new Uint8Array(BYTES));
  const first = blockOf(1, 40, [5, 0]), next = blockOf(0, 41, [5, 0]), elsewhere = blockOf(1, 40, [4, 2]);
  assertEquals(await library.run(pass, elsewhere, alone), 0);
  for (let round = 0; round < 3; round++) {
    const letGo = await library.hold(other, first);
    library.start(pass, first);
    await sleep(20);
    const running = library.run(pass, elsewhere, beside);
    await sleep(20);
    library.follow(pass, next); // begins ahead when the first has ended, while the run beside has the device
    await letGo();
    assertEquals(await library.finish(pass, output), 0);
    // Nobody asks for the one that follows.
    assertEquals(await running, 0);
    assertEquals(beside, alone);
  }
});

Deno.test("dropping a run that began ahead ends no other run of its pass", async () => {
  using library = await opened(2);
  const { passes: [pass, other] } = library;
  const output = new Uint8Array(BYTES);
  const first = blockOf(1, 40, [5, 0]), next = blockOf(0, 41, [5, 0]), elsewhere = blockOf(1, 40, [4, 2]);
  await until("the run beside had not ended when the other was dropped", async () => {
    const letGo = await library.hold(other, first);
    library.start(pass, first);
    await sleep(20);
    let isOver = false;
    const running = library.time(pass, elsewhere, 20_000).finally(() => isOver = true);
    await sleep(20);
    library.follow(pass, next);
    await letGo();
    assertEquals(await library.finish(pass, output), 0);
    library.start(pass, blockOf(39, 41, [5, 0])); // ends the one that was begun in its place, and waits for the device
    const wasOver = isOver;
    assertEquals(await running, 0);
    assertEquals(await library.finish(pass, output), 0);
    return !wasOver;
  });
});
