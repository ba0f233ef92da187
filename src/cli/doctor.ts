/** `markbase doctor`: what this machine has, and whether the library works on it. */
import { Device, type DeviceKind } from "../../ffi/device.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { openLibrary } from "../../ffi/library.ts";
import { load } from "../../mod.ts";
import { MarkbaseError } from "../errors.ts";
import { describeFlags, parseFlags } from "./args.ts";
import { ProgressBar } from "./progress.ts";
import { bytes, style, write } from "./terminal.ts";

const flags = {
  json: { type: "boolean", help: "print the findings as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase doctor\n\nChecks Deno, the native library, the devices and the shipped model.\n\n${
    describeFlags(flags)
  }`;

/** One finding: `ok`, `absent` (a device that this machine does not have) or `failed`. */
interface Finding {
  name: string;
  state: "ok" | "absent" | "failed";
  detail: string;
}

const DEVICES: readonly DeviceKind[] = ["cpu", "metal", "cuda"];

/** Runs the command with the words after its name; throws when a check fails. */
export async function doctor(args: string[], signal: AbortSignal): Promise<void> {
  const { values } = parseFlags(args, flags);
  const findings: Finding[] = [];
  const check = async (name: string, work: () => Promise<string> | string) => {
    signal.throwIfAborted();
    const finding = await examine(name, work);
    findings.push(finding);
    if (!values.json) {
      const colour = finding.state === "ok" ? "green" : finding.state === "absent" ? "dim" : "red";
      await write(Deno.stdout, `${style(finding.state.padEnd(7), colour)} ${name}: ${finding.detail}\n`);
    }
  };
  await check("deno", () => `${Deno.version.deno}, ${Deno.build.target}`);
  await check("cache", async () => await cacheFolder());
  await check("library", async () => {
    using bar = new ProgressBar();
    const { path, sha256 } = await openLibrary({
      signal,
      onProgress: (completed, total) => bar.update({ stage: "library", completed, total }),
    });
    return `${path}, SHA-256 ${sha256.slice(0, 16)}…`;
  });
  for (const kind of DEVICES) {
    await check(kind, async () => {
      await using device = await Device.open(kind);
      const info = device.info();
      return `${info.name}, ${info.level}, ${info.threads} threads, ${bytes(info.memoryBytes)}`;
    });
  }
  await check("model", async () => {
    await using model = await load("tiny", { signal });
    const { text } = await model.chat([{ role: "user", content: "What is 27 + 45?" }], {
      temperature: 0,
      signal,
    });
    if (text !== "72") {
      throw new Error(`The shipped model answers "${text}" to 27 + 45; the right answer is 72.`);
    }
    return "the shipped model adds 27 and 45";
  });
  if (values.json) await write(Deno.stdout, JSON.stringify(findings) + "\n");
  const failed = findings.filter((finding) => finding.state === "failed");
  if (failed.length > 0) {
    throw new MarkbaseError(
      "doctor",
      `${failed.length} of ${findings.length} checks failed: ${failed.map((f) => f.name).join(", ")}.`,
    );
  }
}

async function examine(name: string, work: () => Promise<string> | string): Promise<Finding> {
  try {
    return { name, state: "ok", detail: await work() };
  } catch (error) {
    if (error instanceof MarkbaseError && error.code === "no_device") {
      return { name, state: "absent", detail: error.message };
    }
    return { name, state: "failed", detail: error instanceof Error ? error.message : String(error) };
  }
}
