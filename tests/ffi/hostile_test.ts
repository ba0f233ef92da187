import { assert, assertEquals } from "@std/assert";

Deno.test("every word of a plan and of an input block set to hostile values gives a typed error or a run", async () => {
  const script = new URL("./hostile.ts", import.meta.url);
  const { success, stdout, stderr, signal } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", script.href],
    stdout: "piped",
    stderr: "piped",
  }).output();
  assertEquals(signal, null, "the process crashed");
  assert(success, new TextDecoder().decode(stderr));
  const counts: Record<string, number> = JSON.parse(new TextDecoder().decode(stdout));
  assert(counts["plan invalid_plan"] > 20000 && counts["input invalid_input"] > 1000, JSON.stringify(counts));
  assert(counts["run accepted"] > 500 && counts["input accepted"] > 100, "harmless changes are accepted");
  assertEquals(counts.good, 4);
});
