/** Opens the device of a model: the one that was asked for, or the best that works. */
import { Device, type DeviceKind } from "../../ffi/device.ts";
import { DeviceError } from "../errors.ts";
import type { Warning } from "../warning.ts";
import type { LoadOptions } from "./api.ts";
import { type SelfCheck, selfCheck } from "./self_check.ts";

/** How to open it. */
export interface OpenDeviceOptions
  extends Pick<LoadOptions, "cache" | "matrixUnits" | "signal" | "onProgress"> {
  precision: "exact" | "fast";
  /** variants of ops that the model needs; called where there is a GPU to check */ variants: () => Set<
    string
  >;
}

/** An open device, and what the caller should see. */
export interface OpenedDevice {
  device: Device;
  warnings: Warning[];
}

/**
 * Opens a device. `auto` falls back to the CPU when a GPU is not as it should be. Rejects like `Device.open`, and with a
 * `DeviceError` ("self_check") where a GPU that was asked for by name computes something wrong.
 */
export async function openDevice(
  kind: "auto" | DeviceKind,
  options: OpenDeviceOptions,
): Promise<OpenedDevice> {
  if (kind === "cpu") return { device: await open("cpu", options), warnings: [] };
  const wanted = kind === "auto" ? "metal" : kind;
  let device: Device;
  try {
    device = await open(wanted, options);
  } catch (error) {
    if (kind !== "auto" || !(error instanceof DeviceError)) throw error;
    // Where the library has no Metal device at all, the CPU is what one expects.
    const expected = error.code === "no_device" && Deno.build.os !== "darwin";
    return await fallBack(options, expected ? undefined : error.message);
  }
  let found: SelfCheck;
  try {
    const { precision, cache, signal, onProgress } = options;
    found = await selfCheck(device, options.variants(), {
      precision,
      cache,
      signal,
      onProgress: onProgress &&
        ((completed, total) => onProgress({ stage: "self-check", completed, total })),
    });
  } catch (error) {
    device[Symbol.dispose]();
    throw error;
  }
  if (found.failure === undefined) return { device, warnings: unchecked(device, found.unchecked) };
  const { name } = device.info();
  device[Symbol.dispose]();
  const failure = `${name} fails its self-check. ${found.failure}`;
  if (kind === "auto") return await fallBack(options, failure);
  throw new DeviceError(
    "self_check",
    `${failure} Use device "cpu"; \`markbase doctor --device ${wanted} --full\` prints the whole table.`,
  );
}

async function open(
  kind: DeviceKind,
  { cache, matrixUnits, signal, onProgress }: OpenDeviceOptions,
): Promise<Device> {
  return await Device.open(kind, {
    cache,
    matrixUnits: kind === "cpu" ? undefined : matrixUnits,
    signal,
    onProgress: onProgress && ((completed, total) => onProgress({ stage: "library", completed, total })),
  });
}

async function fallBack(options: OpenDeviceOptions, reason: string | undefined): Promise<OpenedDevice> {
  const device = await open("cpu", options);
  if (reason === undefined) return { device, warnings: [] };
  return {
    device,
    warnings: [{
      code: "device_fallback",
      message: `The model runs on the CPU instead of the GPU. ${reason}`,
    }],
  };
}

function unchecked(device: Device, variants: string[]): Warning[] {
  if (variants.length === 0) return [];
  return [{
    code: "self_check_incomplete",
    message: `The self-check has no case for what this model asks of ${device.kind}: ${variants.join("; ")}.`,
  }];
}
