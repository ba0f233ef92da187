/** How much memory a model takes, decided before anything is loaded; what cannot fit is refused with the numbers. */
import { pagesAtOnce } from "../cache/sequence.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { MemoryLimit } from "../errors.ts";
import { type KvFormat, PAGE_TOKENS, pageBytes, type PageGroup, pageGroups } from "../schedule/groups.ts";

/** What is known before a load. Bytes unless said otherwise. */
export interface BudgetRequest {
  config: ModelConfig;
  kvFormat: KvFormat;
  weightBytes: number;
  activationBytes: number;
  /** of towers at work: no sequence but the first takes their room */ towerBytes: number;
  /**
   * that may turn out to be needed beside all this once the plans are compiled: left free by a context that nobody named and by
   * sequences after the first
   */
  unsureBytes: number;
  /** tokens; undefined: the model's own length, up to `DEFAULT_CONTEXT` and as memory allows */
  contextLength: number | undefined;
  /** for all of it */ memory: number;
  /** rows of one prefill chunk */ chunkRows: number;
  /** bytes of one device buffer at most */ maxBufferBytes: number;
}

/** The decision. */
export interface Budget {
  /** tokens of one sequence at most */ contextLength: number;
  /** pages of each group */ kvPages: number[];
  kvBytes: number;
}

/** Context length where neither the caller nor memory says otherwise. */
export const DEFAULT_CONTEXT = 32_768;
/** Least context worth loading a model for. */
const LEAST_CONTEXT = 256;
/** Sequences of full length to provide for, memory permitting. */
const WANTED_SEQUENCES = 16;
/** Bytes that more than one sequence may take, and again the windows of those that share the full layers' pages. */
const SPARE_BYTES = 512 * 2 ** 20;

/** Divides the budget. Throws `MemoryLimit`. */
export function planBudget(request: BudgetRequest): Budget {
  const { config, weightBytes, activationBytes, towerBytes, unsureBytes, memory, contextLength } = request;
  const room = memory - weightBytes - activationBytes;
  const wanted = contextLength ?? Math.min(config.contextLength, DEFAULT_CONTEXT);
  let context = wanted;
  if (contextLength === undefined) {
    while (context > LEAST_CONTEXT && !fits(request, context, room - unsureBytes)) {
      context = Math.ceil(context / 2);
    }
  }
  if (!fits(request, context, room)) {
    const needed = weightBytes + activationBytes + sequenceBytes(request, context);
    throw new MemoryLimit(
      `The model with a context of ${context} tokens`,
      needed,
      memory,
      `Weights take ${weightBytes} bytes, activations ${activationBytes}. Lower contextLength, use kvCache "f16" or "q8", ` +
        `take a smaller or more quantised model, or raise the memory option.`,
    );
  }
  // One sequence of full length always fits; more are provided for while they are cheap.
  const one = sequenceBytes(request, context);
  const spare = Math.max(0, Math.min(room - one - towerBytes - unsureBytes, Math.max(SPARE_BYTES, one)));
  const sequences = 1 + Math.min(WANTED_SEQUENCES - 1, Math.floor(spare / one));
  const groups = pageGroups(config);
  // Shorter ones share the pages of full layers, but each has windows of its own, which cost little beside a long context.
  const windowBytes = bytesOf(request, groups.filter(({ window }) => window !== null), context);
  const left = Math.max(0, Math.min(room - sequences * one - towerBytes - unsureBytes, SPARE_BYTES));
  const windows = sequences +
    (windowBytes > 0 ? Math.min(WANTED_SEQUENCES - sequences, Math.floor(left / windowBytes)) : 0);
  const kvPages = groups.map((group) => {
    const most = Math.floor(request.maxBufferBytes / pageBytes(group, request.kvFormat));
    return Math.min(most, (group.window === null ? sequences : windows) * pagesOf(request, group, context));
  });
  const kvBytes = groups.reduce((sum, group, g) => sum + kvPages[g] * pageBytes(group, request.kvFormat), 0);
  return { contextLength: context, kvPages, kvBytes };
}

function fits(request: BudgetRequest, context: number, room: number): boolean {
  if (sequenceBytes(request, context) > room) return false;
  return pageGroups(request.config).every((group) =>
    pagesOf(request, group, context) * pageBytes(group, request.kvFormat) <= request.maxBufferBytes
  );
}

function sequenceBytes(request: BudgetRequest, context: number): number {
  return bytesOf(request, pageGroups(request.config), context);
}

/** Bytes of one sequence's pages of these groups. */
function bytesOf(request: BudgetRequest, groups: readonly PageGroup[], context: number): number {
  return groups.reduce(
    (sum, group) => sum + pagesOf(request, group, context) * pageBytes(group, request.kvFormat),
    0,
  );
}

/** Pages of one sequence, and one more: a shared tail page is copied before it is written. */
function pagesOf(
  { chunkRows }: BudgetRequest,
  group: ReturnType<typeof pageGroups>[number],
  context: number,
): number {
  return pagesAtOnce(group, context, Math.min(chunkRows, context + PAGE_TOKENS)) + 1;
}
