/**
 * Runs every test and ends with one plain line `N passed, N failed, N skipped`.
 *
 * `deno test` prints no summary after a type error or a crash of the process, so a missing summary, or a
 * failing exit without a failed test, counts as one failure. What failed is said once more just before the
 * last line, as a log of two thousand tests is read from its end. Arguments are passed on as paths or flags:
 * `deno task test tests/tokenizer`.
 */

const root = new URL("..", import.meta.url);

interface Summary {
  passed: number;
  failed: number;
  skipped: number;
}

/** What one `deno test` run came to, with its failed tests and their errors as text. */
interface Outcome extends Summary {
  failures: string;
}

/** Text without the colours of a terminal. */
function plainText(output: string): string {
  // deno-lint-ignore no-control-regex
  return output.replace(/\x1b\[[0-9;]*m/g, "");
}

/** What one `deno test` run said; `null` when it printed no summary. */
export function parseSummary(output: string): Summary | null {
  const plain = plainText(output);
  const pattern =
    /^(?:ok|FAILED) \| (\d+) passed(?: \(\d+ steps?\))? \| (\d+) failed(?: \(\d+ steps?\))?(.*)$/gm;
  const last = [...plain.matchAll(pattern)].at(-1);
  if (last === undefined) return null;
  const ignored = /\| (\d+) ignored/.exec(last[3]);
  return { passed: Number(last[1]), failed: Number(last[2]), skipped: Number(ignored?.[1] ?? 0) };
}

/** The failed tests of one `deno test` run with their errors; without such a list, as after a crash, its last lines. */
export function failureReport(output: string): string {
  const plain = plainText(output);
  const list = /^ ERRORS $([\s\S]*?)^(?: FAILURES $|FAILED \|)/m.exec(plain);
  return (list?.[1] ?? plain.split("\n").slice(-40).join("\n")).trim();
}

/** Runs `deno test` with arguments, echoing its output: at once, or where something is `after` it, when that has ended. */
async function runTests(args: string[], after?: Promise<unknown>): Promise<Outcome> {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["test", "--allow-all", ...args],
    cwd: root,
    stdout: "piped",
    stderr: after === undefined ? "inherit" : "piped",
  }).spawn();
  const messages = after === undefined ? undefined : new Response(child.stderr).bytes();
  const decoder = new TextDecoder();
  let output = "";
  for await (const chunk of child.stdout) {
    output += decoder.decode(chunk, { stream: true });
    if (after === undefined) await Deno.stdout.write(chunk);
  }
  const { code } = await child.status;
  if (after !== undefined) {
    await after;
    const held = new Blob([await messages!, output]).stream();
    await held.pipeTo(Deno.stdout.writable, { preventClose: true });
  }
  const summary = parseSummary(output) ?? { passed: 0, failed: 1, skipped: 0 };
  if (code !== 0 && summary.failed === 0) summary.failed = 1;
  return { ...summary, failures: summary.failed > 0 ? failureReport(output) : "" };
}

/** Compiles some thousand kernels for software Metal, as long as all other tests take together. */
const LONG = "tests/metal/conformance_test.ts";

/** Every test: the long file beside the others, then those in documentation. */
async function runAll(): Promise<Outcome[]> {
  const others = runTests(["tests", `--ignore=${LONG}`]);
  const summaries = await Promise.all([others, runTests([LONG], others)]);
  return [...summaries, await runTests(["--doc", "README.md", "mod.ts", "src"])];
}

if (import.meta.main) {
  const summaries = Deno.args.length > 0 ? [await runTests(Deno.args)] : await runAll();
  const total: Summary = { passed: 0, failed: 0, skipped: 0 };
  for (const summary of summaries) {
    total.passed += summary.passed;
    total.failed += summary.failed;
    total.skipped += summary.skipped;
  }
  const failures = summaries.map((summary) => summary.failures).filter((text) => text !== "");
  if (summaries.length > 1 && failures.length > 0) {
    console.log(`\nWhat failed:\n\n${failures.join("\n\n")}\n`);
  }
  console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
  Deno.exit(total.failed === 0 ? 0 : 1);
}
