/** Summaries of repeated measurements. */

/** The middle value, or the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  if (values.length === 0) throw new RangeError("median of no values");
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** `median (least–most)` with three significant digits. */
export function spread(values: readonly number[]): string {
  const text = (value: number) => value.toPrecision(3);
  return `${text(median(values))} (${text(Math.min(...values))}–${text(Math.max(...values))})`;
}
