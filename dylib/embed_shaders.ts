/**
 * Puts the kernel sources into the library: each `shaders/<family>.metal` becomes one text without project headers, since
 * Metal compiles a library from a single source, and all of them become one C++ file of string arrays.
 */
import { LibraryError } from "../src/errors.ts";

/** Where the generated unit is, as `sources.json` spells paths. */
export const EMBEDDED_UNIT = "gpu/embedded_shaders.cpp";

const INCLUDE = /^[ \t]*#[ \t]*include[ \t]*"([^"]+)"/;
const PRAGMA_ONCE = /^[ \t]*#[ \t]*pragma[ \t]+once\b/;

/**
 * One text from a shader and the headers that it includes with quotes, each put in once, where it is first asked for.
 * `files` maps file names to texts. Lines of a header are marked by a comment before and after them. Throws
 * `LibraryError` ("build_failed") for a header that is not in `files`.
 */
export function flattenShader(name: string, files: ReadonlyMap<string, string>): string {
  const included = new Set<string>();
  const flatten = (file: string, from: string): string => {
    const text = files.get(file);
    if (text === undefined) {
      throw new LibraryError("build_failed", `shaders/${from} includes "${file}", which is not in shaders.`);
    }
    included.add(file);
    return text.replace(/\n?$/, "\n").split(/(?<=\n)/).map((line) => {
      if (PRAGMA_ONCE.test(line)) return "\n";
      const header = INCLUDE.exec(line)?.[1];
      if (header === undefined) return line;
      if (included.has(header)) return "\n";
      return `// ${header}\n${flatten(header, file)}// ${file}\n`;
    }).join("");
  };
  return flatten(name, name);
}

/** The text of the unit `EMBEDDED_UNIT`. `files` maps the names of all files in `shaders` to their texts. */
export function embedShaders(files: ReadonlyMap<string, string>): string {
  const families = [...files.keys()].filter((name) => name.endsWith(".metal")).sort();
  const arrays = families.map((name, i) => {
    const lines = flattenShader(name, files).split(/(?<=\n)/).filter((line) => line.length > 0);
    return `// ${name}\nconst char *const kLines${i}[] = {\n${
      lines.map((line) => `  ${literal(line)},\n`).join("")
    }};\n`;
  });
  const table = families.map((name, i) => {
    const family = name.slice(0, -".metal".length);
    return `  {"${family}", kLines${i}, sizeof kLines${i} / sizeof *kLines${i}},\n`;
  });
  return [
    '// Written by dylib/embed_shaders.ts from shaders/*.metal.\n#include "shaders.h"\n\nnamespace mb::gpu {\n\nnamespace {\n',
    ...arrays,
    "}  // namespace\n",
    // An array needs an element even where there is no shader.
    `const EmbeddedShader kShaders[] = {\n${table.join("")}  {"", nullptr, 0},\n};`,
    `const size_t kShaderCount = ${families.length};\n\n}  // namespace mb::gpu\n`,
  ].join("\n");
}

/** A C++ string literal; bytes outside printable ASCII become octal escapes, which cannot run on into the next character. */
function literal(line: string): string {
  const bytes = new TextEncoder().encode(line);
  let text = '"';
  for (const byte of bytes) {
    const character = String.fromCharCode(byte);
    if (character === "\n") text += "\\n";
    else if (character === '"' || character === "\\" || character === "?") text += `\\${character}`;
    else if (byte >= 0x20 && byte < 0x7f) text += character;
    else text += `\\${byte.toString(8).padStart(3, "0")}`;
  }
  return text + '"';
}
