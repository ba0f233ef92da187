/**
 * Runs every test and ends with one plain line `N passed, N failed, N skipped`.
 *
 * `deno test` prints no summary after a type error or a crash of the process, so a missing summary, or a
 * failing exit without a failed test, counts as one failure. Arguments are passed on as paths or flags:
 * `deno task test tests/tokenizer`.
 */

const root = new URL("..", import.meta.url);

interface Summary {
  passed: number;
  failed: number;
  skipped: number;
}

/** What one `deno test` run said; `null` when it printed no summary. */
export function parseSummary(output: string): Summary | null {
  // deno-lint-ignore no-control-regex
  const plain = output.replace(/\x1b\[[0-9;]*m/g, "");
  const pattern =
    /^(?:ok|FAILED) \| (\d+) passed(?: \(\d+ steps?\))? \| (\d+) failed(?: \(\d+ steps?\))?(.*)$/gm;
  const last = [...plain.matchAll(pattern)].at(-1);
  if (last === undefined) return null;
  const ignored = /\| (\d+) ignored/.exec(last[3]);
  return { passed: Number(last[1]), failed: Number(last[2]), skipped: Number(ignored?.[1] ?? 0) };
}

/** Runs `deno test` with arguments, echoing its output: at once, or where something is `after` it, when that has ended. */
async function runTests(args: string[], after?: Promise<unknown>): Promise<Summary> {
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
  return summary;
}

/** Compiles some thousand kernels for software Metal, as long as all other tests take together. */
const LONG = "tests/metal/conformance_test.ts";

/** Every test: the long file beside the others, then those in documentation. */
async function runAll(): Promise<Summary[]> {
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
  console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
  Deno.exit(total.failed === 0 ? 0 : 1);
}
