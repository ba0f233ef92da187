import { assert, assertEquals, assertThrows } from "@std/assert";
import { embedShaders, flattenShader } from "../../dylib/embed_shaders.ts";
import { LibraryError } from "../../src/errors.ts";

Deno.test("a shader becomes one text in which each header stands once, where it is first asked for", () => {
  const files = new Map([
    ["a.metal", '#include <metal_stdlib>\n#include "b.h"\n#include "c.h"\nkernel a\n'],
    ["b.h", '#pragma once\n#include "c.h"\nstruct b;\n'],
    ["c.h", "#ifndef C\n#define C\nstruct c;\n#endif"],
  ]);
  const code = flattenShader("a.metal", files).split("\n").filter((line) =>
    line !== "" && !line.startsWith("//")
  );
  assertEquals(code, [
    "#include <metal_stdlib>",
    "#ifndef C",
    "#define C",
    "struct c;",
    "#endif",
    "struct b;",
    "kernel a",
  ]);
});

Deno.test("a header that is not there is named with the file that asks for it", () => {
  const files = new Map([["a.metal", '#include "gone.h"\n']]);
  const error = assertThrows(() => flattenShader("a.metal", files), LibraryError);
  assertEquals(error.message, 'shaders/a.metal includes "gone.h", which is not in shaders.');
});

/** What a C++ compiler makes of the literals of an array in the embedded unit. */
function readLiterals(unit: string, index: number): string {
  const array = unit.split(`kLines${index}[] = {\n`)[1].split("\n};\n")[0];
  const bytes: number[] = [];
  for (const line of array.split("\n")) {
    const literal = /^ {2}"(.*)",$/.exec(line)![1];
    for (const [, octal, escaped, plain] of literal.matchAll(/\\([0-7]{3})|\\(.)|([^\\])/g)) {
      if (octal !== undefined) bytes.push(parseInt(octal, 8));
      else bytes.push((escaped === "n" ? "\n" : escaped ?? plain).charCodeAt(0));
    }
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

Deno.test("the embedded text of every shader is the flattened one, byte for byte", async () => {
  const folder = new URL("../../shaders/", import.meta.url);
  const files = new Map<string, string>();
  for await (const { name } of Deno.readDir(folder)) {
    if (/\.(h|metal)$/.test(name)) files.set(name, await Deno.readTextFile(new URL(name, folder)));
  }
  files.set(
    "odd.metal",
    '// "quoted" \\ back ??/ trigraph \t tab \u00e9\u{1f600}12 %\n#include "odd.h"\nend',
  );
  files.set("odd.h", "#pragma once\n// header\n");
  const unit = embedShaders(files);
  const families = [...files.keys()].filter((name) => name.endsWith(".metal")).sort();
  assert(families.length > 1);
  families.forEach((name, i) => assertEquals(readLiterals(unit, i), flattenShader(name, files), name));
  assertEquals(/kShaderCount = (\d+)/.exec(unit)![1], String(families.length));
});
