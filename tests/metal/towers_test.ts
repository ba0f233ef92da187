/** Towers and prompts with media on software Metal: every fixture, and the shipped model. */
import { assert, assertEquals } from "@std/assert";
import { cosine, readTensors, TINY } from "../support/models.ts";
import { testGoldens } from "../towers/goldens.ts";
import { testPlaced } from "../towers/placed.ts";
import { mediaOf, readCase, testTiny } from "../towers/tiny.ts";
import { EXACT, loadMetal } from "./load.ts";

if (Deno.build.os === "linux") {
  const load = (contextLength: number) => (folder: string, internals: Parameters<typeof loadMetal>[2]) =>
    loadMetal(folder, { ...EXACT, contextLength }, internals);
  testGoldens("software Metal", load(512), [{}]);
  testPlaced("software Metal", load(1280));
  testTiny("software Metal", load(768));

  Deno.test("the shipped model on software Metal in fast mode, as it is used, sees and hears the same", async () => {
    await using model = await loadMetal(TINY, { device: "metal", contextLength: 768 });
    const cases = await Promise.all(["image_two", "audio_digits", "mixed"].map(readCase));
    const replies = await model.batch(cases.map(({ messages }) => messages), { temperature: 0 });
    assertEquals(replies.map(({ text }) => text), cases.map((golden) => golden.output_text_clean));
    const exact = await readTensors(
      new URL("../fixtures/tiny/media_logits.safetensors", import.meta.url).pathname,
    );
    const [{ input_ids: ids }] = cases;
    const expected = exact.get("image_two.logits_last")!.data;
    const logits = await model.logits(ids, { media: mediaOf(cases[0]) });
    assert(cosine(logits, expected) >= 0.999, `cosine ${cosine(logits, expected)}`);
  });
}
