import { assert, assertEquals } from "@std/assert";
import { random } from "../../examples/media/draw.ts";
import { cuesOf, joinSeam, plainText, planChunks, srt, vtt } from "../../src/cli/transcript.ts";

Deno.test("chunks cover a recording, overlap as asked, and the last ends with it", () => {
  assertEquals(planChunks(100, 30, 5), [
    { start: 0, end: 30 },
    { start: 25, end: 55 },
    { start: 50, end: 80 },
    { start: 75, end: 100 },
  ]);
  assertEquals(planChunks(30, 30, 5), [{ start: 0, end: 30 }]);
  assertEquals(planChunks(31, 30, 5), [{ start: 0, end: 30 }, { start: 25, end: 31 }]);
  assertEquals(planChunks(60, 30, 0), [{ start: 0, end: 30 }, { start: 30, end: 60 }]);
  assertEquals(planChunks(61, 30, 0, 4).slice(1), [{ start: 30, end: 60 }, { start: 57, end: 61 }]);
  assertEquals(planChunks(3, 30, 0, 4), [{ start: 0, end: 3 }]);
  for (let samples = 1; samples < 200; samples++) {
    const chunks = planChunks(samples, 17, 8);
    assertEquals([chunks[0].start, chunks.at(-1)!.end], [0, samples]);
    chunks.slice(1).forEach(({ start }, i) => assertEquals(chunks[i].end - start, 8));
    assert(chunks.every(({ start, end }) => end > start && end - start <= 17));
  }
});

Deno.test("what two chunks both heard is kept once, whatever its case and punctuation", () => {
  assertEquals(joinSeam("we went to the old", "the old, harbour"), ["we went to the old", "harbour"]);
  assertEquals(joinSeam("One two three.", "Two, three! Four"), ["One two three.", "Four"]);
  assertEquals(joinSeam("a b c", "d e f"), ["a b c", "d e f"]);
  assertEquals(joinSeam("yes", "yes"), ["yes", ""]);
  assertEquals(joinSeam("", "hello"), ["", "hello"]);
});

Deno.test("words that the seam cut in half do not hide the repetition", () => {
  assertEquals(joinSeam("the red fox jumped ov", "ed fox jumped over it"), ["the red fox jumped", "over it"]);
  assertEquals(joinSeam("a b the c", "x the d"), ["a b the c", "x the d"]); // one word may be chance
});

Deno.test("in scripts without spaces it is the characters that are compared, and texts are joined without spaces", () => {
  assertEquals(joinSeam("今日は天気がいいです。", "気がいいです。散歩に"), [
    "今日は天気がいいです。",
    "散歩に",
  ]);
  assertEquals(joinSeam("今日は", "はい"), ["今日は", "はい"]); // one character may be chance
  assertEquals(joinSeam("日の光 is light", "光 is light now"), ["日の光 is light", "now"]);
  const chunks = planChunks(50, 30, 10);
  assertEquals(
    plainText(cuesOf(chunks, ["今日は天気がいい。", "天気がいい。散歩に行く"], 10)),
    "今日は天気がいい。散歩に行く",
  );
  assertEquals(plainText(cuesOf(chunks, ["안녕 하세요", "여러분"], 10)), "안녕 하세요 여러분");
});

Deno.test("marks that stand alone are no words", () => {
  assertEquals(joinSeam("one - two —", "— two - three"), ["one - two —", "three"]);
  assertEquals(joinSeam("wait …", "… what"), ["wait …", "… what"]);
});

Deno.test("where chunks do not overlap, an equal word on both sides was said twice", () => {
  const cues = cuesOf(planChunks(60, 30, 0), ["she said no", "no again"], 10);
  assertEquals(cues, [{ start: 0, end: 3, text: "she said no" }, { start: 3, end: 6, text: "no again" }]);
});

Deno.test("a talk that is heard in chunks, with words cut in half at their edges, has no word twice and none missing", () => {
  const next = random(5);
  const vocabulary =
    "the a one two red blue fox house ran over under hill green saw we they old and then again".split(" ");
  for (let round = 0; round < 300; round++) {
    // Words of 0.2 to 0.6 s; a chunk hears those inside it, and what is left of those at its edges.
    const spoken: { word: string; from: number; to: number }[] = [];
    for (let at = 0; at < 70;) {
      const to = at + 0.2 + next() * 0.4;
      spoken.push({ word: vocabulary[Math.floor(next() * vocabulary.length)], from: at, to });
      at = to;
    }
    const chunks = planChunks(Math.floor(spoken.at(-1)!.to * 100), 3000, 200);
    const texts = chunks.map(({ start, end }) =>
      spoken.flatMap(({ word, from, to }) => {
        if (to * 100 <= start || from * 100 >= end + 1) return [];
        if (from * 100 < start) return [`${word.slice(-1)}x`];
        return to * 100 > end + 1 ? [`${word.slice(0, 1)}x`] : [word];
      }).join(" ")
    );
    assertEquals(
      plainText(cuesOf(chunks, texts, 100)),
      spoken.map(({ word }) => word).join(" "),
      `round ${round}`,
    );
  }
});

Deno.test("cues meet in the middle of their overlap and texts are joined", () => {
  const chunks = planChunks(50, 30, 10);
  const cues = cuesOf(chunks, ["one two three ", "three four"], 10);
  assertEquals(cues, [{ start: 0, end: 2.5, text: "one two three" }, { start: 2.5, end: 5, text: "four" }]);
  assertEquals(plainText(cues), "one two three four");
});

Deno.test("a sound that goes on over chunks is told of in each", () => {
  const texts = cuesOf(planChunks(50, 30, 10), ["[a low tone]", "[a low tone]"], 10).map(({ text }) => text);
  assertEquals(texts, ["[a low tone]", "[a low tone]"]);
});

Deno.test("subtitles have numbered or plain cues with times to the millisecond, and no empty ones", () => {
  const cues = [
    { start: 0, end: 28.9996, text: "Hello <b>& you\n\nthere" },
    { start: 29, end: 57, text: "" },
    { start: 3599.5, end: 3725.25, text: "bye" },
  ];
  assertEquals(
    srt(cues),
    "1\n00:00:00,000 --> 00:00:29,000\nHello <b>& you\nthere\n\n2\n00:59:59,500 --> 01:02:05,250\nbye\n",
  );
  assertEquals(
    vtt(cues),
    "WEBVTT\n\n00:00:00.000 --> 00:00:29.000\nHello &lt;b&gt;&amp; you\nthere\n\n00:59:59.500 --> 01:02:05.250\nbye\n",
  );
});
