/** Run by ownership_test.ts in a Worker that is ended from outside: runs one after another, each looked for. */
import { Device } from "../../ffi/device.ts";
import { fusedSample, outputBytes, sampleBlock, sampleBuffers } from "./sample.ts";

const device = await Device.open("cpu");
const sample = fusedSample();
const pass = await device.compile(sample.plan, sampleBuffers(device, sample));
const output = new Uint8Array(outputBytes(sample));
for (let i = 0;; i++) {
  await pass.run(sampleBlock(), output, { foreseen: "look" });
  if (i === 10) (self as unknown as Worker).postMessage("running");
}
