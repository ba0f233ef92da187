/** Paths of `file:` URLs, without Node's module for it, whose first import takes 5 MiB. */

/** The path that a `file:` URL names on this machine. Throws `TypeError` for another URL and for one that names no such path. */
export function pathOfFileUrl(url: string | URL): string {
  const { protocol, hostname, pathname, href } = new URL(url);
  const isWindows = Deno.build.os === "windows";
  const wrong = (what: string) => new TypeError(`${href} ${what}`);
  if (protocol !== "file:") throw wrong("is no file: URL");
  if (isWindows ? /%2f|%5c/i.test(pathname) : /%2f/i.test(pathname)) throw wrong("has an encoded separator");
  const path = decodeURIComponent(pathname);
  if (!isWindows) {
    if (hostname !== "") throw wrong("names another machine");
    return path;
  }
  const backslashed = path.replaceAll("/", "\\");
  if (hostname !== "") return `\\\\${hostname}${backslashed}`;
  if (!/^\\[a-z]:/i.test(backslashed)) throw wrong("names no drive");
  return backslashed.slice(1);
}
