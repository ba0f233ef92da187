/**
 * The self-check of a GPU: cases of the conformance table run on it before its first use for a model, one for each kernel variant
 * that the model needs and nothing is known of yet. The table and its references load only then.
 */
import type { Device } from "../../ffi/device.ts";
import { CheckRecord } from "./check_record.ts";

/** Options of `selfCheck`. */
export interface SelfCheckOptions {
  precision: "exact" | "fast";
  /** cache folder; default as everywhere */ cache?: string;
  /** cases done, of how many; not called where all is known */
  onProgress?: (completed: number, total: number) => void;
  signal?: AbortSignal;
}

/** What a self-check found. */
export interface SelfCheck {
  /** what is wrong, in a sentence that names op, kernel and case; absent: nothing */ failure?: string;
  /** variants that no case is about */ unchecked: string[];
}

/** Codes of failures that say nothing lasting about a kernel: the check ends and the next load tries again. */
const PASSING = ["out_of_memory", "device_lost", "timeout", "cancelled", "io"];

/** Checks a device for these variants of ops. Rejects with the signal's reason alone. */
export async function selfCheck(
  device: Device,
  variants: ReadonlySet<string>,
  options: SelfCheckOptions,
): Promise<SelfCheck> {
  const { precision, signal, onProgress } = options;
  const record = await CheckRecord.open(device, options.cache);
  const before = record.known(variants, precision);
  if (before.failure !== undefined || before.open.length === 0) return before;

  const [{ allCases }, { select }, { check, describeFailure }] = await Promise.all([
    import("../conformance/cases.ts"),
    import("../conformance/select.ts"),
    import("../conformance/check.ts"),
  ]);
  const { cases, missing } = select(allCases(), before.open);
  let completed = 0;
  let failure: string | undefined;
  onProgress?.(0, cases.length);
  for await (const row of check(device, cases, { precisions: [precision], signal })) {
    onProgress?.(++completed, cases.length);
    if (!row.pass) failure ??= describeFailure(row);
    if (row.code !== undefined && PASSING.includes(row.code)) break;
    record.add({
      precision,
      variants: row.variants,
      failure: row.pass ? undefined : describeFailure(row),
    });
  }
  record.leaveUnchecked(missing, precision);
  await record.save();
  return { failure, unchecked: [...before.unchecked, ...missing] };
}
