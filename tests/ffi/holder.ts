/** A device that is surely taken, for tests of what waits for it. */
import { assertEquals, assertRejects } from "@std/assert";
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { DeviceError } from "../../src/errors.ts";
import { fusedSample, sampleBlock, sampleBuffers } from "./sample.ts";

const LONG = 1e6; // repetitions: far longer than any test waits

/** A pass that keeps its device from all others for as long as a test wants. */
export class Holder implements Disposable {
  readonly #pass: Pass;
  readonly #activations: Buffer;

  private constructor(pass: Pass, activations: Buffer) {
    this.#pass = pass;
    this.#activations = activations;
  }

  static async open(device: Device): Promise<Holder> {
    const sample = fusedSample();
    const buffers = sampleBuffers(device, sample);
    const pass = await device.compile(sample.plan, buffers);
    const [activations, ...others] = buffers;
    for (const buffer of others) buffer.close(); // the pass keeps them
    return new Holder(pass, activations);
  }

  /** Resolves once the pass has the device, to a function that lets go of it and waits for that. */
  async hold(): Promise<() => Promise<void>> {
    const { size } = this.#activations;
    this.#activations.fill(0, size, 0);
    const held = assertRejects(() => this.#pass.time(sampleBlock(), LONG), DeviceError);
    const written = new Uint8Array(size);
    while (written.every((byte) => byte === 0)) {
      await new Promise((resolve) => setTimeout(resolve, 1));
      this.#activations.read(0, written);
    }
    return async () => {
      this.#pass.cancel();
      assertEquals((await held).code, "cancelled");
    };
  }

  [Symbol.dispose](): void {
    this.#pass[Symbol.dispose]();
    this.#activations[Symbol.dispose]();
  }
}
