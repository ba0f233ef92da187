/** File URLs as paths. */

/** The path of a file URL; its percent escapes are decoded. */
export function fromFileUrl(url: URL): string {
  if (url.protocol !== "file:") {
    throw new TypeError(`software Metal runs from files, not from ${url.protocol}`);
  }
  return decodeURIComponent(url.pathname);
}
