/** What a run of a sample takes and gives. */
import type { Buffer } from "../../../ffi/buffer.ts";
import type { Device } from "../../../ffi/device.ts";
import { encodeInput, type RunInput } from "../../../src/engine/input.ts";
import { type Sample, VOCABULARY } from "./parts.ts";

/** Three rows of two sequences, with everything that an input block can carry. */
export function sampleInput(): RunInput {
  return {
    rows: [
      { token: 5, position: 0, sequence: 0, rowClass: "prefill" },
      { token: 39, position: 1, sequence: 0, rowClass: "prefill" },
      { token: 0, position: 40, sequence: 1, rowClass: "decode" },
    ],
    outputs: [
      {
        row: 1,
        adjustments: [{ id: 2, multiply: 0.5, add: 0 }, { id: 39, multiply: 1, add: -1 }],
        temperature: 0.7,
      },
      { row: 2, mask: new Uint32Array([0xffff, 0x1]) },
    ],
    sequences: [
      [{ first: 0, pages: [] }, { first: 0, pages: [3] }],
      [{ first: 0, pages: [1, 2] }, { first: 0, pages: [5, 0] }],
    ],
    groups: 2,
    vocabularySize: VOCABULARY,
    outputMask: 1,
  };
}

/** Bytes of output 0 for `sampleInput`: logits of two rows, or attended of three. */
export function outputBytes(sample: Sample): number {
  const [rows, columns] = sample.plan.outputs[0].shape;
  return (rows === "rows" ? 3 : 2) * (columns as number) * 4;
}

/** The input block of `sampleInput`. */
export function sampleBlock(): Uint8Array<ArrayBuffer> {
  return encodeInput(sampleInput());
}

/** Buffers for a sample, the weights filled in. */
export function sampleBuffers(device: Device, { plan, weights }: Sample): Buffer[] {
  const buffers = plan.buffers.map((buffer) => device.createBuffer(buffer.bytes));
  buffers[1].write(0, weights);
  return buffers;
}
