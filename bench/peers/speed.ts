/**
 * Speed beside llama.cpp, MLX and Transformers in one run: all load a model, then prefill and decode are timed in turn
 * (A B A B …), each on a prompt that no cache has seen and that is the same for all. Prints medians, spread, load time,
 * resident memory and the ratios of the medians.
 *
 *     deno run -A bench/peers/speed.ts MODEL… [--llama PROGRAM] [--node FOLDER] [--gguf FILE]
 *         [--transformers PYTHON] [--mlx PYTHON] [--folder FOLDER]
 *         [--prompt 512] [--tokens 32] [--repetitions 5] [--threads N] [--busy] [--wait] [--json FILE] [--title TEXT]
 *
 * MODEL is what markbase loads; several are several peers. PROGRAM is the compiled `llama_worker.cpp`; the FOLDER of --node has
 * node-llama-cpp; each PYTHON has the packages that `mlx_worker.py` and `transformers_worker.py` name. --gguf is for llama.cpp
 * and --folder for the other two, where that is not MODEL. --busy also times decoding with a busy process on each core, and
 * leaves prefill out. --json adds the samples to what FILE has, so that a comparison can be made in short parts.
 */
import { parseFlags } from "../../src/cli/args.ts";
import { readBandwidth } from "../bandwidth.ts";
import {
  llamaPeer,
  markbasePeer,
  mlxPeer,
  nodeLlamaPeer,
  Peer,
  type PeerCommand,
  transformersPeer,
  WAIT,
  waitForLine,
} from "./peers.ts";
import { type Comparison, describe, emptyRecord, joined, OWN } from "./record.ts";

const { values, words: models } = parseFlags(Deno.args, {
  llama: { type: "string", help: "compiled llama_worker.cpp" },
  node: { type: "string", help: "folder in which node-llama-cpp is installed" },
  gguf: { type: "string", help: "model of both; default: MODEL" },
  transformers: { type: "string", help: "Python with torch and transformers" },
  mlx: { type: "string", help: "Python with mlx and mlx-lm" },
  folder: { type: "string", help: "model of both; default: MODEL" },
  prompt: { type: "number", help: "tokens of the prefill" },
  tokens: { type: "number", help: "tokens to decode" },
  repetitions: { type: "number", help: "how often" },
  threads: { type: "number", help: "of the peers; markbase takes all cores" },
  busy: { type: "boolean", help: "decoding with a busy process on each core too, no prefill" },
  wait: WAIT,
  title: { type: "string", help: "of the comparison; default: the name of MODEL" },
  json: { type: "string", help: "file to which the samples are added" },
});
if (models.length === 0) {
  console.error(
    "usage: deno run -A bench/peers/speed.ts MODEL… [--llama PROGRAM] … (the file's head says more)",
  );
  Deno.exit(2);
}
const { prompt = 512, tokens = 32, repetitions = 5, busy = false } = values;
const cores = navigator.hardwareConcurrency;
const threads = values.threads ?? cores;
const gguf = values.gguf ?? models[0];
const folder = values.folder ?? models[0];
const base = (path: string) => path.split("/").filter((part) => part !== "").at(-1)!;

const commands: PeerCommand[] = [
  ...models.map((model) => markbasePeer(models.length > 1 ? `${OWN}, ${base(model)}` : OWN, model)),
  ...(values.llama ? [llamaPeer(values.llama, gguf, threads)] : []),
  ...(values.node ? [nodeLlamaPeer(values.node, gguf, threads)] : []),
  ...(values.transformers ? [transformersPeer(values.transformers, folder, threads)] : []),
  ...(values.mlx ? [mlxPeer(values.mlx, folder, threads)] : []),
];

const LEAD = 16; // tokens before those that are decoded
const WARM_UP = 8;

let seed = Date.now() >>> 0;
/** Ids below 196,608 that no earlier prompt of this machine is likely to have begun with. */
function randomIds(count: number): number[] {
  return Array.from({ length: count }, () => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return 1000 + (seed >>> 8) % 195_000;
  });
}

/** A process that keeps one core busy until it is disposed. */
function busyProcess(): Disposable {
  const child = new Deno.Command("sh", { args: ["-c", "while :; do :; done"] }).spawn();
  return { [Symbol.dispose]: () => child.kill("SIGKILL") };
}

using stack = new DisposableStack();
const peers = commands.map((command) => stack.use(new Peer(command)));
const counts = ({ command: { most } }: Peer) => ({
  prompt: Math.min(prompt, most?.prompt ?? prompt),
  tokens: Math.min(tokens, most?.tokens ?? tokens),
});
const record: Comparison = {
  title: values.title ?? base(models[0]),
  threads,
  bandwidth: [],
  dates: [new Date().toISOString()],
  peers: {},
};
for (const peer of peers) {
  const { prompt, tokens } = counts(peer);
  record.peers[peer.name] = emptyRecord(prompt, tokens);
  record.peers[peer.name].load.push((await peer.ask("load")).seconds);
  // Touches every page of the weights and makes whatever is made once.
  if (!busy) await peer.ask("prefill", ...randomIds(Math.min(prompt, 64)));
  await peer.ask("decode", Math.min(tokens, WARM_UP), ...randomIds(LEAD));
}

/** Keeps a rate in tokens/s. */
function note(peer: Peer, key: "prefill" | "decode" | "busyDecode", tokens: number, seconds: number): void {
  record.peers[peer.name][key].push(tokens / seconds);
  console.error(`${peer.name}: ${key} ${(tokens / seconds).toPrecision(3)} tokens/s`);
}

/** One after another, all peers decode after the same prompt. */
async function decodeAll(key: "decode" | "busyDecode"): Promise<void> {
  const ids = randomIds(LEAD);
  for (const peer of peers) {
    const { tokens } = counts(peer);
    note(peer, key, tokens, (await peer.ask("decode", tokens, ...ids)).seconds);
  }
}

if (values.wait) await waitForLine();
const faults = await Promise.all(peers.map(async (peer) => (await peer.resident()).majorFaults));
const before = await readBandwidth(cores);
for (let i = 0; i < repetitions; i++) {
  if (!busy) {
    const ids = randomIds(prompt);
    for (const peer of peers) {
      const { prompt } = counts(peer);
      const { seconds } = await peer.ask("prefill", ...ids.slice(0, prompt));
      note(peer, "prefill", prompt, seconds);
    }
  }
  await decodeAll("decode");
  if (busy) {
    using all = new DisposableStack();
    for (let core = 0; core < cores; core++) all.use(busyProcess());
    await decodeAll("busyDecode");
  }
}
const after = await readBandwidth(cores);
record.bandwidth.push([before / 1e9, after / 1e9]);
for (const [i, peer] of peers.entries()) {
  const { all, files, majorFaults } = await peer.resident();
  const own = record.peers[peer.name];
  own.resident.push(all);
  own.residentFiles.push(files);
  own.majorFaults.push(majorFaults - faults[i]);
}

let whole = record;
if (values.json !== undefined) {
  try {
    whole = joined(JSON.parse(await Deno.readTextFile(values.json)), record);
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
  await Deno.writeTextFile(values.json, JSON.stringify(whole, null, 1) + "\n");
}
console.log(describe(whole));
