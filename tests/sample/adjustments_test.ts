import { assertEquals } from "@std/assert";
import { Adjustments, type PenaltyOptions } from "../../src/sample/adjustments.ts";

const NONE: PenaltyOptions = {
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
};

Deno.test("without penalties and biases there are no adjustments, however much is generated", () => {
  const adjustments = new Adjustments(NONE, [1, 2, 3]);
  adjustments.accept(5);
  assertEquals(adjustments.list(), undefined);
});

Deno.test("the repetition penalty covers prompt and reply; presence and frequency cover the reply alone", () => {
  const adjustments = new Adjustments(
    {
      repetitionPenalty: 2,
      presencePenalty: 0.5,
      frequencyPenalty: 0.25,
      logitBias: new Map([[9, 4], [3, -1]]),
    },
    [7, 3],
  );
  adjustments.accept(5);
  adjustments.accept(5);
  adjustments.accept(9);
  assertEquals(adjustments.list(), [
    { id: 3, multiply: 0.5, add: -1 },
    { id: 5, multiply: 0.5, add: -1 },
    { id: 7, multiply: 0.5, add: 0 },
    { id: 9, multiply: 0.5, add: 3.25 },
  ]);
});

Deno.test("a biased token is not penalised before it occurs", () => {
  const adjustments = new Adjustments({ ...NONE, repetitionPenalty: 2, logitBias: new Map([[4, 1]]) }, []);
  assertEquals(adjustments.list(), [{ id: 4, multiply: 1, add: 1 }]);
});

Deno.test("the list grows in ascending order with each new token", () => {
  const adjustments = new Adjustments({ ...NONE, presencePenalty: 1 }, []);
  for (const id of [8, 2, 5, 2, 1]) {
    adjustments.accept(id);
    const ids = adjustments.list()!.map((entry) => entry.id);
    assertEquals(ids, [...ids].sort((a, b) => a - b));
  }
});

Deno.test("applied to a row, adjustments are computed in f32 and lower both signs of a repeated token", () => {
  const adjustments = new Adjustments({ ...NONE, repetitionPenalty: 1.1, logitBias: new Map([[2, 0.1]]) }, [
    0,
    1,
  ]);
  const logits = Float32Array.of(3, -3, 1, 7);
  const single = Array.from(logits, (logit, id) => adjustments.applied(id, logit));
  adjustments.apply(logits);
  assertEquals(single, [...logits]);
  const m = Math.fround(1 / 1.1);
  assertEquals([...logits], [Math.fround(3 * m), Math.fround(-3 / m), Math.fround(1 + Math.fround(0.1)), 7]);
});
