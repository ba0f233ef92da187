import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { buildLibrary } from "../../dylib/build.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { withEnvironment } from "../support/environment.ts";

const root = decodeURIComponent(new URL("../../", import.meta.url).pathname).replace(/\/$/, "");
const sources = `${root}/dylib,${root}/shaders`; // folders that a checkout reads to see whether its library is current
const device = new URL("../../ffi/device.ts", import.meta.url).href;
const library = new URL("../../ffi/library.ts", import.meta.url).href;
const errors = new URL("../../src/errors.ts", import.meta.url).href;

/** Opens the CPU device in a process with just these flags and environment; prints what happened. */
async function open(
  flags: string[],
  options: { cache?: string; env?: Record<string, string> } = {},
): Promise<Record<string, string>> {
  return await run(
    flags,
    `
    import { Device } from ${JSON.stringify(device)};
    import { MarkbaseError } from ${JSON.stringify(errors)};
    try {
      const opened = await Device.open("cpu", ${JSON.stringify({ cache: options.cache })});
      console.log(JSON.stringify({ kind: opened.info().kind, path: opened.library.path, sha256: opened.library.sha256 }));
    } catch (error) {
      if (!(error instanceof MarkbaseError)) throw error;
      console.log(JSON.stringify({ code: error.code, flag: error.flag, message: error.message }));
    }`,
    options.env,
  );
}

/** What code prints as JSON in a process with just these flags and environment. */
async function run<T>(flags: string[], code: string, env?: Record<string, string>): Promise<T> {
  const script = await Deno.makeTempFile({ suffix: ".ts" });
  await Deno.writeTextFile(script, code);
  const { stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-prompt", "--no-lock", "--no-check", ...flags, script],
    env,
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
  }).output();
  await Deno.remove(script);
  const text = new TextDecoder().decode(stdout).trim();
  assert(text !== "", new TextDecoder().decode(stderr));
  return JSON.parse(text);
}

Deno.test("with a library in the cache, reading it and ffi are all the permissions that are needed", async () => {
  const cache = await cacheFolder();
  const built = await buildLibrary();
  const flags = [`--allow-read=${cache},${sources}`, `--allow-ffi=${cache}`];
  const opened = await open(flags, { cache });
  assertEquals(opened, { kind: "cpu", path: built.path, sha256: built.sha256 });
});

Deno.test("each missing permission is named with the flag that grants it", async () => {
  const cache = await cacheFolder();
  await buildLibrary();
  const empty = await Deno.makeTempDir();
  const read = (folder: string) => `--allow-read=${folder},${sources}`;
  const cases: [string, string[], { cache?: string }][] = [
    ["--allow-env=HOME", [], {}],
    [`--allow-read=${cache}`, [], { cache }],
    [`--allow-read=${root}/dylib`, [`--allow-read=${cache}`], { cache }],
    [`--allow-read=${root}/shaders`, [`--allow-read=${cache},${root}/dylib`], { cache }],
    [`--allow-ffi=${cache}`, [read(cache)], { cache }],
    [`--allow-write=${empty}`, [read(empty)], { cache: empty }],
    ["--allow-run=c++", [read(empty), `--allow-write=${empty}`], { cache: empty }],
  ];
  for (const [flag, granted, options] of cases) {
    const result = await open(granted, options);
    assertEquals([result.code, result.flag], ["missing_permission", flag], JSON.stringify(result));
    assertStringIncludes(result.message, `Run again with ${flag}.`);
  }
  await Deno.remove(empty, { recursive: true });
});

Deno.test("each of those that wait for one build leaves with its own signal, and the others go on waiting", async () => {
  const folder = await Deno.makeTempDir();
  const endless = `${folder}/c++`; // a compiler that never ends
  const version = "#define __GNUC__ 12\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 0\n";
  await Deno.writeTextFile(
    endless,
    `#!/bin/sh\ncase "$1" in -dM) printf '${version}' ;; *) exec sleep 600 ;; esac\n`,
  );
  await Deno.chmod(endless, 0o755);
  const code = `
    import { openLibrary } from ${JSON.stringify(library)};
    const [first, second] = [new AbortController(), new AbortController()];
    const told = [first, second].map(({ signal }) =>
      openLibrary({ cache: ${JSON.stringify(folder)}, signal }).catch(({ message }) => message)
    );
    first.abort(new Error("first left"));
    const heard = [await told[0]];
    heard.push(await Promise.race([told[1], new Promise((resolve) => setTimeout(resolve, 100, "waits"))]));
    second.abort(new Error("second left"));
    console.log(JSON.stringify([...heard, await told[1]]));`;
  const heard = await run(["-A"], code, { CXX: endless });
  assertEquals(heard, ["first left", "waits", "second left"]);
  await Deno.remove(folder, { recursive: true });
});

Deno.test("MARKBASE_CACHE names the cache folder, relative or not", async () => {
  await withEnvironment({ MARKBASE_CACHE: "/some/where/" }, async () => {
    assertEquals(await cacheFolder(), "/some/where");
  });
  await withEnvironment({ MARKBASE_CACHE: "near" }, async () => {
    assertEquals(await cacheFolder(), `${Deno.cwd()}/near`);
    assertEquals(await cacheFolder("/an/option"), "/an/option");
  });
});

Deno.test("MARKBASE_DYLIB names a ready library; a missing or unusable one is an error that names it", async () => {
  const built = await buildLibrary();
  const copy = await Deno.makeTempFile({ suffix: ".so" });
  await Deno.copyFile(built.path, copy);
  const flags = ["--allow-env=MARKBASE_DYLIB", `--allow-read=${copy}`, `--allow-ffi=${copy}`];
  assertEquals(await open(flags, { env: { MARKBASE_DYLIB: copy } }), {
    kind: "cpu",
    path: copy,
    sha256: built.sha256,
  });

  const all = ["-A"];
  const missing = await open(all, { env: { MARKBASE_DYLIB: "/no/such/library.so" } });
  assertEquals(missing.code, "library_not_found");
  assertStringIncludes(missing.message, "/no/such/library.so");
  await Deno.writeTextFile(copy, "not a library");
  const unusable = await open(all, { env: { MARKBASE_DYLIB: copy } });
  assertEquals(unusable.code, "library_unusable");
  assertStringIncludes(unusable.message, copy);
  assertStringIncludes(unusable.message, "machine. Unset MARKBASE_DYLIB to build one.");
  await Deno.remove(copy);
});

Deno.test("a wrong MARKBASE_CPU is named as what it is, with what there is; an empty one is none", async () => {
  const built = await buildLibrary();
  const wrong = await open(["-A"], { env: { MARKBASE_CPU: "mmx" } });
  assertEquals(wrong.code, "unsupported");
  assertStringIncludes(wrong.message, 'MARKBASE_CPU: CPU level "mmx" is unknown; this CPU has scalar');
  assertEquals((await open(["-A"], { env: { MARKBASE_CPU: "" } })).sha256, built.sha256);
});

Deno.test("a library of another ABI version is refused with both versions", async () => {
  const folder = await Deno.makeTempDir();
  const { ABI_VERSION, symbols } = await import("../../ffi/symbols.ts");
  const names = new Set(Object.keys(symbols).map((name) => name.replace(/_async$/, "")));
  const body = [...names].map((name) => `extern "C" int ${name}() { return 999; }`).join("\n");
  await Deno.writeTextFile(`${folder}/other.cpp`, body);
  const path = `${folder}/libother.so`;
  const compiled = await new Deno.Command("c++", {
    args: ["-shared", "-fPIC", `${folder}/other.cpp`, "-o", path],
  }).output();
  assert(compiled.success);
  const result = await open(["-A"], { env: { MARKBASE_DYLIB: path } });
  assertEquals(result.code, "abi_mismatch");
  assertStringIncludes(result.message, `ABI version 999; this markbase needs ${ABI_VERSION}`);
  await Deno.remove(folder, { recursive: true });
});
