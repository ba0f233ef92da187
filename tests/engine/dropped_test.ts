import { assertEquals } from "@std/assert";

Deno.test("iterators and sessions that are dropped half-way give their pages back when they are collected", async () => {
  const script = new URL("./dropped.ts", import.meta.url);
  const { success, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--v8-flags=--expose-gc", script.href],
  }).output();
  const text = new TextDecoder();
  assertEquals([text.decode(stdout).trim(), success], ["given back", true], text.decode(stderr));
});
