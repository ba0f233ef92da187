/** How far an output is from its reference. */

/** The difference of two arrays in the terms that tolerances are stated in. */
export interface Difference {
  /** norm of the difference over norm of the reference; Infinity where a number is missing */ error: number;
  /** largest difference of one element, in units of the reference's root mean square plus the element's own size */
  worst: number;
}

/**
 * Compares an output with its reference. Where the reference is -Infinity (padding) the output may be anything but NaN
 * and must not be above -1e30.
 */
export function difference(actual: ArrayLike<number>, reference: ArrayLike<number>): Difference {
  let [differences, squares, count] = [0, 0, 0];
  for (let i = 0; i < reference.length; i++) {
    if (reference[i] === -Infinity) {
      if (!(actual[i] <= -1e30)) return { error: Infinity, worst: Infinity };
      continue;
    }
    if (!Number.isFinite(actual[i])) return { error: Infinity, worst: Infinity };
    differences += (actual[i] - reference[i]) ** 2;
    squares += reference[i] ** 2;
    count++;
  }
  if (differences === 0) return { error: 0, worst: 0 };
  const size = Math.sqrt(squares / count);
  let worst = 0;
  for (let i = 0; i < reference.length; i++) {
    if (reference[i] === -Infinity) continue;
    worst = Math.max(worst, Math.abs(actual[i] - reference[i]) / (size + Math.abs(reference[i])));
  }
  return { error: Math.sqrt(differences / squares), worst };
}
