/** How many tokens to draft: by how often the last drafts were right, and by what it costs to check them here. */
import { DECODE_ROWS } from "../schedule/dispatches.ts";

/** A time that settles: the first one, which compiles and touches things, is left out; spikes count little. */
class Settled {
  #count = 0;
  /** seconds; undefined until known */ value: number | undefined;

  note(seconds: number): void {
    if (this.#count++ === 0) return;
    const { value } = this;
    this.value = value === undefined || seconds < value ? seconds : value + (seconds - value) / 8;
  }
}

/** Times of forwards by their decode rows, with all that goes with one, and of steps of the drafter. */
export class DraftCosts {
  /** by rows */
  readonly #forwards = Array.from({ length: DECODE_ROWS + 1 }, () => new Settled());
  readonly #step = new Settled();
  #sequences = 1;

  /** Learns from a forward of decode rows alone. */
  note(sequences: number, rows: number, seconds: number): void {
    this.#sequences = sequences;
    this.#forwards[rows]?.note(seconds);
  }

  /** Learns from steps of the drafter network. */
  noteSteps(steps: number, seconds: number): void {
    this.#step.note(seconds / steps);
  }

  /**
   * What a forward costs in which each of the sequences that run now has so many drafts, as a multiple of one without drafts;
   * Infinity where it has no room for them, undefined until that one was timed. Rows that were never timed are taken to cost
   * no more than fewer ones, so that they are tried.
   */
  of(drafts: number, isNetwork: boolean): number | undefined {
    const plain = this.#forwards[this.#sequences].value;
    const rows = this.#sequences * (1 + drafts);
    if (rows > DECODE_ROWS) return Infinity;
    if (plain === undefined) return undefined;
    const steps = isNetwork ? drafts * (this.#step.value ?? 0) : 0;
    return (this.#secondsOf(rows) + steps) / plain;
  }

  #secondsOf(rows: number): number {
    let [below, above] = [rows, rows];
    while (this.#forwards[below].value === undefined) below--; // that of the sequences alone is known
    while (above <= DECODE_ROWS && this.#forwards[above].value === undefined) above++;
    const low = this.#forwards[below].value!;
    if (above > DECODE_ROWS || above === below) return low;
    const high = this.#forwards[above].value!;
    return low + (high - low) * (rows - below) / (above - below);
  }
}

const FIRST_DRAFTS = 4;
/** Tokens that a forward with drafts must give for each that it costs. */
const WORTHWHILE = 1.05;
/** Forwards without drafts where these are not worth it; twice as many each time that they are not. */
const REST = 8;
const LONGEST_REST = 64;
/** Weight of what was before, against the drafts of one more forward. */
const MEMORY = 0.93;

/** How many tokens to draft next. */
export class DraftLength {
  readonly #fixed: number | undefined;
  readonly #most: number;
  /** as many as the last forward showed to be of use */ #next: number;
  /** drafts that were right lately, and those that it was found out of; hopeful at first */
  #right = 1.6;
  #tried = 2;
  #resting = 0; // forwards
  #rest = REST;
  #isProbe = false;

  /** `fixed`: always so many; `most`: never more. */
  constructor(fixed: number | undefined, most: number) {
    this.#fixed = fixed;
    this.#most = most;
    this.#next = Math.min(FIRST_DRAFTS, most);
  }

  /** Drafts for the next forward; 0 while drafting is not worth it, or `cost`, see `DraftCosts.of`, not known. */
  next(cost: (drafts: number) => number | undefined = () => 1): number {
    if (this.#fixed !== undefined) return Math.min(this.#fixed, this.#most);
    if (this.#resting > 0) {
      this.#resting--;
      return 0;
    }
    if (this.#isProbe) {
      this.#isProbe = false;
      return 1;
    }
    const share = this.#right / this.#tried;
    let best = 0, most = WORTHWHILE;
    let tokens = 1;
    for (let drafts = 1; drafts <= this.#next; drafts++) {
      tokens += share ** drafts;
      const times = cost(drafts);
      if (times === undefined) return 0;
      if (tokens / times >= most) [best, most] = [drafts, tokens / times];
    }
    if (best > 0) {
      this.#rest = REST;
      return best;
    }
    this.#resting = this.#rest - 1;
    this.#rest = Math.min(LONGEST_REST, 2 * this.#rest);
    this.#isProbe = true;
    return 0;
  }

  /** Learns how many of the drafts were accepted. */
  note(drafted: number, accepted: number): void {
    if (drafted === 0 || this.#fixed !== undefined) return;
    this.#right = MEMORY * this.#right + accepted;
    this.#tried = MEMORY * this.#tried + Math.min(drafted, accepted + 1);
    if (accepted === drafted) this.#next = Math.min(this.#most, this.#next + 2);
    else this.#next = Math.max(1, Math.min(this.#most, accepted + 1));
  }
}
