/** Media are read with the script's own permissions; a missing one is named with its exact flag. */
import { assertEquals, assertMatch } from "@std/assert";
import { encodePng } from "../../src/media/png.ts";
import { mediaPath } from "./support.ts";
import { hasFfmpeg } from "../support/process.ts";

const module = new URL("../../src/media/picture.ts", import.meta.url).href;
const sound = new URL("../../src/media/sound.ts", import.meta.url).href;
const video = new URL("../../src/media/video.ts", import.meta.url).href;

/** Runs code that may read modules only, beside `flags`. */
async function run(code: string, ...flags: string[]): Promise<string> {
  const script = await Deno.makeTempFile({ suffix: ".ts" });
  const body = `try { ${code} } catch (e) { console.log(e.code, e.message); }`;
  await Deno.writeTextFile(
    script,
    `import { readPicture } from "${module}"; import { readSound } from "${sound}"; import { readVideo } from "${video}"; ${body}`,
  );
  const { stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "--quiet", "--no-prompt", "--no-check", ...flags, script],
    stdin: "null",
  }).output();
  await Deno.remove(script);
  return new TextDecoder().decode(stdout) + new TextDecoder().decode(stderr);
}

Deno.test("every decoder works with permission to read the picture alone", async () => {
  for (
    const name of [
      "smooth.png",
      "smooth.jpg",
      "cmyk.jpg",
      "lossy.webp",
      "smooth.avif",
      "smooth.heic",
      "animated.gif",
    ]
  ) {
    const path = mediaPath(name);
    const code = `console.log((await readPicture(${JSON.stringify(path)})).width)`;
    assertMatch(await run(code, `--allow-read=${path}`), /^(48|24)\n/, name);
  }
});

Deno.test("a large picture needs no permission more than a small one", async () => {
  const path = await Deno.makeTempFile({ suffix: ".png" });
  await Deno.writeFile(
    path,
    await encodePng({ pixels: new Uint8Array(1200 * 900 * 3).fill(90), width: 1200, height: 900 }),
  );
  const code = `const { width, pixels } = await readPicture(${
    JSON.stringify(path)
  }); console.log(width, pixels.at(-1))`;
  assertEquals(await run(code, `--allow-read=${path}`), "1200 90\n");
  await Deno.remove(path);
});

Deno.test("without permission to read, to fetch, or to run ffmpeg, the error names the flag", async () => {
  const path = mediaPath("smooth.png");
  const reading = await run(`await readPicture(${JSON.stringify(path)})`);
  assertEquals(reading.includes(`missing_permission markbase needs --allow-read=${path} `), true, reading);
  const fetching = await run(`await readPicture("http://localhost:9/a.png")`);
  assertMatch(fetching, /^missing_permission markbase needs --allow-net=localhost:9 to fetch/);
  const mp4 = "new Uint8Array([0,0,0,16,...new TextEncoder().encode('ftypisom'),0,0,0,0])";
  const running = await run(`await readVideo(${mp4}, { frames: 2, sound: false })`);
  assertMatch(running, /^missing_permission markbase needs --allow-run=ffmpeg to read MP4 files/);
});

Deno.test("a redirect to another host needs that host's permission", async () => {
  const server = Deno.serve({ port: 0, hostname: "127.0.0.1", onListen() {} }, () => {
    return new Response(null, { status: 302, headers: { location: "http://other.invalid/a.png" } });
  });
  const host = `127.0.0.1:${server.addr.port}`;
  const output = await run(`await readPicture("http://${host}/a.png")`, `--allow-net=${host}`);
  await server.shutdown();
  assertMatch(output, /^missing_permission markbase needs --allow-net=other\.invalid/);
});

Deno.test({
  name: "the sound of a local video needs permission to read it and to run ffmpeg alone",
  ignore: !await hasFfmpeg(),
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const path = `${folder}/tone.m4a`;
    const tone = ["-f", "lavfi", "-i", "sine=frequency=500:duration=1"];
    assertEquals(
      (await new Deno.Command("ffmpeg", { args: ["-v", "error", ...tone, path] }).output()).success,
      true,
    );
    const code = `const { samples } = await readSound(${
      JSON.stringify(path)
    }); console.log(samples.length > 15000);`;
    assertEquals(await run(code, `--allow-read=${path}`, "--allow-run=ffmpeg"), "true\n");
    assertMatch(await run(code, `--allow-read=${path}`), /^missing_permission .*--allow-run=ffmpeg/);
    await Deno.remove(folder, { recursive: true });
  },
});
