/** The mark that some editors put before a text. */

/** The text without the byte order mark before it, where there is one. */
export function withoutByteOrderMark(text: string): string {
  return text.replace(/^\ufeff/, "");
}
