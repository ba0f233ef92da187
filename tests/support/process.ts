/** What the process itself takes, and what other programs it has. */

/** Resident bytes without the JavaScript heap, whose size follows the collector's moods. */
export function nativeBytes(): number {
  const { rss, heapTotal } = Deno.memoryUsage();
  return rss - heapTotal;
}

/** Whether there is an `ffmpeg` on the PATH. */
export async function hasFfmpeg(): Promise<boolean> {
  try {
    return (await new Deno.Command("ffmpeg", { args: ["-version"], stdout: "null", stderr: "null" }).output())
      .success;
  } catch {
    return false;
  }
}
