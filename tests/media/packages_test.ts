import { assert, assertEquals } from "@std/assert";

const root = new URL("../../", import.meta.url).pathname;

Deno.test("packages that are imported by computed names stand in the lock file's list with the same versions", async () => {
  const used = [
    ...(await Deno.readTextFile(`${root}src/media/packages.ts`)).matchAll(/npm:(@?[^@"]+@[\d.]+)/g),
  ];
  const listed = await Deno.readTextFile(`${root}tests/media/packages.ts`);
  assert(used.length >= 9);
  for (const [specifier] of used) assert(listed.includes(`"${specifier}`), specifier);
  const wasm = await Deno.readTextFile(`${root}src/media/codec_wasm.js`);
  for (const [specifier] of wasm.matchAll(/npm:@?[^@"]+@[\d.]+/g)) {
    assert(listed.includes(`"${specifier}`), specifier);
  }
});

Deno.test("importing the library names no decoder, so that text alone fetches none", async () => {
  const { stdout } = await new Deno.Command(Deno.execPath(), { args: ["info", "--json", `${root}mod.ts`] })
    .output();
  const { modules } = JSON.parse(new TextDecoder().decode(stdout)) as { modules: { specifier: string }[] };
  const packages = modules.map(({ specifier }) => specifier).filter((specifier) =>
    specifier.startsWith("npm:")
  );
  assertEquals(packages.filter((name) => !name.includes("@huggingface/jinja")), []);
});
