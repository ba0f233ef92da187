/** What a span of soft tokens is called: by its content, and of a frame by its time. */

/** Names the content of a span. */
export async function keyOf(
  kind: "image" | "audio",
  values: Uint8Array | Float32Array,
  sizes: number[],
): Promise<string> {
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const digest = await crypto.subtle.digest("SHA-256", new Uint8Array(bytes));
  return `${kind} ${sizes.join("x")} ${new Uint8Array(digest).toHex()}`;
}

/** Seconds as the model is told them: minutes and seconds, rounded down. */
export function timestamp(seconds: number): string {
  const whole = Math.floor(seconds);
  return `${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
}
