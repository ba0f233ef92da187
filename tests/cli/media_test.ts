import { assert, assertEquals, assertMatch, assertStringIncludes } from "@std/assert";
import { command } from "../../src/cli/chat.ts";
import { srt } from "../../src/cli/transcript.ts";
import { hasFfmpeg, markbase as run } from "../support/process.ts";

const root = new URL("../../", import.meta.url).pathname;
const example = (name: string) => `${root}examples/media/${name}`;
const tiny = (name: string) => `${root}tests/fixtures/tiny/${name}`;

const markbase = (...args: string[]) => run(args);

Deno.test("describe tells of each picture, of several with their names", async () => {
  const one = await markbase("describe", example("star.png"), "--temperature", "0");
  assertEquals(one, { code: 0, stdout: "An orange star.\n", stderr: "" });
  const two = await markbase("describe", example("star.png"), tiny("scene.png"), "--temperature", "0");
  assertEquals(
    two.stdout,
    `${example("star.png")}: An orange star.\n${tiny("scene.png")}: A red circle above two blue squares.\n`,
  );
  const both = await markbase(
    "describe",
    "--together",
    tiny("digit.png"),
    tiny("wide.png"),
    "--temperature",
    "0",
  );
  assertEquals(both.stdout, "First: a black digit 7. Second: three green triangles.\n");
});

Deno.test("describe takes a video, a data URI and a question, and prints JSON", async () => {
  const video = await markbase("describe", example("scenes.gif"), "--temperature", "0", "--json");
  const { sources, text, usage, warnings } = JSON.parse(video.stdout);
  assertEquals([sources, text], [
    [example("scenes.gif")],
    "First: a red triangle. Second: two purple diamonds.",
  ]);
  assertEquals([usage.imageTokens, warnings], [128, []]);
  const uri = `data:text/plain;base64,${(await Deno.readFile(example("star.png"))).toBase64()}`;
  const asked = await markbase("describe", uri, "--prompt", "What colour is the star?", "--temperature", "0");
  assertEquals(asked.stdout, "Orange.\n");
});

const ffmpegIsThere = await hasFfmpeg();
if (!ffmpegIsThere) console.log("there is no ffmpeg; describing and transcribing an MP4 file is not tested");

Deno.test({
  name: "describe tells of the scenes of an MP4 file, and transcribe hears its sound",
  ignore: !ffmpegIsThere,
  fn: async () => {
    const folder = await Deno.makeTempDir();
    const path = `${folder}/scenes.mp4`;
    const inputs = ["-i", example("scenes.gif"), "-i", example("rising.wav")];
    const output = ["-r", "0.5", "-pix_fmt", "yuv420p", "-crf", "10"];
    const make = async (to: string, ...args: string[]) =>
      assertEquals(
        (await new Deno.Command("ffmpeg", { args: ["-v", "error", ...args, to] }).output()).success,
        true,
      );
    await make(path, ...inputs.slice(0, 2), ...output);
    const { stdout } = await markbase("describe", path, "--temperature", "0");
    assertEquals(stdout, "First: a red triangle. Second: two purple diamonds.\n");
    await make(`${folder}/sound.mp4`, ...inputs, ...output);
    const heard = JSON.parse((await markbase("transcribe", `${folder}/sound.mp4`, "--json")).stdout);
    assertEquals([heard.text, heard.warnings], ["[a rising tone]", []]);
    await Deno.remove(folder, { recursive: true });
  },
});

Deno.test("describe and transcribe end with one line and a code for what they cannot use", async () => {
  const cases: [string[], number, RegExp][] = [
    [["describe"], 2, /Name at least one picture/],
    [["describe", "/no/such.png"], 1, /\/no\/such\.png does not exist/],
    [["describe", tiny("digits.wav")], 1, /WAV/],
    [["describe", example("star.png"), "--image-tokens", "71"], 2, /70, 140, 280, 560, 1120/],
    [["transcribe"], 2, /Name at least one recording/],
    [["transcribe", example("star.png")], 1, /PNG/],
    [["transcribe", tiny("digits.wav"), "--chunk", "31"], 2, /--chunk is 31; it takes 1 to 30/],
    [["transcribe", tiny("digits.wav"), "--json", "--format", "srt"], 2, /exclude each other/],
    [["transcribe", tiny("digits.wav"), tiny("command.wav"), "--format", "vtt"], 2, /of one recording; 2/],
    [["transcribe", "--model", "/no/such/model", "/no/such.wav"], 1, /\/no\/such\.wav does not exist/],
    [["describe", "--model", "/no/such/model", tiny("README.md")], 1, /no known format/],
  ];
  for (const [args, expected, message] of cases) {
    const { code, stdout, stderr } = await markbase(...args);
    assertEquals([code, stdout], [expected, ""], args.join(" "));
    assertMatch(stderr, message);
    assertEquals(stderr.trimEnd().split("\n").length, 1);
  }
});

Deno.test("without an ffmpeg, a video and a sound that need one are refused before a model is loaded", async () => {
  const folder = await Deno.makeTempDir();
  await Deno.writeFile(
    `${folder}/a.mp4`,
    new Uint8Array([0, 0, 0, 16, ...new TextEncoder().encode("ftypisom"), 0, 0, 0, 0]),
  );
  await Deno.writeFile(`${folder}/a.aac`, new Uint8Array([0xff, 0xf1, 0x50, 0x80, 0, 0x1f, 0xfc]));
  for (const [command, file] of [["describe", "a.mp4"], ["transcribe", "a.mp4"], ["transcribe", "a.aac"]]) {
    const { code, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
      args: [
        "run",
        "-A",
        "--quiet",
        `${root}src/cli/main.ts`,
        command,
        `${folder}/${file}`,
        "--model",
        "/no/such/model",
      ],
      env: { NO_COLOR: "1", PATH: folder },
    }).output();
    assertEquals([code, stdout.length], [1, 0]);
    assertMatch(
      new TextDecoder().decode(stderr),
      /^error: Reading (MP4|AAC) files takes an ffmpeg on the PATH.*\n$/,
    );
  }
  await Deno.remove(folder, { recursive: true });
});

Deno.test("transcribe writes recordings down, one a line with their names", async () => {
  const { code, stdout } = await markbase("transcribe", tiny("digits.wav"), tiny("command.wav"));
  assertEquals(code, 0);
  assertEquals(stdout, `${tiny("digits.wav")}: three seven one\n${tiny("command.wav")}: turn on the light\n`);
});

Deno.test("a long recording is heard in overlapping chunks, with times for each in text, JSON and subtitles", async () => {
  // Six recordings with a second of silence after each, in chunks that begin with one of them.
  const parts = [tiny("digits.wav"), tiny("command.wav"), example("beeps.wav")];
  const rate = 16_000, chunk = 2.5, overlap = 0.25;
  const samples = new Int16Array(3 * (chunk - overlap) * rate + overlap * rate);
  for (const [i, path] of parts.entries()) {
    const bytes = await Deno.readFile(path);
    samples.set(new Int16Array(bytes.buffer, 44), i * (chunk - overlap) * rate + overlap * rate);
  }
  const header = (await Deno.readFile(parts[0])).slice(0, 44);
  new DataView(header.buffer).setUint32(40, samples.byteLength, true);
  const path = await Deno.makeTempFile({ suffix: ".wav" });
  await Deno.writeFile(path, new Uint8Array([...header, ...new Uint8Array(samples.buffer)]));
  const flags = ["--chunk", String(chunk), "--overlap", String(overlap)];
  const { stdout } = await markbase("transcribe", path, ...flags, "--json");
  const { source, seconds, text, cues, warnings } = JSON.parse(stdout);
  assertEquals([source, seconds, warnings], [path, 7, []]);
  assertEquals(text, "three seven one turn on the light [three beeps]");
  assertEquals(cues, [
    { start: 0, end: 2.375, text: "three seven one" },
    { start: 2.375, end: 4.625, text: "turn on the light" },
    { start: 4.625, end: 7, text: "[three beeps]" },
  ]);
  assertEquals((await markbase("transcribe", path, ...flags, "--format", "srt")).stdout, srt(cues));
  const vtt = (await markbase("transcribe", path, ...flags, "--format", "vtt")).stdout;
  assert(vtt.startsWith("WEBVTT\n\n00:00:00.000 --> 00:00:02.375\nthree seven one\n"));
  assertStringIncludes(vtt, "\n00:00:04.625 --> 00:00:07.000\n[three beeps]\n");
  await Deno.remove(path);
});

Deno.test("in a chat a picture goes with the next question and stays in the conversation", async () => {
  const lines = [
    "/image",
    `/image ${example("star.png")}`,
    "Describe the image.",
    "What colour is the star?",
    "/audio /no/such.wav",
    "What do you hear?",
    `/audio ${tiny("digits.wav")}`,
    "Transcribe the audio.",
  ];
  const { code, stdout, stderr } = await run(["chat", "--temperature", "0"], lines.join("\n") + "\n");
  assertEquals(code, 0);
  for (
    const said of [
      "Write /image and a path",
      "goes with image.",
      "An orange star.",
      "Orange.",
      "three seven one",
    ]
  ) {
    assertStringIncludes(stdout, said);
  }
  assertMatch(stderr, /error: \/no\/such\.wav does not exist/);
});

Deno.test("media of a question that failed go with the next one, unless they are why it failed", async () => {
  const lines = [
    `/image ${example("star.png")}`,
    "word ".repeat(200),
    "Describe the image.",
    "/clear",
    `/image ${example("star.png")}`,
    "word ".repeat(200),
    "/detach",
    "What is 27 + 45?",
    "/image /no/such.png",
    "Describe the image.",
    "What is 2 + 2?",
  ];
  const { code, stdout, stderr } = await run(
    ["chat", "--temperature", "0", "--context", "128"],
    lines.join("\n") + "\n",
  );
  assertEquals(code, 0);
  assertMatch(stdout, /An orange star\.[^]*without media\.[^]*72\n[^]*4\n/);
  const errors = stderr.trim().split("\n");
  assertEquals(errors.length, 6);
  for (const i of [0, 2]) {
    assertMatch(errors[i], /^error: The sequence would hold/);
    assertEquals(errors[i + 1], "The next question goes with image. /detach leaves that out.");
  }
  assertMatch(errors[4], /no\/such\.png does not exist/);
  assertMatch(errors[5], /^The next question goes without media; name again/);
});

Deno.test("a chat takes paths with spaces, as they are, quoted, and as terminals write them", {
  ignore: Deno.build.os === "windows",
}, () => {
  const path = "/a  b/it's (1).heic";
  for (const typed of [path, `"${path}"`, "/a\\ \\ b/it\\'s\\ \\(1\\).heic"]) {
    const conversation = {
      system: undefined,
      thinking: false,
      messages: [],
      attached: [],
      lastStatistics: "",
    };
    assertEquals(command(`/image ${typed}`, conversation), "The next question goes with image.");
    assertEquals(conversation.attached, [{ type: "image", image: path }]);
  }
});
