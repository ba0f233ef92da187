import { assertEquals, assertThrows } from "@std/assert";
import { fileURLToPath } from "node:url";
import { pathOfFileUrl } from "../src/file_url.ts";

Deno.test("the path of a file: URL is the one that Node's function gives", () => {
  for (
    const url of ["file:///a/b.gguf", "file:///a%20b/%C3%BC%25", "file://localhost/x/", "file:///a/../b?c#d"]
  ) {
    assertEquals(pathOfFileUrl(url), fileURLToPath(url));
    assertEquals(pathOfFileUrl(new URL(url)), fileURLToPath(url));
  }
});

Deno.test("other URLs, other machines, encoded separators and broken escapes are refused, as Node does", () => {
  for (const url of ["https://a/b", "file://host/b", "file:///a%2Fb", "file:///a%ff"]) {
    assertThrows(() => fileURLToPath(url));
    assertThrows(() => pathOfFileUrl(url));
  }
});
