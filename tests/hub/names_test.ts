import { assert, assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import { HubError, InvalidArgument } from "../../src/errors.ts";
import { parseReference, referenceOfUrl, referenceText } from "../../src/hub/reference.ts";
import { ggufParts } from "../../src/checkpoint/gguf_parts.ts";
import { chooseFiles } from "../../src/hub/select.ts";

Deno.test("references name repository, revision and file, and come back as they were written", () => {
  const cases: [string, string, string | undefined, string | undefined][] = [
    ["org/name", "org/name", undefined, undefined],
    ["o.r_g-1/N.a-m_e", "o.r_g-1/N.a-m_e", undefined, undefined],
    ["org/name@v1.0", "org/name", "v1.0", undefined],
    ["org/name/a.gguf", "org/name", undefined, "a.gguf"],
    ["org/name/sub/folder/", "org/name", undefined, "sub/folder"],
    ["org/name@feature%2Fx/b/c.gguf", "org/name", "feature/x", "b/c.gguf"],
    ["org/name@refs/pr/12/c.gguf", "org/name", "refs/pr/12", "c.gguf"],
  ];
  for (const [text, repository, revision, file] of cases) {
    const reference = parseReference(text)!;
    assertEquals(reference, { repository, revision, file });
    assertEquals(referenceText(reference), text.replace(/\/$/, ""));
    assertEquals(parseReference(text.replace("@", ":")), reference);
  }
});

Deno.test("paths are no references", () => {
  for (
    const text of [
      "tiny",
      "/a/b",
      "./a/b",
      "../a/b",
      "~/a",
      "a",
      "a/",
      "/",
      "a//b",
      "a/..",
      "-a/b",
      "a--b/c",
      ".a/b",
      "C:/a/b",
    ]
  ) {
    assertEquals(parseReference(text), null, text);
  }
});

Deno.test("references that could leave the cache are refused", () => {
  for (const text of ["a/b/../c", "a/b/./c", "a/b//c", "a/b/c\\d", "a/b/c:d", "a/b/\0"]) {
    assertThrows(() => parseReference(text), HubError, "refused");
  }
  for (const text of ["a/b@..", "a/b@.git", "a/b@x%2F..%2Fy", "a/b@%00", "a/b@%", "a/b@a b"]) {
    assertThrows(() => parseReference(text), InvalidArgument);
  }
});

Deno.test("page addresses of the hub are references, other addresses are not", () => {
  const hub = new URL("https://hub.example/mirror");
  const read = (text: string) => referenceOfUrl(new URL(text), hub);
  const of = (revision?: string, file?: string) => ({ repository: "org/name", revision, file });
  assertEquals(read("https://hub.example/mirror/org/name"), of());
  assertEquals(read("https://hub.example/mirror/org/name/tree/v2"), of("v2"));
  assertEquals(read("https://hub.example/mirror/org/name/blob/main/a/b.gguf"), of("main", "a/b.gguf"));
  assertEquals(
    read("https://hub.example/mirror/org/name/resolve/refs/pr/3/a.gguf"),
    of("refs/pr/3", "a.gguf"),
  );
  for (
    const text of [
      "https://hub.example/org/name",
      "https://other.example/mirror/org/name",
      "https://hub.example/mirror/org",
      "https://hub.example/mirror/org/name/discussions",
    ]
  ) {
    assertEquals(read(text), null);
  }
});

const names = (...list: string[]) => list.map((name) => ({ name, size: 1e9 }));

Deno.test("safetensors come before GGUF, and the copies in other formats are left out", () => {
  const { files, path, index } = chooseFiles(
    names(
      "README.md",
      "config.json",
      "m.gguf",
      "model.safetensors",
      "pytorch_model.bin",
      "tokenizer.json",
      "tokenizer.model",
      "original/consolidated.00.pth",
      "onnx/model.onnx",
    ),
    undefined,
    "org/name",
  );
  assertEquals(files, ["config.json", "tokenizer.json", "model.safetensors"]);
  assertEquals([path, index], ["", null]);
});

Deno.test("one GGUF file is chosen, split or not, and projectors are no models", () => {
  assertEquals(
    chooseFiles(names("a-Q4_K_M.gguf", "mmproj-a-f16.gguf"), undefined, "x").path,
    "a-Q4_K_M.gguf",
  );
  const parts = ["q/a-00001-of-00003.gguf", "q/a-00002-of-00003.gguf", "q/a-00003-of-00003.gguf"];
  for (const wanted of [undefined, "q", ...parts]) {
    assertEquals(chooseFiles(names(...parts), wanted, "x"), { path: parts[0], files: parts, index: null });
  }
  assertEquals(ggufParts("a.gguf"), ["a.gguf"]);
});

Deno.test("several quantisations are an error that lists them by size", () => {
  const files = [{ name: "a-Q8_0.gguf", size: 8e9 }, { name: "a-Q4_0.gguf", size: 4e9 }];
  const error = assertThrows(() => chooseFiles(files, undefined, "org/name"), HubError);
  assertEquals(error.code, "choose_file");
  assert(
    error.message.indexOf("a-Q4_0.gguf (4.00 GB)") < error.message.lastIndexOf("a-Q8_0.gguf (8.00 GB)"),
    error.message,
  );
  assertEquals(chooseFiles(files, "a-Q8_0.gguf", "org/name").files, ["a-Q8_0.gguf"]);
  const folders = names("BF16/a-00001-of-00002.gguf", "BF16/a-00002-of-00002.gguf", "a-Q4_0.gguf");
  assertThrows(() => chooseFiles(folders, undefined, "x"), HubError, "2 files");
});

Deno.test("a repository without usable weights says what it has instead", () => {
  const error = assertThrows(
    () => chooseFiles(names("config.json", "pytorch_model.bin"), undefined, "x"),
    HubError,
  );
  assertEquals(error.code, "unsupported_repository");
  assertStringIncludes(error.message, "pytorch_model.bin");
  assertEquals(assertThrows(() => chooseFiles([], undefined, "x"), HubError).code, "file_not_found");
  const twice = names("a.safetensors", "b.safetensors");
  assertEquals(assertThrows(() => chooseFiles(twice, undefined, "x"), HubError).code, "choose_file");
});
