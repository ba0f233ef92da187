/**
 * Speed beside llama.cpp in one run: both models are loaded, then prefill and decode are timed in turn (A B A B …), each on a
 * prompt that no cache has seen. Prints medians, spread and the ratio of the medians, load time and resident memory.
 *
 *     npm install --prefix FOLDER -E node-llama-cpp@3.21.1 --ignore-scripts
 *     deno run -A bench/peers/speed.ts MODEL --peer MODEL.gguf --modules FOLDER [--prompt 512] [--tokens 64] [--repetitions 5] [--threads 2]
 *
 * MODEL is anything that `load` takes; the peer runs its prebuilt binary without a GPU, in a process of Node.
 */
import { parseFlags } from "../../src/cli/args.ts";
import { readBandwidth } from "../bandwidth.ts";
import { median, spread } from "../statistics.ts";
import type { Request, Response } from "./worker.ts";

const { values, words } = parseFlags(Deno.args, {
  peer: { type: "string", help: "GGUF file for llama.cpp; default: MODEL" },
  modules: { type: "string", help: "folder in which node-llama-cpp is installed" },
  prompt: { type: "number", help: "tokens of the prefill" },
  tokens: { type: "number", help: "tokens to decode" },
  repetitions: { type: "number", help: "how often" },
  threads: { type: "number", help: "of llama.cpp; markbase takes all cores" },
});
const [model] = words;
if (model === undefined || values.modules === undefined) {
  console.error("usage: deno run -A bench/peers/speed.ts MODEL --modules FOLDER [--peer MODEL.gguf]");
  Deno.exit(2);
}
const prompt = values.prompt ?? 512;
const tokens = values.tokens ?? 64;
const repetitions = values.repetitions ?? 5;
const threads = values.threads ?? navigator.hardwareConcurrency;

/** A process that answers one line of JSON with another. */
class Worker implements Disposable {
  readonly #child: Deno.ChildProcess;
  readonly #writer: WritableStreamDefaultWriter<Uint8Array>;
  readonly #lines: ReadableStreamDefaultReader<string>;
  #rest = "";

  constructor(readonly name: string, command: string, args: string[]) {
    this.#child = new Deno.Command(command, { args, stdin: "piped", stdout: "piped", stderr: "null" })
      .spawn();
    this.#writer = this.#child.stdin.getWriter();
    this.#lines = this.#child.stdout.pipeThrough(new TextDecoderStream()).getReader();
  }

  async ask(request: Request): Promise<Response> {
    await this.#writer.write(new TextEncoder().encode(JSON.stringify(request) + "\n"));
    for (;;) {
      const end = this.#rest.indexOf("\n");
      if (end >= 0) {
        const line = this.#rest.slice(0, end);
        this.#rest = this.#rest.slice(end + 1);
        if (line.startsWith("{")) return JSON.parse(line);
        continue; // a message of the library
      }
      const { value, done } = await this.#lines.read();
      if (done) throw new Error(`the process of ${this.name} ended`);
      this.#rest += value;
    }
  }

  /** Resident bytes now, and most ever. */
  async memory(): Promise<{ now: number; most: number }> {
    const status = await Deno.readTextFile(`/proc/${this.#child.pid}/status`);
    const field = (name: string) => 1024 * Number(new RegExp(`${name}:\\s*(\\d+)`).exec(status)?.[1] ?? NaN);
    return { now: field("VmRSS"), most: field("VmHWM") };
  }

  [Symbol.dispose](): void {
    this.#child.kill("SIGKILL");
  }
}

const here = (name: string) => new URL(name, import.meta.url).pathname;
using markbase = new Worker("markbase", Deno.execPath(), [
  "run",
  "-A",
  "--no-lock",
  here("worker.ts"),
  model,
]);
using llama = new Worker("llama.cpp", "node", [
  here("llama_worker.mjs"),
  values.modules,
  values.peer ?? model,
  String(threads),
]);
const workers = [markbase, llama];

const load: Record<string, number> = {}, prefill: Record<string, number[]> = {}, decode: typeof prefill = {};
for (const worker of workers) {
  load[worker.name] = (await worker.ask({ what: "load" })).seconds;
  // Touches every page of the weights and makes whatever is made once.
  await worker.ask({ what: "prefill", tokens: prompt, seed: 1 });
  await worker.ask({ what: "decode", tokens: 4, seed: 2 });
  prefill[worker.name] = [];
  decode[worker.name] = [];
}
const before = await readBandwidth(threads);
for (let i = 0; i < repetitions; i++) {
  for (const worker of workers) {
    const { seconds } = await worker.ask({ what: "prefill", tokens: prompt, seed: 10 + i });
    prefill[worker.name].push(prompt / seconds);
  }
  for (const worker of workers) {
    const { seconds } = await worker.ask({ what: "decode", tokens, seed: 100 + i });
    decode[worker.name].push(tokens / seconds);
  }
}
const after = await readBandwidth(threads);

console.log(
  `model        ${model.split("/").pop()} beside ${
    (values.peer ?? model).split("/").pop()
  }, ${threads} threads`,
);
console.log(`bandwidth    ${(before / 1e9).toFixed(1)} GB/s before, ${(after / 1e9).toFixed(1)} after`);
for (const { name } of workers) {
  console.log(
    `${name.padEnd(12)} prefill(${prompt}) ${spread(prefill[name])} tokens/s, decode ${
      spread(decode[name])
    } tokens/s, load ${load[name].toFixed(2)} s`,
  );
}
for (const worker of workers) {
  const { now, most } = await worker.memory();
  console.log(
    `${worker.name.padEnd(12)} resident ${(now / 1e6).toFixed(0)} MB, at most ${(most / 1e6).toFixed(0)} MB`,
  );
}
const ratio = (samples: Record<string, number[]>) =>
  (median(samples.markbase) / median(samples["llama.cpp"])).toFixed(2);
console.log(`ratio        prefill ${ratio(prefill)}, decode ${ratio(decode)}`);
