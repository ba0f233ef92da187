/** What the process itself takes. */

/** Resident bytes without the JavaScript heap, whose size follows the collector's moods. */
export function nativeBytes(): number {
  const { rss, heapTotal } = Deno.memoryUsage();
  return rss - heapTotal;
}
