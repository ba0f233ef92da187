/** Brings a checkpoint's weights onto a device as their layout says. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { macrotask } from "../event_loop.ts";
import type { LoadOptions } from "./api.ts";
import { copyOf, type WeightLayout } from "./weights.ts";

/** Bytes copied at a stretch before timers and signals are heard. */
const BREATH_BYTES = 64 * 2 ** 20;

/** The weight buffers of a layout: mapped files, and one with copies of what cannot be used in place. */
export async function placeWeights(
  device: Device,
  checkpoint: Checkpoint,
  layout: WeightLayout,
  stack: AsyncDisposableStack,
  options: Pick<LoadOptions, "onProgress" | "signal">,
): Promise<Buffer[]> {
  const map = (file: number) => device.mapFile(checkpoint.files[file].path, 0, checkpoint.files[file].size);
  const mapped = new Map<number, Buffer>();
  for (const file of layout.mapped) mapped.set(file, stack.use(await map(file)));
  if (layout.copiedBytes === 0) return [...mapped.values()];
  const copied = stack.use(device.createBuffer(layout.copiedBytes));
  await using temporary = new AsyncDisposableStack();
  const sources = new Map(mapped);
  let sinceBreath = 0; // bytes copied since other work had its turn
  for (const [index, copy] of layout.copies.entries()) {
    const { file, offset, length, to } = copy;
    if ((sinceBreath += length) > BREATH_BYTES) {
      sinceBreath = 0;
      await macrotask();
    }
    options.signal?.throwIfAborted();
    let source = sources.get(file);
    if (source === undefined) sources.set(file, source = temporary.use(await map(file)));
    if (copy.shift === undefined) copied.copy(to, source, offset, length);
    else {
      const bytes = new Uint8Array(length);
      source.read(offset, bytes);
      copied.write(to, copyOf(bytes, copy));
    }
    options.onProgress?.({ stage: "weights", completed: index + 1, total: layout.copies.length });
  }
  return [...mapped.values(), copied];
}
