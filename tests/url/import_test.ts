/**
 * The library imported from a URL, as its users do: the repository is served on loopback, a script imports mod.ts
 * from there with an empty DENO_DIR and only the permissions of the README's table.
 */
import { assert, assertEquals, assertMatch, assertStringIncludes } from "@std/assert";
import { serveDir } from "./serve_dir.ts";

const root = new URL("../../", import.meta.url);

const script = (origin: string) => `
import { load } from "${origin}/mod.ts";
await using model = await load("tiny");
const reply = await model.chat([{ role: "user", content: "What is 27 + 45?" }], { temperature: 0 });
console.log(reply.text);
`;

/** Runs the script in a process of its own with the given permission flags. */
async function run(folder: string, origin: string, flags: string[], env: Record<string, string> = {}) {
  await Deno.writeTextFile(`${folder}/script.ts`, script(origin));
  const { code, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-prompt", "--no-config", "--no-lock", ...flags, `${folder}/script.ts`],
    env: { DENO_DIR: `${folder}/deno`, MARKBASE_CACHE: `${folder}/cache`, NO_COLOR: "1", ...env },
    cwd: folder,
  }).output();
  return { code, stdout: new TextDecoder().decode(stdout), stderr: new TextDecoder().decode(stderr) };
}

Deno.test("a script imports mod.ts from a URL with the README's permissions and nothing else", async (t) => {
  const folder = await Deno.makeTempDir();
  await using server = serveDir(root);
  const { host, origin } = server;
  const cache = `${folder}/cache`;
  const env = "--allow-env=MARKBASE_CACHE,MARKBASE_DYLIB";
  const permissions = [
    `--allow-import=${host}`,
    `--allow-net=${host}`,
    `--allow-read=${cache}`,
    `--allow-write=${cache}`,
    "--allow-run=c++",
    `--allow-ffi=${cache}`,
    env,
  ];
  try {
    await t.step("it builds the library from the served sources, fetches the model and answers", async () => {
      const { code, stdout, stderr } = await run(folder, origin, permissions);
      assertEquals({ code, stdout }, { code: 0, stdout: "72\n" }, stderr);
      assert(server.paths.has("/dylib/sources.json"));
      assert(server.paths.has("/examples/tiny/model.safetensors"));
    });

    await t.step("a second run neither compiles nor fetches the model again", async () => {
      server.paths.clear();
      const withoutRun = permissions.filter((flag) => !flag.startsWith("--allow-run"));
      const { code, stdout, stderr } = await run(folder, origin, withoutRun);
      assertEquals({ code, stdout }, { code: 0, stdout: "72\n" }, stderr);
      assert(!server.paths.has("/examples/tiny/model.safetensors"));
    });

    await t.step("a missing permission is named with its exact flag", async () => {
      for (const name of ["net", "read", "write", "run", "ffi"]) {
        const lacking = permissions.find((flag) => flag.startsWith(`--allow-${name}`))!;
        // Only the built library needs ffi; the others are missed before anything is built.
        const fresh = name === "ffi" ? cache : `${folder}/without-${name}`;
        const given = permissions.filter((flag) => flag !== lacking).map((flag) =>
          flag.replace(cache, fresh)
        );
        const { code, stderr } = await run(folder, origin, given, { MARKBASE_CACHE: fresh });
        assertEquals(code, 1, `${name}: ${stderr}`);
        assertStringIncludes(stderr, "MissingPermission", name);
        const flag = lacking.replace(cache, fresh);
        assertMatch(stderr, new RegExp(`${flag.replace(/[+.]/g, "\\$&")}[ .]`), name);
      }
    });
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
