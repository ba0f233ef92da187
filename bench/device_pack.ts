/**
 * Readies `.device` for `bench/device.ts` on a machine that has a GPU but no network, compiler or Deno: the Deno binary, the
 * npm packages, the native library and the kernels as PTX, both as they are now. Prints the command that runs there, in a copy
 * of this checkout with `.device` in it, and writes its results and log into the folder that the variable OUT names.
 *
 *     deno run -A bench/device_pack.ts [sections, separated by commas]
 */
import { buildLibrary } from "../dylib/build.ts";
import { buildPtx } from "../dylib/ptx/build.ts";

const ROOT = new URL("../", import.meta.url).pathname;
const FOLDER = `${ROOT}.device`;
const ARCHITECTURE = "sm_90";

async function run(command: string, args: string[], env: Record<string, string> = {}): Promise<void> {
  const { success, code } = await new Deno.Command(command, { args, env, cwd: ROOT }).output();
  if (!success) throw new Error(`${command} ${args.join(" ")} ended with status ${code}`);
}

async function exists(path: string): Promise<boolean> {
  return await Deno.stat(path).then(() => true, () => false);
}

await Deno.mkdir(FOLDER, { recursive: true });
await Deno.writeTextFile(`${FOLDER}/.gitignore`, "*\n");
const stage = await Deno.makeTempDir({ prefix: "markbase-pack-" });
try {
  const deno = `${FOLDER}/deno-${Deno.version.deno}.xz`;
  if (!await exists(deno)) {
    await Deno.copyFile(await Deno.realPath(Deno.execPath()), `${stage}/deno`);
    await run("xz", ["-9", "-T1", `${stage}/deno`]);
    await Deno.rename(`${stage}/deno.xz`, deno).catch(() => Deno.copyFile(`${stage}/deno.xz`, deno));
  }
  const library = await buildLibrary();
  const ptx = await buildPtx(ARCHITECTURE);
  await Deno.mkdir(`${stage}/pack/ptx`, { recursive: true });
  await Deno.copyFile(library.path, `${stage}/pack/libmarkbase.so`);
  await run("cp", ["-r", ptx, `${stage}/pack/ptx/${ARCHITECTURE}`]);
  await run(Deno.execPath(), ["cache", "--no-lock", "bench/device.ts", "bench/device/worker.ts"], {
    DENO_DIR: `${stage}/pack/deno`,
  });
  for await (const { name } of Deno.readDir(`${stage}/pack/deno`)) {
    if (name !== "npm") await Deno.remove(`${stage}/pack/deno/${name}`, { recursive: true });
  }
  await run("tar", ["-C", stage, "-cJf", `${FOLDER}/pack.tar.xz`, "pack"]);
  const python = [
    "import lzma,shutil,tarfile",
    `shutil.copyfileobj(lzma.open('.device/deno-${Deno.version.deno}.xz'),open('/tmp/deno','wb'))`,
    "tarfile.open('.device/pack.tar.xz').extractall('/tmp')",
  ].join(";");
  const only = Deno.args[0] === undefined ? "" : ` --only ${Deno.args[0]}`;
  console.log(
    `python3 -c "${python}" && chmod +x /tmp/deno && export DENO_DIR=/tmp/pack/deno MARKBASE_DYLIB=/tmp/pack/libmarkbase.so MARKBASE_PTX=/tmp/pack/ptx DENO_NO_UPDATE_CHECK=1 && ` +
      `/tmp/deno run -A --no-check --no-lock --cached-only bench/device.ts --out $OUT${only} 2>&1 | tee $OUT/log.txt`,
  );
  const bytes = (await Array.fromAsync(Deno.readDir(FOLDER)))
    .reduce((sum, { name }) => sum + Deno.statSync(`${FOLDER}/${name}`).size, 0);
  console.error(`.device has ${(bytes / 1e6).toFixed(1)} MB; carry it with the checkout.`);
} finally {
  await Deno.remove(stage, { recursive: true });
}
