/** The `markbase` command line: finds the command, prints help, turns errors into one line and an exit code. */
import { MarkbaseError } from "../errors.ts";
import { VERSION } from "../version.ts";
import * as batch from "./batch.ts";
import * as bench from "./bench.ts";
import * as chat from "./chat.ts";
import * as describe from "./describe.ts";
import * as doctor from "./doctor.ts";
import * as explain from "./explain.ts";
import * as generate from "./generate.ts";
import * as hub from "./pull.ts";
import * as quantize from "./quantize.ts";
import * as transcribe from "./transcribe.ts";

interface Command {
  summary: string;
  help: string;
  run(args: string[], signal: AbortSignal): Promise<void>;
}

const commands: Record<string, Command> = {
  chat: { summary: "talk with a model in the terminal", help: chat.help, run: chat.chat },
  generate: { summary: "answer one prompt", help: generate.help, run: generate.generate },
  describe: { summary: "tell what pictures and videos show", help: describe.help, run: describe.describe },
  transcribe: {
    summary: "write down recordings, as text or subtitles",
    help: transcribe.help,
    run: transcribe.transcribe,
  },
  batch: { summary: "answer the requests of a file", help: batch.help, run: batch.batch },
  explain: {
    summary: "layers, memory and predicted time of a model",
    help: explain.help,
    run: explain.explain,
  },
  bench: { summary: "how fast a model runs here", help: bench.help, run: bench.bench },
  quantize: { summary: "a smaller copy of a model", help: quantize.help, run: quantize.quantize },
  pull: { summary: "download a model of the hub", help: hub.pullHelp, run: hub.pull },
  list: { summary: "models in the hub's cache", help: hub.listHelp, run: hub.list },
  remove: { summary: "remove a model from the hub's cache", help: hub.removeHelp, run: hub.remove },
  doctor: { summary: "check this machine", help: doctor.help, run: doctor.doctor },
};

const usage = `markbase COMMAND [FLAGS]

${Object.entries(commands).map(([name, command]) => `  ${name.padEnd(10)} ${command.summary}`).join("\n")}

markbase COMMAND --help shows the flags of a command, markbase --version the version.`;

/** Runs one command line; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 nobody reads. */
export async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args;
  if (name === undefined || name === "--help" || name === "-h" || name === "help") {
    console.log(usage);
    return name === undefined ? 2 : 0;
  }
  if (name === "--version" || name === "-V") {
    console.log(`markbase ${VERSION}`);
    return 0;
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (command === undefined) {
    console.error(`Unknown command "${name}".\n\n${usage}`);
    return 2;
  }
  if (rest.includes("--help") || rest.includes("-h")) {
    console.log(command.help);
    return 0;
  }
  const interrupted = new AbortController();
  const stop = () => interrupted.abort(new DOMException("Interrupted.", "AbortError"));
  if (name !== "chat") Deno.addSignalListener("SIGINT", stop); // chat gives Ctrl-C a meaning of its own
  try {
    await command.run(rest, interrupted.signal);
    return 0;
  } catch (error) {
    if (interrupted.signal.aborted) return 130;
    if (error instanceof Deno.errors.BrokenPipe) return 141; // as in `markbase generate … | head -1`
    if (!(error instanceof MarkbaseError)) throw error;
    console.error(`error: ${error.message}`);
    return error.code === "unknown_option" || error.code === "invalid_argument" ? 2 : 1;
  } finally {
    if (name !== "chat") Deno.removeSignalListener("SIGINT", stop);
  }
}

if (import.meta.main) Deno.exit(await main(Deno.args));
