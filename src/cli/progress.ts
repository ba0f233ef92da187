/**
 * A progress bar on stderr for long work. Where stderr is no terminal, one line says that the native library is being compiled, since
 * nothing else tells why the first run takes minutes.
 */
import process from "node:process";
import { SingleBar } from "npm:cli-progress@3.12.0";
import type { Progress } from "../../mod.ts";
import { bytes } from "./terminal.ts";

/** Shows the stages that `onProgress` reports, one bar a stage. Call `stop` before printing anything else. */
export class ProgressBar implements Disposable {
  #bar: SingleBar | null = null;
  #stage = "";

  /** Hand this to `load` as `onProgress`. */
  readonly update = (progress: Progress): void => {
    if (!Deno.stderr.isTerminal()) {
      if (progress.stage === "library" && this.#stage !== "library") {
        console.error("Compiling the native library: once, for a minute or a few.");
      }
      this.#stage = progress.stage;
      return;
    }
    if (progress.stage !== this.#stage) {
      this.stop();
      this.#stage = progress.stage;
      this.#bar = new SingleBar({
        format: progress.stage === "download"
          ? "{stage} {bar} {percentage}% {size}"
          : "{stage} {bar} {percentage}%",
        stream: process.stderr,
        hideCursor: true,
        clearOnComplete: true,
      });
      this.#bar.start(progress.total, 0, payload(progress));
    }
    this.#bar?.setTotal(progress.total); // the size of a download grows when an index names more files
    this.#bar?.update(progress.completed, payload(progress));
  };

  /** Removes the bar. */
  stop(): void {
    this.#bar?.stop();
    this.#bar = null;
    this.#stage = "";
  }

  [Symbol.dispose](): void {
    this.stop();
  }
}

function payload({ stage, completed, total }: Progress): object {
  return { stage, size: `${bytes(completed)} of ${bytes(total)}` };
}
