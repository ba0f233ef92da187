import { assert, assertEquals } from "@std/assert";
import { ABI_VERSION, symbols } from "../../ffi/symbols.ts";
import { STATUS_CODES } from "../../ffi/call.ts";

const header = await Deno.readTextFile(new URL("../../dylib/markbase.h", import.meta.url));
const table = await Deno.readTextFile(new URL("../../ffi/symbols.ts", import.meta.url));

interface Row {
  name?: string;
  parameters: readonly string[];
  result: string;
  nonblocking?: boolean;
}
const rows: [string, Row][] = Object.entries(symbols);

/** Functions that the header exports: C line without MB_EXPORT, and its parts. */
function headerFunctions(): Map<string, { line: string; result: string; parameters: string[] }> {
  const text = header.replace(/\/\*[\s\S]*?\*\//g, "");
  const functions = new Map<string, { line: string; result: string; parameters: string[] }>();
  for (const [, result, name, list] of text.matchAll(/MB_EXPORT (\w+) (mb_\w+)\(([^)]*)\);/g)) {
    const flat = list.replace(/\s+/g, " ");
    const parameters = flat === "void" ? [] : flat.split(", ");
    functions.set(name, { line: `${result} ${name}(${flat})`, result, parameters });
  }
  return functions;
}

/** The FFI type that a C type needs. */
function ffiType(declaration: string): string {
  const type = declaration.replace(/\b\w+$/, "").trim();
  if (/^mb_(device|buffer|pass) \*$/.test(type)) return "usize";
  if (type.endsWith("*")) return "buffer";
  return resultType(type);
}

function resultType(type: string): string {
  const types: Record<string, string> = {
    uint32_t: "u32",
    int32_t: "i32",
    uint64_t: "u64",
    int64_t: "i64",
    void: "void",
  };
  assert(type in types, `the header uses ${type}, which this test does not know`);
  return types[type];
}

Deno.test("the symbol table has every function of the header and no other", () => {
  const native = new Set(rows.map(([key, row]) => row.name ?? key));
  assertEquals([...native].sort(), [...headerFunctions().keys()].sort());
});

Deno.test("every row has the parameter and result types of its C line", () => {
  const functions = headerFunctions();
  for (const [key, row] of rows) {
    const { parameters, result } = functions.get(row.name ?? key)!;
    assertEquals(row.parameters, parameters.map(ffiType), key);
    assertEquals(row.result, resultType(result), key);
  }
});

Deno.test("every blocking row stands below its C line, word for word", () => {
  const comments = new Map<string, string>();
  for (const [, lines, name] of table.matchAll(/((?: {2}\/\/ .*\n)+) {2}(mb_\w+):/g)) {
    comments.set(name, lines.replace(/^ *\/\/ */gm, "").replace(/\s+/g, " ").trim());
  }
  for (const [name, { line }] of headerFunctions()) assertEquals(comments.get(name), line, name);
});

Deno.test("only rows named _async are nonblocking, and each stands for a blocking one", () => {
  for (const [key, row] of rows) {
    assertEquals(row.nonblocking ?? false, key.endsWith("_async"), key);
    if (row.nonblocking) assertEquals(row.name, key.replace(/_async$/, ""));
  }
});

Deno.test("the table was written for the header's ABI version", () => {
  assertEquals(header.match(/#define MB_ABI_VERSION (\d+)u/)?.[1], String(ABI_VERSION));
});

Deno.test("status codes have the names and numbers of the header", () => {
  const body = header.match(/typedef enum mb_status \{([^}]*)\}/)![1].replace(/\/\*[\s\S]*?\*\//g, "");
  const named = [...body.matchAll(/MB_(\w+) = (\d+)/g)].map((
    [, name, value],
  ) => [Number(value), name.toLowerCase()]);
  assertEquals(named, STATUS_CODES.map((code, value) => [value, code]));
});
