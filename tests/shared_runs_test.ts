import { assert, assertEquals, assertRejects } from "@std/assert";
import { SharedRuns } from "../src/shared_runs.ts";

/** Shared runs that end when told, and what became of each. */
function controlled() {
  const runs: { signal: AbortSignal; end: PromiseWithResolvers<number> }[] = [];
  const work = (signal: AbortSignal) => {
    const end = Promise.withResolvers<number>();
    signal.addEventListener("abort", () => end.reject(signal.reason));
    runs.push({ signal, end });
    return end.promise;
  };
  return { shared: new SharedRuns<number>(), runs, work };
}

Deno.test("callers of one key share a run while it is under way, those of another key and later ones do not", async () => {
  const { shared, runs, work } = controlled();
  const calls = ["a", "a", "b"].map((key) => shared.share(key, undefined, work));
  await null;
  assertEquals(runs.length, 2);
  runs.forEach(({ end }, i) => end.resolve(i));
  assertEquals(await Promise.all(calls), [0, 0, 1]);
  const later = shared.share("a", undefined, work);
  await null;
  assertEquals(runs.length, 3);
  runs[2].end.resolve(2);
  assertEquals(await later, 2);
});

Deno.test("a caller that aborts leaves at once, and the run goes on for the others", async () => {
  const { shared, runs, work } = controlled();
  const first = new AbortController();
  const leaving = shared.share("a", first.signal, work);
  const staying = shared.share("a", undefined, work);
  first.abort(new Error("no longer wanted"));
  await assertRejects(() => leaving, Error, "no longer wanted");
  assert(!runs[0].signal.aborted);
  runs[0].end.resolve(7);
  assertEquals(await staying, 7);
});

Deno.test("a run that all callers left is cancelled, and the next caller begins one of its own", async () => {
  const { shared, runs, work } = controlled();
  const stop = new AbortController();
  const calls = [1, 2].map(() => shared.share("a", stop.signal, work));
  await null;
  stop.abort(new Error("enough"));
  for (const call of calls) await assertRejects(() => call, Error, "enough");
  assert(runs[0].signal.aborted);
  await assertRejects(() => shared.share("a", stop.signal, work), Error, "enough");
  const next = shared.share("a", undefined, work);
  await null;
  assertEquals(runs.length, 2);
  runs[1].end.resolve(1);
  assertEquals(await next, 1);
});

Deno.test("a run that fails rejects every caller, and the next one tries again", async () => {
  const shared = new SharedRuns<number>();
  const failing = [1, 2].map(() => shared.share("a", undefined, () => Promise.reject(new Error("lost"))));
  for (const call of failing) await assertRejects(() => call, Error, "lost");
  assertEquals(await shared.share("a", undefined, () => Promise.resolve(3)), 3);
});
