/** `markbase doctor`: what this machine has, and whether the library computes on it what it should. */
import { Device, type DeviceKind } from "../../ffi/device.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { openLibrary } from "../../ffi/library.ts";
import { load } from "../../mod.ts";
import { allCases } from "../conformance/cases.ts";
import { runsOn, type TableCase } from "../conformance/case.ts";
import { check, type CheckedRow, describeFailure } from "../conformance/check.ts";
import { select } from "../conformance/select.ts";
import { CheckRecord } from "../engine/check_record.ts";
import { InvalidArgument, MarkbaseError } from "../errors.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { type ConformanceSummary, describeSummary, summarise } from "./conformance_table.ts";
import { ProgressBar } from "./progress.ts";
import { bytes, style, write } from "./terminal.ts";

const DEVICES: readonly DeviceKind[] = ["cpu", "metal", "cuda"];

const flags = {
  device: { type: "string", choices: DEVICES, help: "check this device only" },
  full: { type: "boolean", help: "every case of the conformance table (a minute or two)" },
  quick: { type: "boolean", help: "one case an op" },
  json: { type: "boolean", help: "print everything as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase doctor\n\nChecks Deno, the native library, the devices and the shipped model. On each device ` +
  `cases of the conformance\ntable run in both precisions, by default few that are about every kernel variant.\n\n${
    describeFlags(flags)
  }`;

/** One finding: `ok`, `absent` (a device that this machine does not have) or `failed`. */
interface Finding {
  name: string;
  state: "ok" | "absent" | "failed";
  detail: string;
  /** of a device */ conformance?: ConformanceSummary;
}

/** Runs the command with the words after its name; throws when a check fails. */
export async function doctor(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words);
  if (values.full && values.quick) throw new InvalidArgument("--full and --quick exclude each other.");
  const findings: Finding[] = [];
  const examine = async (name: string, work: () => Promise<Omit<Finding, "name" | "state">>) => {
    signal.throwIfAborted();
    const finding = await find(name, work);
    signal.throwIfAborted();
    findings.push(finding);
    if (!values.json) await write(Deno.stdout, describe(finding));
  };
  await examine("deno", async () => await { detail: [Deno.version.deno, ...systemWords()].join(", ") });
  await examine("cache", async () => ({ detail: await cacheFolder() }));
  await examine("library", async () => {
    using bar = new ProgressBar();
    const { path, sha256 } = await openLibrary({
      signal,
      onProgress: (completed, total) => bar.update({ stage: "library", completed, total }),
    });
    return { detail: `${path}, SHA-256 ${sha256.slice(0, 16)}…` };
  });
  const cases = chosenCases(values.full ? "full" : values.quick ? "quick" : "variants");
  for (const kind of DEVICES) {
    if (values.device === undefined || values.device === kind) {
      const able = cases.filter((c) => runsOn(kind, c));
      await examine(kind, () => examineDevice(kind, able, signal));
    }
  }
  await examine("model", () => examineModel(values.device as DeviceKind | undefined, signal));
  if (values.json) await write(Deno.stdout, JSON.stringify(findings) + "\n");
  // A device that was asked for by name should be there.
  const failed = findings.filter(({ name, state }) =>
    state === "failed" || state === "absent" && name === values.device
  );
  if (failed.length > 0) {
    throw new MarkbaseError(
      "doctor",
      `${failed.length} of ${findings.length} checks failed: ${failed.map((f) => f.name).join(", ")}.`,
    );
  }
}

/** What a report of a fault must name of the system: its kind, and its release where that may be asked for. */
function systemWords(): string[] {
  const { state } = Deno.permissions.querySync({ name: "sys", kind: "osRelease" });
  return [Deno.build.target, ...(state === "granted" ? [`${Deno.build.os} ${Deno.osRelease()}`] : [])];
}

function chosenCases(extent: "full" | "quick" | "variants"): TableCase[] {
  const cases = allCases();
  if (extent === "full") return cases;
  const chosen = select(cases, cases.flatMap((c) => c.variants)).cases; // those that cover most come first
  if (extent === "variants") return cases.filter((c) => chosen.includes(c)); // op by op
  return [...new Set(cases.map((c) => c.op))].map((op) => chosen.find((c) => c.op === op)!);
}

/** Opens a device and runs the cases; what they show is kept for the self-check of `load`. */
async function examineDevice(
  kind: DeviceKind,
  cases: readonly TableCase[],
  signal: AbortSignal,
): Promise<Omit<Finding, "name" | "state">> {
  await using device = await Device.open(kind, { signal });
  const info = device.info();
  const record = kind === "cpu" ? undefined : await CheckRecord.open(device);
  const rows: CheckedRow[] = [];
  const started = performance.now();
  {
    using bar = new ProgressBar();
    for await (const row of check(device, cases, { precisions: ["exact", "fast"], signal })) {
      rows.push(row);
      bar.update({ stage: kind, completed: rows.length, total: 2 * cases.length });
      record?.add({ ...row, failure: row.pass ? undefined : describeFailure(row) });
    }
  }
  await record?.save();
  const conformance = summarise(rows);
  const seconds = ((performance.now() - started) / 1e3).toFixed(1);
  const what = [
    info.name,
    info.level,
    ...(info.system === undefined ? [] : [info.system]),
    ...(info.threads > 0 ? [`${info.threads} threads`] : []),
    bytes(info.memoryBytes),
  ];
  const failed = conformance.failures.length;
  return {
    detail: `${what.join(", ")}: ${
      failed === 0 ? "" : `${failed} of `
    }${rows.length} runs of ${cases.length} cases ${
      failed === 0 ? "agree with" : "differ from"
    } the reference (${seconds} s)`,
    conformance,
  };
}

async function examineModel(
  device: DeviceKind | undefined,
  signal: AbortSignal,
): Promise<Omit<Finding, "name" | "state">> {
  await using model = await load("tiny", { device: device ?? "auto", signal });
  const { text, receipt, warnings } = await model.chat([{ role: "user", content: "What is 27 + 45?" }], {
    temperature: 0,
    signal,
  });
  if (text !== "72") {
    throw new Error(`The shipped model answers "${text}" to 27 + 45; the right answer is 72.`);
  }
  const notes = warnings.map(({ message }) => ` ${message}`).join("");
  return { detail: `the shipped model adds 27 and 45 on ${receipt.device}.${notes}` };
}

async function find(name: string, work: () => Promise<Omit<Finding, "name" | "state">>): Promise<Finding> {
  try {
    const found = await work();
    const wrong = found.conformance !== undefined && found.conformance.failures.length > 0;
    return { name, state: wrong ? "failed" : "ok", ...found };
  } catch (error) {
    if (error instanceof MarkbaseError && error.code === "no_device") {
      return { name, state: "absent", detail: error.message };
    }
    return { name, state: "failed", detail: error instanceof Error ? error.message : String(error) };
  }
}

function describe({ name, state, detail, conformance }: Finding): string {
  const colour = state === "ok" ? "green" : state === "absent" ? "dim" : "red";
  const line = `${style(state.padEnd(7), colour)} ${name}: ${detail}\n`;
  if (conformance === undefined) return line;
  return line + describeSummary(conformance).replace(/^/gm, "        ") + "\n";
}
