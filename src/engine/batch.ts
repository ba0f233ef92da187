/** Many requests at once: as many run together as fit, and one that fails leaves the others alone. */
import { signalOf } from "../arguments.ts";
import { Disposed, InvalidArgument, MarkbaseError, MemoryLimit } from "../errors.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import type { BatchRequest, ChatOptions, Model, Receipt, Reply } from "./api.ts";

/** A request that was checked. */
export type Call = (model: Model) => Promise<Reply>;

/** See `Model.batch`; `receipt` is that of replies that failed. */
export async function answerAll(
  model: Model,
  requests: readonly BatchRequest[],
  options: ChatOptions,
  receipt: Receipt,
): Promise<Reply[]> {
  if (!Array.isArray(requests)) throw new InvalidArgument("The requests of a batch must be a list.");
  const signal = signalOf(options.signal);
  signal?.throwIfAborted();
  const calls = Array.from(requests, (request, index) => callOf(request, options, index)); // holes too
  const replies = new Array<Reply>(calls.length);
  let fatal: { error: unknown } | undefined;
  let next = 0;
  const queue = new Admission();
  const work = async () => {
    while (next < calls.length && fatal === undefined) {
      const index = next++;
      try {
        replies[index] = await queue.admit(() => calls[index](model));
      } catch (error) {
        if (signal?.aborted || error instanceof Disposed || !(error instanceof MarkbaseError)) {
          fatal ??= { error };
        } else {
          replies[index] = failed(error, receipt);
        }
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(DECODE_ROWS, calls.length) }, work));
  if (fatal) throw fatal.error;
  return replies;
}

/** Lets requests that do not fit wait for others to end, rather than fail. */
export class Admission {
  #running = 0;
  /** times that a call gave its room back */ #left = 0;
  #waiting: (() => void)[] = [];

  /**
   * Runs `call`; after a `MemoryLimit` again once another call has ended, as long as there are others. One that is alone when its
   * failure is known need not have been so when it failed: it is run again at once if others left meanwhile.
   */
  async admit<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      const left = this.#left;
      this.#running++;
      try {
        const value = await call();
        this.#ended();
        return value;
      } catch (error) {
        const isAlone = this.#running === 1;
        if (!(error instanceof MemoryLimit) || isAlone && left === this.#left) {
          this.#ended();
          throw error;
        }
        this.#running--; // others go on, so nothing has changed for those that wait
        if (isAlone) continue;
        this.#left++;
      }
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  /** A call gave its room back: those that wait try again, or learn that they are alone. */
  #ended(): void {
    this.#running--;
    this.#left++;
    for (const wake of this.#waiting.splice(0)) wake();
  }
}

/** The call that a request asks for, with `common` where it has no option of its own. Throws `InvalidArgument` for what is no request. */
export function callOf(request: BatchRequest, common: ChatOptions, index: number): Call {
  if (Array.isArray(request)) return (model) => model.chat(request, common);
  if (typeof request === "object" && request !== null) {
    if ("messages" in request) {
      const { messages, ...own } = request;
      return endedAlone((model) => model.chat(messages, together(common, own)), own, common, index);
    }
    if ("prompt" in request) {
      const { prompt, ...own } = request;
      const { tools: _tools, thinking: _thinking, imageTokens: _imageTokens, ...rest } = common;
      return endedAlone((model) => model.complete(prompt, together(rest, own)), own, common, index);
    }
  }
  throw new InvalidArgument(
    `Request ${index} is neither a list of messages nor an object with messages or prompt.`,
  );
}

/** Options of a request, `common` where it has none; either signal ends it. */
function together(common: ChatOptions, own: ChatOptions): ChatOptions {
  const given = Object.entries(own).filter(([, value]) => value !== undefined);
  const options: ChatOptions = { ...common, ...Object.fromEntries(given) };
  if (common.signal && own.signal instanceof AbortSignal) {
    options.signal = AbortSignal.any([common.signal, own.signal]);
  }
  return options;
}

/** A request that its own signal ends is one that failed: the others of its batch go on. */
function endedAlone(call: Call, own: ChatOptions, common: ChatOptions, index: number): Call {
  const { signal } = own;
  if (!(signal instanceof AbortSignal)) return call;
  return (model) =>
    call(model).catch((error) => {
      if (!signal.aborted || common.signal?.aborted || error instanceof MarkbaseError) throw error;
      throw new MarkbaseError("aborted", `Request ${index} was ended by its own signal.`, { cause: error });
    });
}

function failed(error: MarkbaseError, receipt: Receipt): Reply {
  return {
    text: "",
    thinking: "",
    toolCalls: [],
    finishReason: "error",
    error,
    usage: { promptTokens: 0, cachedTokens: 0, completionTokens: 0 },
    warnings: [],
    receipt,
  };
}
