/**
 * Processes that run one model each, so that they can be timed in turn. A request is a line:
 *
 *     load                  opens the model
 *     prefill ID ID …       computes the logits after a prompt, afresh
 *     decode COUNT ID ID …  the same, and the likeliest token; timed are COUNT more of these
 *     loss ID ID …          (llama.cpp) mean negative log-likelihood of all ids but the first
 *     vision COLUMNS ROWS   (towers) soft tokens of a picture of so many patches
 *     audio FRAMES          (towers) soft tokens of so many frames of log-mel
 *
 * The answer is a line of JSON: `{"seconds": …}`, with `"loss"` or `"tokens"` where there is such a thing.
 */
import type { Flag } from "../../src/cli/args.ts";

/** The first word of a request. */
export type Request = "load" | "prefill" | "decode" | "loss" | "vision" | "audio";

/** What a process answers. */
export interface Answer {
  seconds: number;
  /** nats */ loss?: number;
  /** soft tokens */ tokens?: number;
}

/** How to start the process of one peer. */
export interface PeerCommand {
  name: string;
  command: string;
  args: string[];
  /** tokens of a prompt and tokens to decode at most, where a peer is so slow that more would take minutes */ most?:
    {
      prompt: number;
      tokens: number;
    };
}

/** Lines of a stream of text. */
export async function* linesOf(bytes: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<string> {
  let rest = "";
  for await (const text of bytes.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
}

const here = (name: string) => new URL(name, import.meta.url).pathname;

/** markbase, on all cores. */
export function markbasePeer(name: string, model: string): PeerCommand {
  return { name, command: Deno.execPath(), args: ["run", "-A", here("markbase_worker.ts"), model] };
}

/** A compiled `llama_worker.cpp`. */
export function llamaPeer(program: string, model: string, threads: number, ...more: string[]): PeerCommand {
  return { name: "llama.cpp", command: program, args: [model, String(threads), ...more] };
}

/** The prebuilt library of the npm package in the folder `modules`. */
export function nodeLlamaPeer(modules: string, model: string, threads: number): PeerCommand {
  const args = [here("node_llama_worker.mjs"), modules, model, String(threads)];
  return { name: "node-llama-cpp", command: "node", args };
}

/** A Python that has torch and transformers; bf16. */
export function transformersPeer(python: string, model: string, threads: number): PeerCommand {
  return {
    name: "Transformers",
    command: python,
    args: [here("transformers_worker.py"), model, String(threads)],
  };
}

/** Towers in `dtype`; `folder` is one that `synthetic.ts` wrote. */
export function transformersTowers(
  python: string,
  folder: string,
  threads: number,
  dtype: "bfloat16" | "float32",
): PeerCommand {
  const args = [here("transformers_towers.py"), folder, String(threads), dtype];
  return { name: `Transformers, ${dtype}`, command: python, args };
}

/** A Python that has mlx and mlx-lm. Its CPU kernels on Linux take seconds a token. */
export function mlxPeer(python: string, model: string, threads: number): PeerCommand {
  const args = [here("mlx_worker.py"), model, String(threads)];
  return { name: "MLX", command: python, args, most: { prompt: 4, tokens: 2 } };
}

/** Flag of a benchmark that can be told when the machine is quiet. */
export const WAIT: Flag = { type: "boolean", help: "wait for a line on standard input once all are warm" };

/** Waits for what that flag promises. */
export async function waitForLine(): Promise<void> {
  console.error("All are warm. A line on standard input begins the measurement.");
  for await (const _ of linesOf(Deno.stdin.readable)) return;
}

/** Resident bytes of a process. */
export interface Resident {
  all: number;
  /** pages of mapped files */ files: number;
  /** pages that had to be read from disk since the start: where these grow, memory is too small for all peers at once */
  majorFaults: number;
}

/** Resident bytes of a process; `"self"`: of this one. Linux alone. */
export async function residentOf(pid: number | "self"): Promise<Resident> {
  const status = await Deno.readTextFile(`/proc/${pid}/status`);
  const field = (name: string) => 1024 * Number(new RegExp(`${name}:\\s*(\\d+)`).exec(status)?.[1] ?? NaN);
  // Fields of stat after the name in parentheses: state is the first, majflt the tenth.
  const stat = (await Deno.readTextFile(`/proc/${pid}/stat`)).split(") ").at(-1)!.split(" ");
  return { all: field("VmRSS"), files: field("RssFile"), majorFaults: Number(stat[9]) };
}

/** The running process of a peer. */
export class Peer implements Disposable {
  readonly #child: Deno.ChildProcess;
  readonly #writer: WritableStreamDefaultWriter<Uint8Array>;
  readonly #lines: AsyncGenerator<string>;

  constructor(readonly command: PeerCommand) {
    const { command: program, args } = command;
    this.#child = new Deno.Command(program, { args, stdin: "piped", stdout: "piped", stderr: "null" })
      .spawn();
    this.#writer = this.#child.stdin.getWriter();
    this.#lines = linesOf(this.#child.stdout);
  }

  get name(): string {
    return this.command.name;
  }

  /** Sends a request. Rejects when the process ended. */
  async ask(what: Request, ...numbers: readonly number[]): Promise<Answer> {
    await this.#writer.write(new TextEncoder().encode([what, ...numbers].join(" ") + "\n"));
    for (;;) {
      const { value, done } = await this.#lines.next();
      if (done) throw new Error(`The process of ${this.name} ended: ${(await this.#child.status).code}.`);
      if (value.startsWith("{")) return JSON.parse(value); // others are messages of its libraries
    }
  }

  /** Bytes that are resident now. */
  async resident(): Promise<Resident> {
    return await residentOf(this.#child.pid);
  }

  [Symbol.dispose](): void {
    try {
      this.#child.kill("SIGKILL");
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // it has ended
    }
  }
}
