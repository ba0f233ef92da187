/** A progress bar on stderr for long work; nothing at all when stderr is no terminal. */
import process from "node:process";
import { SingleBar } from "npm:cli-progress@3.12.0";
import type { Progress } from "../../mod.ts";

/** Shows the stages that `onProgress` reports, one bar a stage. Call `stop` before printing anything else. */
export class ProgressBar implements Disposable {
  #bar: SingleBar | null = null;
  #stage = "";

  /** Hand this to `load` as `onProgress`. */
  readonly update = (progress: Progress): void => {
    if (!Deno.stderr.isTerminal()) return;
    if (progress.stage !== this.#stage) {
      this.stop();
      this.#stage = progress.stage;
      this.#bar = new SingleBar({
        format: "{stage} {bar} {percentage}%",
        stream: process.stderr,
        hideCursor: true,
        clearOnComplete: true,
      });
      this.#bar.start(progress.total, 0, { stage: progress.stage });
    }
    this.#bar?.update(progress.completed, { stage: progress.stage });
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
