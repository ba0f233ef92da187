import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { buildLibrary, type BuiltLibrary } from "../../dylib/build.ts";
import { scanSources, sha256, sourcesText } from "../../dylib/sources.ts";
import { LibraryError } from "../../src/errors.ts";
import { withEnvironment } from "../support/environment.ts";

/** A library of two units and a header, which compiles in a moment. */
async function smallSources(): Promise<URL> {
  const folder = await Deno.makeTempDir({ prefix: "markbase-sources-" });
  await Deno.mkdir(`${folder}/cpu`);
  await Deno.writeTextFile(`${folder}/answer.h`, "#pragma once\nconstexpr int answer = 42;\n");
  await Deno.writeTextFile(
    `${folder}/top.cpp`,
    '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int get() { return answer; }\n',
  );
  await Deno.writeTextFile(
    `${folder}/cpu/kernel.cpp`,
    '// isa: scalar avx2 neon\n#include "../answer.h"\nnamespace MB_ISA { int value() { return answer; } }\n',
  );
  return new URL(`file://${folder}/`);
}

async function temporary(): Promise<string> {
  return await Deno.makeTempDir({ prefix: "markbase-cache-" });
}

function folderOf(library: BuiltLibrary): string {
  return library.path.slice(0, library.path.lastIndexOf("/"));
}

/** The number that the built library returns. */
function answerOf(path: string): number {
  const library = Deno.dlopen(path, { get: { parameters: [], result: "i32" } });
  const value = library.symbols.get();
  library.close();
  return value;
}

Deno.test("a library is built once and then taken from the cache", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const progress: string[] = [];
  const onProgress = (done: number, total: number) => void progress.push(`${done}/${total}`);
  const first = await buildLibrary({ sources, cache, onProgress });
  assertEquals(first.built, true);
  assertEquals(progress.at(-1), "3/3", "one unit plus one for each instruction set of this architecture");
  assertEquals(answerOf(first.path), 42);
  const second = await buildLibrary({
    sources,
    cache,
    onProgress: () => assert(false, "nothing is compiled again"),
  });
  assertEquals(second, { ...first, built: false });
});

Deno.test("a changed header builds another library", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const first = await buildLibrary({ sources, cache });
  await Deno.writeTextFile(new URL("answer.h", sources), "#pragma once\nconstexpr int answer = 43;\n");
  const second = await buildLibrary({ sources, cache });
  assertEquals([answerOf(first.path), answerOf(second.path)], [42, 43]);
});

Deno.test("a library whose bytes changed in the cache is built again rather than opened", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const first = await buildLibrary({ sources, cache });
  const bytes = await Deno.readFile(first.path);
  bytes[bytes.length >> 1] ^= 1;
  await Deno.writeFile(first.path, bytes);
  const second = await buildLibrary({ sources, cache });
  assertEquals(second.built, true);
  assertEquals(await sha256(await Deno.readFile(second.path)), second.sha256);
});

Deno.test("a truncated library, a truncated manifest and a missing one are built again", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const folder = folderOf(await buildLibrary({ sources, cache }));
  const damages: (() => Promise<void>)[] = [
    async () =>
      await Deno.truncate(
        `${folder}/${Deno.build.os === "darwin" ? "libmarkbase.dylib" : "libmarkbase.so"}`,
        100,
      ),
    async () => await Deno.truncate(`${folder}/manifest.json`, 20),
    async () => await Deno.remove(`${folder}/manifest.json`),
  ];
  for (const damage of damages) {
    await damage();
    const library = await buildLibrary({ sources, cache });
    assertEquals([library.built, answerOf(library.path)], [true, 42]);
  }
});

Deno.test("a build that was killed leaves nothing that a later one would open", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  // A unit that takes a while, so that the kill comes in the middle.
  await Deno.writeTextFile(
    new URL("slow.cpp", sources),
    "template <int N> struct S { static constexpr unsigned long v = S<N - 1>::v * 3 + S<N - 2>::v; };\n" +
      "template <> struct S<0> { static constexpr unsigned long v = 1; };\ntemplate <> struct S<1> { static constexpr unsigned long v = 1; };\n" +
      Array.from({ length: 300 }, (_, i) => `unsigned long f${i}() { return S<${i + 300}>::v % 7; }`).join(
        "\n",
      ) +
      "\n",
  );
  const child = buildProcess(sources, cache).spawn();
  while (!(await names(`${cache}/dylib`)).some((name) => name.endsWith(".work"))) await sleep(5);
  child.kill("SIGKILL");
  await child.status;
  assert(
    (await names(`${cache}/dylib`)).every((name) => !/^[0-9a-f]{32}$/.test(name)),
    "nothing was installed",
  );
  const library = await buildLibrary({ sources, cache });
  assertEquals([library.built, answerOf(library.path)], [true, 42]);
});

Deno.test("two processes that build at once end up with one good library", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const outputs = await Promise.all([1, 2, 3].map(() => buildProcess(sources, cache).output()));
  const libraries: BuiltLibrary[] = outputs.map(({ stdout, stderr }) => {
    const text = new TextDecoder().decode(stdout);
    assert(text.startsWith("{"), new TextDecoder().decode(stderr));
    return JSON.parse(text);
  });
  assertEquals(libraries.filter((library) => library.built).length, 1, "the others waited for it");
  assertEquals(new Set(libraries.map((library) => library.sha256)).size, 1);
  assertEquals(answerOf(libraries[0].path), 42);
});

Deno.test("a build is not disturbed by another one that clears out kept objects", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const compiler = `${cache}/compiler`;
  await Deno.writeTextFile(
    compiler,
    `#!/bin/sh\ncase " $* " in *" -c "*) ;; *" -o "*) rm -rf ${cache}/dylib/objects/* ;; esac\nexec c++ "$@"\n`,
    { mode: 0o755 },
  );
  await withEnvironment({ CXX: compiler }, async () => {
    for (const answer of [42, 43]) {
      await Deno.writeTextFile(
        new URL("answer.h", sources),
        `#pragma once\nconstexpr int answer = ${answer};\n`,
      );
      assertEquals(answerOf((await buildLibrary({ sources, cache })).path), answer);
    }
  });
});

Deno.test("kept objects go a day after a build last used them", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const build = async (answer: number) => {
    await Deno.writeTextFile(
      new URL("answer.h", sources),
      `#pragma once\nconstexpr int answer = ${answer};\n`,
    );
    await buildLibrary({ sources, cache });
    return (await names(`${cache}/dylib/objects`)).sort();
  };
  const first = await build(1);
  const second = await build(2);
  const shared = second.filter((name) => first.includes(name) && !/-top\.o$/.test(name));
  assert(shared.length > 0 && second.length > first.length, "a unit without the header keeps its object");
  const age = async () => {
    const old = new Date(Date.now() - 25 * 3600 * 1000);
    for (const name of await names(`${cache}/dylib/objects`)) {
      await Deno.utime(`${cache}/dylib/objects/${name}`, old, old);
    }
  };
  await age();
  const third = await build(3);
  for (const name of first) assert(!third.includes(name), `${name} was of no use for a day`);
  await age();
  for (const name of third) await Deno.utime(`${cache}/dylib/objects/${name}`, new Date(), new Date());
  assertEquals((await build(4)).filter((name) => third.includes(name)), third);
});

Deno.test("an aborted build rejects with the signal's reason", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const reason = new Error("enough");
  const error = await assertRejects(() =>
    buildLibrary({ sources, cache, signal: AbortSignal.abort(reason) })
  );
  assertEquals(error, reason);
  assertEquals((await names(`${cache}/dylib`)).filter((name) => name.endsWith(".work")), []);
});

Deno.test("without a compiler the error says what to install", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const error = await withEnvironment(
    { CXX: "no-such-compiler-here" },
    () => assertRejects(() => buildLibrary({ sources, cache }), LibraryError),
  );
  assertEquals(error.code, "no_compiler");
  assertStringIncludes(error.message, '"no-such-compiler-here"');
  assertStringIncludes(error.message, Deno.build.os === "darwin" ? "xcode-select" : "apt install g++");
});

Deno.test("a compiler that is too old is refused with both versions", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  const old = async (name: string, macros: string) => {
    const path = `${cache}/${name}`;
    await Deno.writeTextFile(path, `#!/bin/sh\nprintf '${macros}'\n`, { mode: 0o755 });
    return await withEnvironment(
      { CXX: path },
      () => assertRejects(() => buildLibrary({ sources, cache }), LibraryError),
    );
  };
  const gcc = await old(
    "old-gcc",
    "#define __GNUC__ 11\\n#define __GNUC_MINOR__ 4\\n#define __GNUC_PATCHLEVEL__ 0\\n",
  );
  assertEquals(gcc.code, "old_compiler");
  assertStringIncludes(gcc.message, "g++ 11.4.0; markbase needs g++ 12");
  const clang = await old(
    "old-clang",
    "#define __GNUC__ 4\\n#define __clang_major__ 14\\n#define __clang_minor__ 0\\n#define __clang_patchlevel__ 6\\n",
  );
  assertStringIncludes(clang.message, "clang++ 14.0.6");
  const none = await old("not-a-compiler", "hello");
  assertEquals(none.code, "no_compiler");
});

Deno.test("a unit that does not compile is named with the compiler's words", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  await Deno.writeTextFile(new URL("cpu/broken.cpp", sources), "int f() { return undeclared_name; }\n");
  const error = await assertRejects(() => buildLibrary({ sources, cache }), LibraryError);
  assertEquals(error.code, "build_failed");
  assertStringIncludes(error.message, "cpu-broken");
  assertStringIncludes(error.message, "undeclared_name");
});

Deno.test("sources at a URL are fetched by their list, verified and built", async () => {
  const [sources, cache] = [await smallSources(), await temporary()];
  await Deno.writeTextFile(new URL("sources.json", sources), sourcesText(await scanSources(sources)));
  let requests = 0;
  let spoiled = "";
  const server = Deno.serve({ port: 0, hostname: "127.0.0.1", onListen: () => {} }, async (request) => {
    requests++;
    const path = new URL(request.url).pathname.slice(1);
    if (path === "missing/sources.json") return new Response("no", { status: 404 });
    const bytes = await Deno.readFile(new URL(path, sources));
    return new Response(path === spoiled ? bytes.map((byte) => byte ^ 1) : bytes);
  });
  try {
    const remote = new URL(`http://127.0.0.1:${server.addr.port}/`);
    spoiled = "answer.h";
    const error = await assertRejects(() => buildLibrary({ sources: remote, cache }), LibraryError);
    assertEquals(error.code, "source_mismatch");
    assertStringIncludes(error.message, `${remote}answer.h`);
    spoiled = "";
    const library = await buildLibrary({ sources: remote, cache });
    assertEquals(answerOf(library.path), 42);
    const before = requests;
    assertEquals((await buildLibrary({ sources: remote, cache })).built, false);
    assertEquals(requests - before, 1, "only the list is fetched again");
    const missing = await assertRejects(
      () => buildLibrary({ sources: new URL("missing/", remote), cache }),
      LibraryError,
    );
    assertStringIncludes(missing.message, "HTTP status 404");
  } finally {
    await server.shutdown();
  }
});

/** A process that builds and prints the result as JSON. */
function buildProcess(sources: URL, cache: string): Deno.Command {
  const module = new URL("../../dylib/build.ts", import.meta.url).href;
  const code = `import { buildLibrary } from ${JSON.stringify(module)};` +
    `console.log(JSON.stringify(await buildLibrary({ sources: new URL(${JSON.stringify(sources.href)}), ` +
    `cache: ${JSON.stringify(cache)} })));`;
  return new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-lock", `data:application/typescript,${encodeURIComponent(code)}`],
    stdout: "piped",
    stderr: "piped",
  });
}

async function names(folder: string): Promise<string[]> {
  try {
    return (await Array.fromAsync(Deno.readDir(folder))).map((entry) => entry.name);
  } catch {
    return [];
  }
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
