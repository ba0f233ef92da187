/** Rotary position embedding. */
import type { Rope } from "../../schedule/ops.ts";

/**
 * Turns pair (i, i + d/2) of each head by (position + positionOffset) · positionScale · theta^(-2i/d), i < rotatedPairs; other lanes stay.
 * x [r, heads·d] → same.
 */
export function rope(
  x: Float64Array,
  heads: number,
  d: number,
  { theta, rotatedPairs, positionScale, positionOffset = 0 }: Rope,
  positions: readonly number[],
): Float64Array {
  const y = x.slice();
  positions.forEach((position, r) => {
    for (let head = 0; head < heads; head++) {
      for (let i = 0; i < rotatedPairs; i++) {
        const angle = (position + positionOffset) * positionScale * theta ** (-2 * i / d);
        const a = (r * heads + head) * d + i;
        const b = a + d / 2;
        y[a] = x[a] * Math.cos(angle) - x[b] * Math.sin(angle);
        y[b] = x[b] * Math.cos(angle) + x[a] * Math.sin(angle);
      }
    }
  });
  return y;
}
