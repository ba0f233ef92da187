/** Options of `load`, checked, and what tests turn beside them. */
import type { DeviceKind } from "../../ffi/device.ts";
import { checkNames, choice, integer, signalOf } from "../arguments.ts";
import { InvalidArgument } from "../errors.ts";
import type { KvFormat } from "../schedule/groups.ts";
import type { LoadOptions } from "./api.ts";
import { LOAD_OPTIONS } from "./options.ts";

/** Checked options with every default filled in. */
export interface LoadSettings {
  device: "auto" | DeviceKind;
  precision: "exact" | "fast";
  kvCache: KvFormat;
  matrixUnits: boolean;
  contextLength: number | undefined;
  /** bytes */ memory: number | undefined;
  signal: AbortSignal | undefined;
}

/** What tests turn. */
export interface Internals {
  /** rows of one prefill chunk at most */ chunkRows?: number;
  /** false: the elementary schedule */ fuse?: boolean;
  /** false: no two activations share bytes */ reuse?: boolean;
  /** look for NaN and Inf after each op */ checkFinite?: boolean;
  /** pages of each group that the prefix cache keeps at most; 0 keeps none */ keptPrefixes?: number;
  /** pages of each group, whatever the budget says */ kvPages?: number;
  /** decode forwards that took less run on the caller's thread the next time */ shortSeconds?: number;
  /** layers times rows of one run of a tower */ towerLayerRows?: number;
}

/** Throws `UnknownOption`, or `InvalidArgument` that names the option. */
export function loadSettings(options: LoadOptions): LoadSettings {
  checkNames(options, LOAD_OPTIONS);
  if (options.onProgress !== undefined && typeof options.onProgress !== "function") {
    throw new InvalidArgument("onProgress must be a function.");
  }
  if (options.cache !== undefined && (typeof options.cache !== "string" || options.cache === "")) {
    throw new InvalidArgument("cache must be the path of a folder.");
  }
  if (options.matrixUnits !== undefined && typeof options.matrixUnits !== "boolean") {
    throw new InvalidArgument("matrixUnits must be true or false.");
  }
  return {
    device: choice("device", options.device, ["auto", "cpu", "metal", "cuda"]) ?? "auto",
    precision: choice("precision", options.precision, ["exact", "fast"]) ?? "fast",
    kvCache: choice("kvCache", options.kvCache, ["f16", "f32", "q8"]) ?? "f16",
    matrixUnits: options.matrixUnits ?? false,
    contextLength: integer("contextLength", options.contextLength, 1, 2 ** 31),
    memory: integer("memory", options.memory, 1, Number.MAX_SAFE_INTEGER),
    signal: signalOf(options.signal),
  };
}
