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

/** Runs `deno test` with arguments, echoing its output. */
async function runTests(args: string[]): Promise<Summary> {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["test", "--allow-all", ...args],
    cwd: root,
    stdout: "piped",
    stderr: "inherit",
  }).spawn();
  const decoder = new TextDecoder();
  let output = "";
  for await (const chunk of child.stdout) {
    output += decoder.decode(chunk, { stream: true });
    await Deno.stdout.write(chunk);
  }
  const { code } = await child.status;
  const summary = parseSummary(output) ?? { passed: 0, failed: 1, skipped: 0 };
  if (code !== 0 && summary.failed === 0) summary.failed = 1;
  return summary;
}

if (import.meta.main) {
  const runs = Deno.args.length > 0 ? [Deno.args] : [["tests"], ["--doc", "README.md", "mod.ts", "src"]];
  const total: Summary = { passed: 0, failed: 0, skipped: 0 };
  for (const args of runs) {
    const summary = await runTests(args);
    total.passed += summary.passed;
    total.failed += summary.failed;
    total.skipped += summary.skipped;
  }
  console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
  Deno.exit(total.failed === 0 ? 0 : 1);
}
