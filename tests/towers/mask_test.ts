/** Which keys a position sees, for both values of the config's flag, both kinds of layers and both classes. */
import { assertEquals } from "@std/assert";
import { parseConfig } from "../../src/checkpoint/config.ts";
import { attend } from "../../src/conformance/oracle/attention.ts";
import { fixtureModel } from "../support/models.ts";

/** Keys that each position of three words, four patches of a picture and two words sees: `x` seen, `.` not. */
function visible(block: "causal" | "window" | "whole", window: number | null, picture = true): string[] {
  const d = 10, length = 9;
  // All scores are equal, and the value of key i is 1 in lane i alone: what is not 0 was seen.
  const values = new Float64Array(2 * 32 * d);
  for (let key = 0; key < length; key++) values[(32 + key) * d + key] = 1;
  const kv = { values, planes: 2, layer: 0, kvHeads: 1, d, stored: (head: Float64Array) => head };
  const places = Array.from({ length }, (_, position) => ({
    position,
    table: { first: 0, pages: [0] },
    ...(picture && position >= 3 && position < 7 ? { block: [3, 6] as const } : {}),
  }));
  const options = { heads: 1, kvHeads: 1, window, block, scoreScale: 1 };
  const seen = attend(new Float64Array(length * d), kv, options, places);
  return places.map((_, row) =>
    Array.from({ length }, (_, key) => seen[row * d + key] > 0 ? "x" : ".").join("")
  );
}

/** What the layers of a fixture ask for, sliding and full ones. */
function rulesOf(row: string, flag: unknown) {
  const config = JSON.parse(Deno.readTextFileSync(`${fixtureModel(row)}/config.json`));
  config.text_config.use_bidirectional_attention = flag;
  const { layers } = parseConfig(config);
  const rule = (kind: string) => layers.find((layer) => layer.kind === kind)!.mediaBlock;
  return { sliding: rule("sliding"), full: rule("full") };
}

const CAUSAL = "x........ xx....... xxx...... xxxx..... xxxxx.... xxxxxx... xxxxxxx.. xxxxxxxx. xxxxxxxxx";
const CAUSAL_3 = "x........ xx....... xxx...... .xxx..... ..xxx.... ...xxx... ....xxx.. .....xxx. ......xxx";
const WINDOW_3 = "x........ xx....... xxx...... .xxxxxx.. ..xxxxx.. ...xxxx.. ....xxx.. .....xxx. ......xxx";
const WHOLE = "x........ xx....... xxx...... xxxxxxx.. xxxxxxx.. xxxxxxx.. xxxxxxx.. xxxxxxxx. xxxxxxxxx";
const WHOLE_3 = "x........ xx....... xxx...... .xxxxxx.. ..xxxxx.. ...xxxx.. ...xxxx.. .....xxx. ......xxx";

Deno.test("without the flag every layer is causal, pictures too", () => {
  for (const flag of [null, undefined]) {
    const { sliding, full } = rulesOf("31b-mm", flag);
    assertEquals(visible(sliding, 3).join(" "), CAUSAL_3);
    assertEquals(visible(full, null).join(" "), CAUSAL);
  }
});

Deno.test("with the flag a picture's patches see each other in sliding layers, inside the window, and not in full ones", () => {
  const { sliding, full } = rulesOf("31b-mm", "vision");
  assertEquals(visible(sliding, 3).join(" "), WINDOW_3);
  assertEquals(visible(full, null).join(" "), CAUSAL);
});

Deno.test({
  name: "in the unified class with the flag they see their whole picture in both kinds of layers",
  ignore: fixtureModel("12b") === null,
  fn() {
    const { sliding, full } = rulesOf("12b", "vision");
    assertEquals(visible(sliding, 3).join(" "), WHOLE_3);
    assertEquals(visible(full, null).join(" "), WHOLE);
  },
});

Deno.test("a sound in the same place is causal under every rule", () => {
  for (const rule of ["causal", "window", "whole"] as const) {
    assertEquals(visible(rule, null, false).join(" "), CAUSAL);
    assertEquals(visible(rule, 3, false).join(" "), CAUSAL_3);
  }
});
