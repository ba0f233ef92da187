/** Comparisons of a model in exact mode with the golden values of a fixture. */
import { assert, assertEquals } from "@std/assert";
import { cosine, largest, maxDifference } from "./models.ts";

/** Throws unless logits [rows, V] meet the golden ones row by row. `what` names them. */
export function checkLogits(logits: Float32Array, expected: Float32Array, V: number, what: string): void {
  assertEquals(logits.length, expected.length, what);
  for (let row = 0; row < logits.length / V; row++) {
    const a = logits.subarray(row * V, (row + 1) * V), b = expected.subarray(row * V, (row + 1) * V);
    assert(cosine(a, b) >= 0.9999, `${what}, row ${row}: cosine ${cosine(a, b)}`);
    assert(maxDifference(a, b) <= 2e-3, `${what}, row ${row}: difference ${maxDifference(a, b)}`);
  }
}

/** Throws unless states, [H] each, meet the golden ones [states, H]. */
export function checkStates(
  states: readonly Float32Array[],
  { shape: [count, H], data }: { shape: number[]; data: Float32Array },
  what: string,
): void {
  assertEquals(states.length, count, what);
  states.forEach((state, i) => {
    const expected = data.subarray(i * H, (i + 1) * H);
    const difference = maxDifference(state, expected);
    assert(difference <= 1e-3 * largest(expected), `${what}, state ${i}: difference ${difference}`);
  });
}
