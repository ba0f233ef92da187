/** The instruction sets that tests of the CPU device go through. */
import { Device } from "../../ffi/device.ts";
import { DeviceError } from "../../src/errors.ts";

/** Levels that the library has on this architecture. */
export const LEVELS: string[] = Deno.build.arch === "x86_64"
  ? ["scalar", "avx2", "avx512"]
  : ["scalar", "neon"];

/** Levels that this CPU lacks; their tests are skipped. Any other failure to open a device is left to the tests. */
export async function lackingLevels(): Promise<Set<string>> {
  const lacking = new Set<string>();
  for (const level of LEVELS) {
    try {
      using _device = await Device.open("cpu", { level });
    } catch (error) {
      if (error instanceof DeviceError && ["no_device", "unsupported"].includes(error.code)) {
        lacking.add(level);
      }
    }
  }
  return lacking;
}
