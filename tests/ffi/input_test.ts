import { assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { encodeInput, NO_PAGE, type RunInput } from "../../src/engine/input.ts";
import { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { DeviceError, InvalidArgument } from "../../src/errors.ts";
import {
  elementarySample,
  fusedSample,
  outputBytes,
  sampleBlock,
  sampleBuffers,
  sampleInput,
} from "./sample.ts";

// deno-lint-ignore no-explicit-any
type Loose = any; // the input with every field writable

function refused(pass: Pass, words: string, change: (input: Loose) => void): void {
  const input = sampleInput();
  change(input);
  const error = assertThrows(() => pass.runSync(encodeInput(input), new Uint8Array(1e4)), DeviceError);
  assertEquals(error.code, "invalid_input");
  assertStringIncludes(error.message, words);
}

function accepted(pass: Pass, bytes: number, change: (input: Loose) => void): void {
  const input = sampleInput();
  change(input);
  pass.runSync(encodeInput(input), new Uint8Array(bytes));
}

Deno.test("rows outside the vocabulary, the sequences or the plan's limits are refused", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  refused(pass, "token 40 is outside the vocabulary of 40", (i) => i.rows[0].token = 40);
  refused(pass, "no sequence 2 of 2", (i) => i.rows[2].sequence = 2);
  refused(pass, "0 rows; the plan allows 1 to 4", (i) => (i.rows = [], i.outputs = []));
  refused(pass, "5 rows; the plan allows 1 to 4", (i) => i.rows.push(i.rows[0], i.rows[0]));
  refused(
    pass,
    "4 output rows; the plan allows 0 to 3",
    (i) => i.outputs = [0, 1, 2, 3].map((row) => ({ row })),
  );
  refused(pass, "3 sequences", (i) => i.sequences.push(i.sequences[0]));
  refused(pass, "14 page table entries", (i) => i.sequences[0][0].pages = Array(9).fill(0));
  refused(pass, "row 3 of 3; they must ascend", (i) => i.outputs[1].row = 3);
  refused(pass, "row 1 of 3; they must ascend", (i) => i.outputs[1].row = 1);
  refused(pass, "output mask 00000020", (i) => i.outputMask = 32);
});

Deno.test("pages that are absent, outside the pool or written twice are refused", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample(); // window 20, group 1, 6 pages
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const bytes = outputBytes(sample);
  refused(pass, "no page 6 of 6", (i) => i.sequences[0][1].pages = [6]);
  refused(
    pass,
    "row 0: group 1 holds not all of the pages 0 to 0",
    (i) => i.sequences[0][1].pages = [NO_PAGE],
  );
  refused(pass, "row 0: group 1", (i) => i.sequences[0][1].pages = []);
  refused(pass, "row 0: group 1", (i) => i.sequences[0][1].first = 1);
  refused(pass, "pages 0 to 1", (i) => i.sequences[1][1].pages = [NO_PAGE, 0]);
  accepted(pass, bytes, (i) => { // position 60 needs keys from 41 on: the page before may be gone
    i.rows[2].position = 60;
    i.sequences[1][1].pages = [NO_PAGE, 0];
  });
  accepted(pass, bytes, (i) => { // the same with a table that begins later
    i.rows[2].position = 60;
    i.sequences[1][1] = { first: 1, pages: [0] };
  });
  refused(pass, "pages 0 to 1", (i) => (i.rows[2].position = 50, i.sequences[1][1].pages = [NO_PAGE, 0]));
  refused(pass, "two rows write slot 0 of page 3", (i) => i.rows[1].position = 0);
  refused(pass, "two rows write slot 8 of page 3", (i) => {
    i.rows[0].position = 8;
    i.sequences[1][1].pages = [5, 3];
  });
  refused(pass, "row 2: group 1", (i) => i.rows[2].position = 0xffffffff);
  accepted(pass, bytes, (i) => i.sequences[0][0].pages = [0xfffffff]); // no op uses group 0
});

Deno.test("full attention needs every page from the first position on", async () => {
  using device = await Device.open("cpu");
  const sample = elementarySample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  accepted(pass, outputBytes(sample), () => {});
  refused(pass, "row 2: group 1 holds not all of the pages 0 to 1", (i) => {
    i.rows[2].position = 60;
    i.sequences[1][1].pages = [NO_PAGE, 0];
  });
});

Deno.test("page tables that point outside their entries are refused, also where the sum overflows", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const good = sampleBlock();
  const tables = 16 + 4 * 3 + 2; // words before the tables of group 0: header, four arrays of rows, output rows
  for (
    const [word, value] of [[0, 6], [0, 0xffffffff], [4, 6], [4, 0xffffffff], [3, 0xffffffff], [
      7,
      0xffffffff,
    ]]
  ) {
    const block = good.slice();
    new DataView(block.buffer).setUint32((tables + word) * 4, value, true);
    const error = assertThrows(() => pass.runSync(block, new Uint8Array(outputBytes(sample))), DeviceError);
    assertEquals(error.code, "invalid_input");
  }
});

Deno.test("adjustments, temperatures and masks that mean nothing are refused", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const adjust = (changes: object) => (i: Loose) => Object.assign(i.outputs[0].adjustments[1], changes);
  refused(pass, "adjustment of token 40", adjust({ id: 40 }));
  refused(pass, "ids must ascend", adjust({ id: 2 }));
  for (const multiply of [0, -1, NaN, Infinity]) {
    refused(pass, "adjustment of token 39", adjust({ multiply }));
  }
  for (const add of [NaN, Infinity, -Infinity]) refused(pass, "adjustment of token 39", adjust({ add }));
  for (const temperature of [0, -1, NaN, Infinity]) {
    refused(pass, "output row 0: temperature", (i) => i.outputs[0].temperature = temperature);
  }
  refused(pass, "mask 0 allows no token", (i) => i.outputs[1].mask = new Uint32Array(2));
  refused(pass, "mask 0 allows no token", (i) => i.outputs[1].mask = new Uint32Array([0, 0x100])); // bit 40
});

Deno.test("a block that is cut, padded, misaligned or no block is refused", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample();
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const block = sampleBlock();
  const run = (bytes: Uint8Array) => pass.runSync(bytes, new Uint8Array(outputBytes(sample)));
  const odd = new Uint8Array(block.length + 1);
  odd.set(block, 1);
  assertThrows(() => run(odd.subarray(1)), DeviceError, "multiple of 4 bytes");
  assertThrows(() => run(block.slice(0, -4)), DeviceError, "ends inside its arrays");
  assertThrows(
    () => run(new Uint8Array([...block, 0, 0, 0, 0])),
    DeviceError,
    "4 bytes after its last array",
  );
  assertThrows(() => run(new Uint8Array(64)), DeviceError, "no input block");
  assertThrows(() => run(block.slice(0, 60)), DeviceError, "60 bytes are no input block");
  run(block);
});

Deno.test("the outputs that the mask selects come one after another, live rows only", async () => {
  using device = await Device.open("cpu");
  const sample = fusedSample(); // outputs: logits, ids, values, stats of output rows; h of rows
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const run = (outputMask: number, words: number) => {
    const output = new Float32Array(words);
    pass.runSync(encodeInput({ ...sampleInput(), outputMask } as RunInput), output);
    return output;
  };
  const [logits, stats, h] = [run(1, 2 * 40), run(8, 2 * 4), run(16, 3 * 64)];
  assertEquals(run(0, 0).length, 0);
  assertEquals(run(1 | 8 | 16, 2 * 40 + 2 * 4 + 3 * 64), new Float32Array([...logits, ...stats, ...h]));
  for (const words of [79, 81, 120]) {
    assertThrows(
      () => run(1, words),
      InvalidArgument,
      `output has ${words * 4} bytes but the selected outputs have 320`,
    );
  }
});
