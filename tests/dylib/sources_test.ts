import { assert, assertEquals } from "@std/assert";
import { ISAS } from "../../dylib/compiler.ts";
import { scanSources, type Sources } from "../../dylib/sources.ts";
import listed from "../../dylib/sources.json" with { type: "json" };

const folder = new URL("../../dylib/", import.meta.url);

Deno.test("sources.json is what `deno run -A dylib/sources.ts` would write now", async () => {
  assertEquals(listed as Sources, await scanSources(folder));
});

Deno.test("every header that a listed file includes is listed", async () => {
  const listedUrls = new Set(Object.keys(listed.files).map((path) => new URL(path, folder).href));
  for (const url of listedUrls) {
    const text = await Deno.readTextFile(new URL(url));
    for (const [, name] of text.matchAll(/^\s*#\s*include\s*"([^"]+)"/gm)) {
      const places = [new URL(name, url), new URL(name, folder)]; // beside the file, or below dylib
      assert(places.some((place) => listedUrls.has(place.href)), `${url} includes ${name}`);
    }
  }
});

Deno.test("every instruction set that a unit names is known", () => {
  for (const unit of (listed as Sources).units) {
    for (const isa of unit.isa ?? []) assert(isa in ISAS, `${unit.file} names ${isa}`);
  }
});
