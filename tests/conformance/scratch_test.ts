/** Scratch of the CPU device: one piece for all passes, as large as the largest need. */
import { assert, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { linearProblem } from "../../src/conformance/cases/linear.ts";
import type { Problem } from "../../src/conformance/problem.ts";
import { encodeInput } from "../../src/engine/input.ts";

/** A pass of a product of so many rows, and what it runs on. */
async function compiled(device: Device, scope: DisposableStack, rows: number) {
  const problem: Problem = linearProblem(
    { rows, k: 768, n: [32], format: { kind: "gguf", type: "q4_0" } },
    5,
    false,
  );
  const buffers = problem.buffers.map((bytes) => {
    const buffer = scope.use(device.createBuffer(bytes.length));
    buffer.write(0, bytes);
    return buffer;
  });
  return { pass: await device.compile(problem.plan, buffers), problem };
}

/** y, [rows, 32] in f32. */
async function outputOf({ pass, problem: { input } }: { pass: Pass; problem: Problem }): Promise<Uint8Array> {
  const output = new Uint8Array(input.rows.length * 32 * 4);
  await pass.run(encodeInput(input), output);
  return output;
}

Deno.test("passes share their scratch, which is as large as the largest of them needs and goes with the last", async () => {
  using device = await Device.open("cpu");
  using scope = new DisposableStack();
  const scratch = () => device.memory().scratch;
  const small = await compiled(device, scope, 2);
  const need = scratch();
  assertEquals(small.pass.info().scratchBytes, need);
  const alone = await outputOf(small);
  const large = await compiled(device, scope, 64);
  assert(scratch() > need);
  assertEquals(scratch(), large.pass.info().scratchBytes);
  assert(device.memory().peak >= scratch());
  const wide = await outputOf(large);
  for (let turn = 0; turn < 2; turn++) {
    assertEquals(await outputOf(small), alone);
    assertEquals(await outputOf(large), wide);
  }
  const another = await compiled(device, scope, 2);
  assertEquals(scratch(), large.pass.info().scratchBytes);
  large.pass.close();
  assertEquals(scratch(), need);
  assertEquals([await outputOf(small), await outputOf(another)], [alone, alone]);
  small.pass.close();
  assertEquals(scratch(), need);
  another.pass.close();
  assertEquals(scratch(), 0);
});

Deno.test("a pass runs on while another needs more scratch, or gives it back", async () => {
  using device = await Device.open("cpu");
  using scope = new DisposableStack();
  const { pass, problem } = await compiled(device, scope, 4);
  const right = await outputOf({ pass, problem });
  for (let turn = 0; turn < 20; turn++) {
    const runs = Promise.all(Array.from({ length: 4 }, () => outputOf({ pass, problem })));
    const { pass: large } = await compiled(device, scope, 64 + 16 * turn);
    large.close();
    for (const output of await runs) assertEquals(output, right);
  }
  pass.close();
  assertEquals(device.memory().scratch, 0);
});
