/** `markbase batch`: a file of requests in, a file of replies out. */
import { batchFile } from "../engine/batch_file.ts";
import { InvalidArgument, MarkbaseError } from "../errors.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { generationFlags, generationOptions, loadFlags, loadModel } from "./options.ts";
import { ProgressBar } from "./progress.ts";
import { write } from "./terminal.ts";

const flags = {
  ...loadFlags,
  ...generationFlags,
  output: {
    type: "string",
    value: "FILE",
    help: "file of replies (default: the requests' name with .replies.jsonl)",
  },
  json: { type: "boolean", help: "print the summary as one JSON object" },
} as const;

/** Help text of the command. */
export const help = `markbase batch FILE.jsonl

Answers the requests of a file, one JSON object on each line: "messages" or "prompt", options such as "maxTokens", and a "custom_id"
(default: the line's number). Replies are written as they come, {"custom_id", "reply"} or {"custom_id", "error"} on each line; run
again, the command goes on with what has no reply yet. Flags hold where a request has no option of its own.

${describeFlags(flags)}`;

/** Runs the command with the words after its name. */
export async function batch(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words, 1);
  const [input] = words;
  if (input === undefined) {
    throw new InvalidArgument('Name the file of requests: "markbase batch FILE.jsonl".');
  }
  const output = values.output ?? `${input.replace(/\.jsonl$/, "")}.replies.jsonl`;
  using bar = new ProgressBar();
  await using model = await loadModel(values, bar, signal);
  const summary = await batchFile(model, input, output, {
    common: generationOptions(values),
    onProgress: (completed, total) => bar.update({ stage: "batch", completed, total }),
    signal,
  });
  bar.stop();
  const { kept, answered, failed } = summary;
  const text = `${answered} answered, ${failed} failed, ${kept} there before: ${output}`;
  await write(Deno.stdout, (values.json ? JSON.stringify({ ...summary, output }) : text) + "\n");
  if (failed > 0) {
    throw new MarkbaseError(
      "batch_failed",
      `${failed} ${failed === 1 ? "request" : "requests"} failed; ${output} says why. Run again to retry.`,
    );
  }
}
