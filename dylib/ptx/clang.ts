/** Finds a clang that makes PTX. */
import { optionalEnv, requirePermission } from "../../ffi/permissions.ts";
import { LibraryError } from "../../src/errors.ts";

const CANDIDATES = ["clang++-19", "clang++-20", "clang++-21", "clang++-22", "clang++"];
const LEAST = 19;

/**
 * The command of a clang with the NVPTX target: `MARKBASE_CLANG`, else the first of the usual names that may run and is recent
 * enough. Throws `LibraryError` ("no_ptx_compiler") or `MissingPermission`.
 */
export async function findPtxClang(): Promise<string> {
  const named = await optionalEnv("MARKBASE_CLANG");
  const names = named === undefined ? CANDIDATES : [named];
  const allowed = [];
  for (const command of names) {
    const { state } = await Deno.permissions.query({ name: "run", command });
    if (state === "granted") allowed.push(command);
  }
  if (allowed.length === 0) {
    await requirePermission(
      { name: "run", command: named ?? "clang++" },
      "to compile the kernels of its cuda device with clang",
    );
    allowed.push(named ?? "clang++");
  }
  const reasons = [];
  for (const command of allowed) {
    const reason = await unfit(command);
    if (reason === undefined) return command;
    reasons.push(`${command} ${reason}`);
  }
  throw new LibraryError(
    "no_ptx_compiler",
    `The cuda device needs clang ${LEAST} or later with the NVPTX target, which compiles its kernels once: ${
      reasons.join(", ")
    }. Install one, for example \`sudo apt install clang-19\`, or name one with MARKBASE_CLANG; or use device "cpu".`,
  );
}

/** Why this command cannot make PTX; undefined where it can. */
async function unfit(command: string): Promise<string | undefined> {
  try {
    const version = await output(command, "-dumpversion");
    if (!(Number.parseInt(version) >= LEAST)) return `is version ${version.trim()}`;
    return (await output(command, "--print-targets")).includes("nvptx64") ? undefined : "has no NVPTX target";
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return "is not installed";
    throw error;
  }
}

async function output(command: string, argument: string): Promise<string> {
  const { stdout } = await new Deno.Command(command, { args: [argument], stdin: "null", stderr: "null" })
    .output();
  return new TextDecoder().decode(stdout);
}
