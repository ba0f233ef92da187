import { assertEquals } from "@std/assert";
import { StopText } from "../../src/engine/stop_text.ts";

/** Feeds a text in pieces and returns what was shown, and whether it stopped. */
function feed(stops: string[], pieces: string[]): { shown: string; stopped: boolean } {
  const stop = new StopText(stops);
  let shown = "";
  for (const piece of pieces) {
    const { text, stopped } = stop.push(piece);
    shown += text;
    if (stopped) return { shown, stopped };
  }
  return { shown: shown + stop.flush(), stopped: false };
}

Deno.test("a stop text is found across every cut of the text, and nothing of it is shown", () => {
  const text = "one two </end> three";
  for (let a = 0; a <= text.length; a++) {
    for (let b = a; b <= text.length; b++) {
      const pieces = [text.slice(0, a), text.slice(a, b), text.slice(b)];
      assertEquals(feed(["</end>", "zzz"], pieces), { shown: "one two ", stopped: true });
    }
  }
});

Deno.test("text that only begins like a stop text is shown in the end", () => {
  const text = "a </en b </";
  for (let a = 0; a <= text.length; a++) {
    assertEquals(feed(["</end>"], [text.slice(0, a), text.slice(a)]), { shown: text, stopped: false });
  }
});

Deno.test("no more is held back than could still become a stop text", () => {
  const stop = new StopText(["\n\n", "END"]);
  assertEquals(stop.push("hello").text, "hello");
  assertEquals(stop.push("\n").text, "");
  assertEquals(stop.push("E").text, "\n");
  assertEquals(stop.push("N").text, "");
  assertEquals(stop.push("x").text, "ENx");
  assertEquals(new StopText([]).push("END").text, "END");
});

Deno.test("the first of several stop texts decides, also when they overlap", () => {
  assertEquals(feed(["bc", "abcd"], ["xabcd"]), { shown: "x", stopped: true });
  assertEquals(feed(["aab"], ["aaab"]), { shown: "a", stopped: true });
  assertEquals(feed(["aab"], ["a", "a", "a", "b"]), { shown: "a", stopped: true });
});
