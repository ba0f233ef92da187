/** Towers and prompts with media on software Metal: every fixture, and the shipped model. */
import { testGoldens } from "../towers/goldens.ts";
import { testPlaced } from "../towers/placed.ts";
import { testTiny } from "../towers/tiny.ts";
import { EXACT, loadMetal } from "./load.ts";

if (Deno.build.os === "linux") {
  const load = (contextLength: number) => (folder: string, internals: Parameters<typeof loadMetal>[2]) =>
    loadMetal(folder, { ...EXACT, contextLength }, internals);
  testGoldens("software Metal", load(512), [{}]);
  testPlaced("software Metal", load(1280));
  testTiny("software Metal", load(768));
}
