/** Which tokens a look-up drafts, and how many drafts a forward gets. */
import { assert, assertAlmostEquals, assertEquals } from "@std/assert";
import { Random } from "../../src/conformance/random.ts";
import { DraftCosts, DraftLength } from "../../src/engine/draft_length.ts";
import { lookUp } from "../../src/engine/speculative.ts";

Deno.test("a look-up finds what followed the longest and latest repetition", () => {
  assertEquals(lookUp([1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
  assertEquals(lookUp([9, 2, 3, 7, 1, 2, 3, 8, 2, 3], 3), [8, 2, 3]);
  assertEquals(lookUp([1, 1, 1, 1], 4), [1]);
  assertEquals(lookUp([1, 2, 3], 4), []);
  assertEquals(lookUp([5], 4), []);
});

Deno.test("the number of drafts grows with acceptance, shrinks without, and rests where drafting is in vain", () => {
  const lengths = new DraftLength(undefined, 8);
  for (let i = 0; i < 5; i++) lengths.note(lengths.next(), lengths.next());
  assertEquals(lengths.next(), 8);
  lengths.note(8, 1);
  assertEquals(lengths.next(), 2);
  let zeros = 0;
  for (let i = 0; i < 100; i++) {
    const count = lengths.next((drafts) => 1 + drafts / 10);
    if (count === 0) zeros++;
    lengths.note(count, 0);
  }
  assert(zeros > 50, `${zeros}`);
  const fixed = new DraftLength(3, 8);
  fixed.note(3, 0);
  assertEquals(fixed.next(), 3);
});

Deno.test("drafts are as many as pay for themselves, and none where checking costs more than they give", () => {
  /** Cost of a token, without drafts 1, over texts whose drafts are right with this share, at a price for each draft. */
  const perToken = (right: number, price: number) => {
    let tokens = 0, cost = 0;
    for (let seed = 0; seed < 20; seed++) {
      const random = new Random(seed);
      const lengths = new DraftLength(undefined, 8);
      for (const end = tokens + 400; tokens < end;) {
        const count = lengths.next((drafts) => 1 + price * drafts);
        let accepted = 0;
        while (accepted < count && random.uniform() < right) accepted++;
        lengths.note(count, accepted);
        tokens += accepted + 1;
        cost += 1 + price * count;
      }
    }
    return cost / tokens;
  };
  // The best constant number of drafts takes 0.29, 0.69, 0.88 and 0.73.
  for (
    const [right, price, most] of [[0.9, 0.1, 0.38], [0.5, 0.1, 0.75], [0.25, 0.1, 0.97], [0.7, 0.3, 0.78]]
  ) {
    assert(perToken(right, price) < most, `${right} right at ${price}: ${perToken(right, price)}`);
  }
  for (const price of [0.3, 1, 3]) {
    for (const right of [0, 0.1, 0.25]) { // none pays; to look from time to time whether one does costs this
      const cost = perToken(right, price);
      assert(cost < 1.01 + price / 50, `${right} right at ${price}: ${cost}`);
    }
  }
  const unknown = new DraftLength(undefined, 8);
  assertEquals([unknown.next(() => undefined), unknown.next(() => 1)], [0, 4]);
});

Deno.test("what drafts cost follows from the times of forwards, those never timed taken to be as the next smaller", () => {
  const costs = new DraftCosts();
  const note = (sequences: number, rows: number, ...seconds: number[]) =>
    seconds.forEach((time) => costs.note(sequences, rows, time));
  const check = (drafts: number, isNetwork: boolean, expected: number) =>
    assertAlmostEquals(costs.of(drafts, isNetwork)!, expected, 1e-9);
  assertEquals(costs.of(3, false), undefined);
  note(1, 1, 9); // the first is left out
  assertEquals(costs.of(3, false), undefined);
  note(1, 1, 0.1);
  check(8, false, 1);
  note(1, 5, 9, 0.3);
  check(4, false, 3);
  check(2, false, 2);
  check(8, false, 3);
  costs.noteSteps(4, 9);
  costs.noteSteps(4, 0.04);
  check(4, true, 3.4);
  note(1, 1, 0.9); // a spike
  check(4, false, 1.5);
  note(1, 1, 0.1);
  check(4, false, 3);
  // Sequences that share the forward share its rows.
  note(8, 8, 9, 0.4);
  check(1, false, 1);
  assertEquals(costs.of(2, false), Infinity);
});
