/** What waits for a forward: decode rows, prompts, and work that no forward may run beside. */
import type { TokenKey } from "../cache/prefix.ts";
import type { Sequence } from "../cache/sequence.ts";
import type { EmbeddedPrefill, Part, RowRequest } from "./part.ts";
import type { Results } from "./results.ts";
import type { DraftRequest } from "./speculative.ts";

/** Decode rows of one sequence: a token that was drawn, and drafts of those after it. */
export interface DecodeWork {
  sequence: Sequence;
  /** of the whole timeline, stored tokens included; the prefix cache keeps its pages */ keys?:
    readonly TokenKey[];
  mask: number;
  signal: AbortSignal | undefined;
  /** wanted; drafts get fewer where many sequences share the forward */ rows: number;
  /** asks the drafter network for drafts */ draft?: DraftRequest;
  /** drafts that are there already, `rows` - 1 */ drafts?: readonly number[];
  /** tokens, the drawn one first, and what each row asks for */
  build(drafts: readonly number[]): { tokens: readonly number[]; requests: readonly RowRequest[] };
  /** looks at the results and says how many of the tokens stay in the sequence */ take(
    results: Results,
  ): number;
  /**
   * Called when those tokens are counted in. What it asks for is part of the next forward, which begins before anything else
   * of this thread has its turn.
   */
  goOn?(): void;
  /** set by `Scheduler.leave`: nobody wants it any more */ left?: boolean;
}

/** Sizes of a forward. */
export interface SchedulerLimits {
  /** decode rows at most */ decodeRows: number;
  /** output rows of a forward with prompts at most */ outRows: number;
  /** sequences at most */ sequences: number;
  /** rows that a block of media may have beyond what the pace allows */ blockRows: number;
}

/** Something that waits. */
export interface Waiting {
  signal: AbortSignal | undefined;
  resolve(): void;
  reject(reason: unknown): void;
  /** hears of the signal, until `release` */ abort: (() => void) | undefined;
}

export interface WaitingDecode extends Waiting {
  work: DecodeWork;
  /** of the forward that it is part of */ rows: number;
}

export interface WaitingPrompt extends Waiting {
  sequence: Sequence;
  ids: readonly number[];
  /** tokens that were computed */ start: number;
  options: EmbeddedPrefill;
  take: (results: Results) => void;
}

export interface WaitingAlone extends Waiting {
  run: () => Promise<void>;
}

/** Ends listening to the signal. */
export function release({ signal, abort }: Waiting): void {
  if (abort !== undefined) signal!.removeEventListener("abort", abort);
}

/** One sequence's share of a forward. */
export interface Share {
  waiting: WaitingDecode | WaitingPrompt;
  part: Part;
}
