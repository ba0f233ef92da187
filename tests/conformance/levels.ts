/** The instruction sets that tests of the CPU device go through. */
import { Device } from "../../ffi/device.ts";
import { DeviceError } from "../../src/errors.ts";

/** Levels that the library has on this architecture. CPUs with AMX are few; on others amx_test.ts has it. */
export const LEVELS: string[] = Deno.build.arch !== "x86_64"
  ? ["scalar", "neon"]
  : ["scalar", "avx2", "avx512", ...await isThere("amx") ? ["amx"] : []];

/** Levels that this CPU lacks; their tests are skipped. Any other failure to open a device is left to the tests. */
export async function lackingLevels(): Promise<Set<string>> {
  const lacking = new Set<string>();
  for (const level of LEVELS) if (!await isThere(level)) lacking.add(level);
  return lacking;
}

async function isThere(level: string): Promise<boolean> {
  try {
    using _device = await Device.open("cpu", { level });
    return true;
  } catch (error) {
    return !(error instanceof DeviceError && ["no_device", "unsupported"].includes(error.code));
  }
}
