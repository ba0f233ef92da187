import { assert, assertEquals } from "@std/assert";
import { ISAS } from "../../dylib/compiler.ts";
import { scanSources, type Sources } from "../../dylib/sources.ts";
import listed from "../../dylib/sources.json" with { type: "json" };

const folder = new URL("../../dylib/", import.meta.url);

Deno.test("sources.json is what `deno run -A dylib/sources.ts` would write now", async () => {
  assertEquals(listed as Sources, await scanSources(folder));
});

Deno.test("every header that a listed file includes is listed", async () => {
  const paths = new Set(Object.keys(listed.files));
  for (const path of paths) {
    const text = await Deno.readTextFile(new URL(path, folder));
    for (const [, name] of text.matchAll(/^\s*#\s*include\s*"([^"]+)"/gm)) {
      const beside = new URL(name, `file:///${path}`).pathname.slice(1);
      assert(paths.has(beside) || paths.has(name), `${path} includes ${name}`);
    }
  }
});

Deno.test("every instruction set that a unit names is known", () => {
  for (const unit of (listed as Sources).units) {
    for (const isa of unit.isa ?? []) assert(isa in ISAS, `${unit.file} names ${isa}`);
  }
});
