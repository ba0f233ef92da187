/** `markbase batch`: files of requests, replies line by line, errors of single lines, runs that go on where one ended. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { batchFile, type BatchLine } from "../../src/engine/batch_file.ts";
import { InvalidArgument, load } from "../../mod.ts";
import { main } from "../../src/cli/main.ts";

const QUESTIONS: [string, string][] = [
  ["What is 27 + 45?", "72"],
  ["What is the capital of Japan?", "The capital of Japan is Tokyo."],
  ["What is 8 times 7?", "56"],
];

async function inFolder(work: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir();
  try {
    await work(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function lines(...requests: unknown[]): string {
  return requests.map((request) => typeof request === "string" ? request : JSON.stringify(request)).join(
    "\n",
  ) + "\n";
}

function question(i: number, extra: object = {}): object {
  return {
    custom_id: `q${i}`,
    messages: [{ role: "user", content: QUESTIONS[i][0] }],
    temperature: 0,
    ...extra,
  };
}

async function replies(path: string): Promise<Map<string, BatchLine>> {
  const text = await Deno.readTextFile(path);
  assert(text === "" || text.endsWith("\n"));
  return new Map(
    text.split("\n").filter((line) => line !== "").map((line) => {
      const parsed: BatchLine = JSON.parse(line);
      return [parsed.custom_id, parsed];
    }),
  );
}

Deno.test("each line of a file gets its reply or its own error, by id", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny", { contextLength: 256 });
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    await Deno.writeTextFile(
      input,
      lines(
        question(0),
        question(1),
        "",
        "{ this is no JSON",
        "[1, 2]",
        { prompt: "The capital of Japan", maxTokens: 4, temperature: 0 },
        { custom_id: 77, prompt: "One", nothing: 1 },
        { custom_id: "both", prompt: "One", messages: [] },
        { custom_id: "long", prompt: "word ".repeat(300) },
        { custom_id: "signal", prompt: "One", signal: {} },
        { custom_id: {}, prompt: "One" },
        question(2),
      ),
    );
    const progress: number[] = [];
    const summary = await batchFile(model, input, output, { onProgress: (done) => progress.push(done) });
    assertEquals(summary, { kept: 0, answered: 4, failed: 7 });
    assertEquals(progress, Array.from({ length: 12 }, (_, i) => i));
    const found = await replies(output);
    QUESTIONS.forEach(([_, answer], i) => assertEquals(found.get(`q${i}`)?.reply?.text, answer));
    assertEquals(found.get("6")?.reply?.usage.completionTokens, 4);
    const codes = ["4", "5", "77", "both", "long", "signal", "11"].map((id) => found.get(id)?.error?.code);
    const wrong = "invalid_argument";
    assertEquals(codes, [wrong, wrong, "unknown_option", wrong, "context_full", wrong, wrong]);
    assertEquals(found.size, 11);
  }));

Deno.test("options that conversations alone have leave texts to continue as they are", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny", { contextLength: 256 });
    await Deno.writeTextFile(
      `${folder}/in.jsonl`,
      lines(question(0), { custom_id: "text", prompt: "One two" }),
    );
    const common = { maxTokens: 4, thinking: false, imageTokens: 70 };
    const summary = await batchFile(model, `${folder}/in.jsonl`, `${folder}/out.jsonl`, { common });
    assertEquals(summary, { kept: 0, answered: 2, failed: 0 });
  }));

Deno.test("a run goes on where an earlier one was cut off, and tries errors again", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    await Deno.writeTextFile(input, lines(question(0), question(1), question(2)));
    const before = { custom_id: "q0", reply: { text: "from before" } };
    const failed = { custom_id: "q1", error: { code: "memory_limit", message: "" } };
    await Deno.writeTextFile(output, lines(before, failed) + '{"custom_id":"q2","reply":{"te');
    const summary = await batchFile(model, input, output);
    assertEquals(summary, { kept: 1, answered: 2, failed: 0 });
    const found = await replies(output);
    assertEquals([...found.keys()].sort(), ["q0", "q1", "q2"]);
    assertEquals(found.get("q0")?.reply?.text, "from before");
    assertEquals(found.get("q1")?.reply?.text, QUESTIONS[1][1]);
    assertEquals((await batchFile(model, input, output)).kept, 3);
    assertEquals([...Deno.readDirSync(folder)].length, 2);
  }));

Deno.test("an interrupted run leaves whole lines, and the next one finishes", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    const many = Array.from({ length: 40 }, (_, i) => ({ ...question(i % 3), custom_id: `r${i}` }));
    await Deno.writeTextFile(input, lines(...many));
    const controller = new AbortController();
    const reason = new Error("interrupted");
    const onProgress = (done: number) => done === 10 && controller.abort(reason);
    const { signal } = controller;
    assertEquals(
      await batchFile(model, input, output, { onProgress, signal }).catch((error) => error),
      reason,
    );
    const first = (await replies(output)).size;
    assert(first >= 10 && first < 40, `${first}`);
    const summary = await batchFile(model, input, output);
    assertEquals(summary, { kept: first, answered: 40 - first, failed: 0 });
    const found = await replies(output);
    many.forEach((_, i) => assertEquals(found.get(`r${i}`)?.reply?.text, QUESTIONS[i % 3][1]));
  }));

Deno.test("a disk that is full ends the run with an error, and the next one goes on from the lines before", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    const many = Array.from({ length: 20 }, (_, i) => ({ ...question(i % 3), custom_id: `r${i}` }));
    await Deno.writeTextFile(input, lines(...many));
    const { write } = Deno.FsFile.prototype;
    let left = 5;
    Deno.FsFile.prototype.write = async function (bytes) {
      if (left-- > 0) return await write.call(this, bytes);
      if (left === -1) return await write.call(this, bytes.subarray(0, 7));
      throw new Error("No space left on device (os error 28)");
    };
    try {
      const error = await assertRejects(
        () => batchFile(model, input, output),
        InvalidArgument,
        "No space left",
      );
      assertEquals(error.message.includes(output), true);
    } finally {
      Deno.FsFile.prototype.write = write;
    }
    assertEquals(await batchFile(model, input, output), { kept: 5, answered: 15, failed: 0 });
    await assertRejects(() => batchFile(model, input, "/dev/null"), InvalidArgument, "/dev/null is no file");
  }));

Deno.test("a file of replies belongs to one run at a time, also where it is written anew first", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    // So that the first run lasts until the second has met its lock.
    const long = question(2, { maxTokens: 1000, logitBias: { 16: -100 } });
    await Deno.writeTextFile(input, lines(question(0), question(1), long));
    for (const before of ["", lines({ custom_id: "q0", error: { code: "memory_limit", message: "" } })]) {
      await Deno.writeTextFile(output, before);
      let second: Promise<unknown> | undefined;
      const onProgress = () => {
        second ??= assertRejects(() => batchFile(model, input, output), InvalidArgument, "Another run");
      };
      const summary = await batchFile(model, input, output, { onProgress });
      await second;
      assertEquals(summary, { kept: 0, answered: 3, failed: 0 });
      assertEquals((await replies(output)).size, 3);
    }
    assertEquals((await batchFile(model, input, output)).kept, 3);
  }));

Deno.test("files that cannot be worked with are refused before anything runs, and left as they are", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    await assertRejects(() => batchFile(model, input, output), InvalidArgument, "in.jsonl");
    await Deno.writeTextFile(input, lines(question(0), question(0)));
    await assertRejects(() => batchFile(model, input, output), InvalidArgument, "lines 1 and 2");
    await Deno.writeTextFile(input, lines(question(0)));
    await Deno.writeTextFile(output, "a letter to a friend\n");
    await assertRejects(() => batchFile(model, input, output), InvalidArgument, "no file of replies");
    assertEquals(await Deno.readTextFile(output), "a letter to a friend\n");
    // The requests themselves, by mistake: they have ids but no replies.
    await assertRejects(() => batchFile(model, input, input), InvalidArgument, "a file of their own");
    await Deno.writeTextFile(output, lines(question(0)));
    await assertRejects(() => batchFile(model, input, output), InvalidArgument, "no file of replies");
    assertEquals(await Deno.readTextFile(input), lines(question(0)));
  }));

Deno.test("a file that is not of replies survives as the output also where its last line has no end", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    await Deno.writeTextFile(input, lines(question(0)).trimEnd());
    await Deno.symlink(input, `${folder}/link.jsonl`);
    await Deno.link(input, `${folder}/twin.jsonl`);
    for (
      const name of [
        "in.jsonl",
        "./in.jsonl",
        "../" + folder.split("/").at(-1) + "/in.jsonl",
        "link.jsonl",
        "twin.jsonl",
      ]
    ) {
      await assertRejects(
        () => batchFile(model, input, `${folder}/${name}`),
        InvalidArgument,
        "a file of their own",
      );
    }
    assertEquals(await Deno.readTextFile(input), lines(question(0)).trimEnd());
    const foreign = [
      "a letter to a friend",
      '{"custom_id":"q0","prompt":"One"}',
      '{"custom',
      '{"prompt":"One',
    ];
    for (const [i, text] of foreign.entries()) {
      await Deno.writeTextFile(output, text);
      if (i === 2) await batchFile(model, input, output); // may be the first bytes of a reply
      else await assertRejects(() => batchFile(model, input, output), InvalidArgument, "no file of replies");
      if (i !== 2) assertEquals(await Deno.readTextFile(output), text);
    }
  }));

Deno.test("a file of requests may begin with a byte order mark and end its lines as Windows does", () =>
  inFolder(async (folder) => {
    await using model = await load("tiny");
    const [input, output] = [`${folder}/in.jsonl`, `${folder}/out.jsonl`];
    await Deno.writeTextFile(input, "\ufeff" + lines(question(0), question(1)).replaceAll("\n", "\r\n"));
    assertEquals(await batchFile(model, input, output), { kept: 0, answered: 2, failed: 0 });
    assertEquals((await replies(output)).get("q0")?.reply?.text, "72");
  }));

Deno.test("the command writes beside its input, counts what it did, and fails when a line did", () =>
  inFolder(async (folder) => {
    const input = `${folder}/sums.jsonl`;
    await Deno.writeTextFile(input, lines(question(0)));
    assertEquals(await main(["batch", input, "--json"]), 0);
    assertEquals((await replies(`${folder}/sums.replies.jsonl`)).get("q0")?.reply?.text, "72");
    await Deno.writeTextFile(input, lines(question(0), "nonsense"));
    assertEquals(await main(["batch", input]), 1);
    assertEquals(await main(["batch"]), 2);
    assertEquals(await main(["batch", input, "--output", input]), 2);
  }));
