/** What the tests of GPU ops share: how many kernels a run starts. */
import type { Device } from "../../ffi/device.ts";
import type { Problem } from "../../src/conformance/problem.ts";
import { encodeInput } from "../../src/engine/input.ts";

/** Kernels that one run of the problem starts. */
export async function dispatches(device: Device, { plan, buffers, input }: Problem): Promise<number> {
  using scope = new DisposableStack();
  const bound = buffers.map((bytes) => {
    const buffer = scope.use(device.createBuffer(bytes.length));
    buffer.write(0, bytes);
    return buffer;
  });
  const pass = scope.use(await device.compile(plan, bound));
  return (await pass.run(encodeInput({ ...input, outputMask: 0 }))).dispatches;
}
