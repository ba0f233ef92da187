/** The loop that turns a timeline of tokens into more tokens, one forward at a time. */
import type { ResumeEnd, TokenKey } from "../cache/prefix.ts";
import type { Sequence } from "../cache/sequence.ts";
import { ContextFull, InvalidArgument, MemoryLimit } from "../errors.ts";
import { Adjustments } from "../sample/adjustments.ts";
import { sampleCandidates } from "../sample/sampler.ts";
import { candidatesOf, type Draw, drawFrom } from "./draw.ts";
import { canFollow } from "./following.ts";
import type { Forward } from "./forward.ts";
import type { RowDraw, RowRequest } from "./part.ts";
import type { Settings } from "./options.ts";
import type { PlacedMedia } from "./placed.ts";
import { CANDIDATE_OUTPUTS, type Results, STATE_OUTPUT } from "./results.ts";
import { DraftLength } from "./draft_length.ts";
import { type DraftRequest, lookUp, MOST_DRAFTS, type SpeculationCounts } from "./speculative.ts";
import type { DecodeWork } from "./waiting.ts";

/** Tokens and the part of them that is in the cache: the first `sequence.length`. */
export interface Timeline {
  ids: number[];
  /** what the cache knows the tokens by, where those are not the ids: one for each */ keys?: TokenKey[];
  /** pictures and sounds among the tokens; then `keys` name them */ media?: readonly PlacedMedia[];
  sequence: Sequence;
  /** the last token was drawn by the model, so it continues as a decode row */ drawn: boolean;
}

/** Facts about a generation that come with its first draw. */
export interface GenerationFacts {
  /** tokens that were in the cache */ cachedTokens: number;
  /** why not more; undefined where the timeline had its own cache */ cacheEnd?: ResumeEnd;
  speculation?: SpeculationCounts;
}

/** Tokens reserved at a time for replies whose caller names no `maxTokens`. */
const USUAL_REPLY = 1024;

/** What a generation needs to know of its model. */
export interface GenerationContext {
  forward: Forward;
  contextLength: number;
  vocabularySize: number;
  stops: ReadonlySet<number>;
  /** a drafter network is there */ hasDrafter: boolean;
}

/**
 * Draws tokens and adds them to the timeline until one ends it; the forward after a draw runs while the caller has it, and is
 * given up when the caller leaves. The caller owns the timeline and must not touch it between draws, when its sequence may be
 * ahead of its tokens; `facts` is filled in. Throws `ContextFull`, `MemoryLimit`, the signal's reason, or a `DeviceError`.
 */
export async function* drawTokens(
  timeline: Timeline,
  settings: Settings,
  context: GenerationContext,
  facts: GenerationFacts,
): AsyncGenerator<Draw, void, undefined> {
  const { forward, contextLength } = context;
  const ids = [...timeline.ids]; // may be ahead of what the caller knows
  settings.signal?.throwIfAborted();
  if (ids.length === 0) throw new InvalidArgument("There is no token to continue from. Append at least one.");
  if (ids.length >= contextLength) throw new ContextFull(ids.length + 1, contextLength);
  // From here to the reservation nothing else runs: what is shared is the caller's at once, or refused.
  if (timeline.sequence.length === 0) {
    timeline.sequence.dispose();
    ({ sequence: timeline.sequence, end: facts.cacheEnd } = forward.prefixes.resume(
      timeline.keys ?? ids,
      forward.cut(timeline.media),
    ));
  }
  const { sequence } = timeline;
  facts.cachedTokens = sequence.length;
  const working: Timeline = { ...timeline, ids, keys: timeline.keys && [...timeline.keys] };
  const steps = new Steps(working, settings, context, facts);
  try {
    for (;;) {
      const draws = await steps.next();
      for (const draw of draws) {
        timeline.ids.push(draw.id);
        timeline.keys?.push(draw.id);
        timeline.drawn = true;
        yield draw;
      }
      if (draws.at(-1)!.end !== undefined) return;
    }
  } finally {
    await steps.leave();
    // Tokens that nobody wanted any more, and drafts that were right.
    const known = timeline.ids.length;
    if (sequence.length >= known) sequence.truncate(known - 1);
  }
}

/** Forwards of one generation. */
class Steps {
  readonly #adjustments: Adjustments;
  readonly #timeline: Timeline;
  readonly #settings: Settings;
  readonly #context: GenerationContext;
  readonly #counts: SpeculationCounts | undefined;
  readonly #lengths: DraftLength;
  readonly #mask: number;
  /** how tokens are drawn, where a forward may begin ahead of the draw before it */
  readonly #draw: RowDraw | undefined;
  /** tokens before the first draw */ readonly #prompt: number;
  /** draws at most */ readonly #most: number;
  #drawn = 0;
  /** tokens that the sequence has room for */ #reserved = 0;
  /** draws of the forward that was asked for last; undefined before the first, and once they were told */
  #ahead: Promise<Draw[]> | undefined;
  /** somebody waits for them */ #isAwaited = false;
  /** of them, those that are accepted */ #accepted: Draw[] | undefined;
  /** the last decode rows that were asked for */ #work: DecodeWork | undefined;
  /** before the last token, where a drafter wants it */
  #state: Float32Array<ArrayBuffer> | undefined;

  /** Reserves what the sequence needs. Throws `MemoryLimit`. */
  constructor(timeline: Timeline, settings: Settings, context: GenerationContext, facts: GenerationFacts) {
    this.#timeline = timeline;
    this.#settings = settings;
    this.#context = context;
    this.#adjustments = new Adjustments(settings, timeline.ids);
    this.#prompt = timeline.ids.length;
    this.#most = Math.min(settings.maxTokens, context.contextLength - this.#prompt);
    this.#reserve();
    const { speculative = context.hasDrafter } = settings;
    const isNetwork = speculative !== false && context.hasDrafter;
    if (speculative !== false) {
      const drafter = isNetwork ? "network" : "lookup";
      facts.speculation = this.#counts = { drafter, drafted: 0, accepted: 0, forwards: 0 };
    }
    const fixed = typeof speculative === "number" ? speculative : undefined;
    this.#lengths = new DraftLength(fixed, Math.min(MOST_DRAFTS, context.forward.decodeRows - 1));
    const isAlone = speculative === false && settings.logprobs === undefined;
    const adjustments = this.#adjustments;
    const isAdjusted = adjustments.list() !== undefined || adjustments.ofNext().multiply !== 0;
    this.#draw = isAlone && canFollow(settings, isAdjusted, context.forward.keepsLogits)
      ? { options: settings, adjustments }
      : undefined;
    this.#mask = CANDIDATE_OUTPUTS | (isNetwork ? STATE_OUTPUT : 0);
  }

  /**
   * The draws of the next forward: one, and one more for each draft that was right. The forward after them runs when they are
   * told, unless the last of them is the end.
   */
  async next(): Promise<Draw[]> {
    const isFirst = this.#ahead === undefined;
    const ahead = this.#ahead ?? this.#ask();
    this.#isAwaited = true;
    const draws = await ahead;
    this.#isAwaited = false;
    const accepted = this.#accepted ?? this.#accept(draws);
    this.#accepted = undefined;
    if (!isFirst) this.#settings.signal?.throwIfAborted(); // it may have come after the forward
    return accepted;
  }

  /** Nobody wants what was asked for and not told. Resolves when the sequence can be used. */
  async leave(): Promise<void> {
    if (this.#ahead === undefined) return;
    if (this.#work !== undefined) this.#context.forward.leave(this.#work);
    await this.#ahead.catch(() => {});
  }

  /** Adds draws to the tokens, up to the end if there is one; else asks for the forward after them. */
  #accept(draws: readonly Draw[]): Draw[] {
    const { stops } = this.#context;
    const { ignoreEos, maxTokens } = this.#settings;
    const { ids, keys } = this.#timeline;
    const accepted: Draw[] = [];
    for (const draw of draws) {
      accepted.push(draw);
      ids.push(draw.id);
      keys?.push(draw.id);
      this.#timeline.drawn = true;
      this.#adjustments.accept(draw.id);
      this.#drawn++;
      if (!ignoreEos && stops.has(draw.id)) draw.end = "stop";
      else if (this.#drawn === this.#most) draw.end = this.#drawn >= maxTokens ? "maxTokens" : "context";
      else if (ids.length === this.#reserved) {
        try {
          this.#reserve();
        } catch (error) {
          if (!(error instanceof MemoryLimit)) throw error;
          [draw.end, draw.refusal] = ["memory", error];
        }
      }
      if (draw.end !== undefined) break;
    }
    this.#ahead = undefined;
    if (accepted.at(-1)!.end === undefined) {
      this.#ahead = this.#ask();
      this.#ahead.catch(() => {}); // told when it is asked for
    }
    return accepted;
  }

  /** Promises the sequence room for the tokens to come, or for the usual reply where nobody says how many these are. */
  #reserve(): void {
    const { ids, sequence } = this.#timeline;
    const step = this.#settings.promised ? this.#most : USUAL_REPLY;
    this.#reserved = Math.min(ids.length + step, this.#prompt + this.#most);
    sequence.reserve(this.#reserved, Math.max(this.#context.forward.chunkRows, 1 + MOST_DRAFTS));
  }

  /** Asks for the draws of a forward with what is not in the sequence yet. */
  #ask(): Promise<Draw[]> {
    const { ids, sequence, drawn } = this.#timeline;
    return drawn && ids.length === sequence.length + 1
      ? this.#verify(ids.at(-1)!)
      : this.#prefill(ids.slice(sequence.length));
  }

  async #prefill(pending: readonly number[]): Promise<Draw[]> {
    const { ids, keys, media, sequence } = this.#timeline;
    let draws: Draw[] = [];
    await this.#context.forward.prefill(
      sequence,
      pending,
      {
        outputs: 1,
        mask: this.#mask,
        last: this.#request(this.#adjustments),
        keys: keys ?? ids,
        media,
        signal: this.#settings.signal,
      },
      (results) => draws = this.#take(results, [], [this.#adjustments]),
    );
    return draws;
  }

  /** The token that was drawn last, and drafts of those after it. */
  #verify(token: number): Promise<Draw[]> {
    const { ids, keys, sequence } = this.#timeline;
    const isNetwork = this.#counts?.drafter === "network";
    const wanted = this.#wantedDrafts(isNetwork);
    const draft = isNetwork ? this.#draftRequest(token, wanted) : undefined;
    const found = !isNetwork && wanted > 0 ? lookUp(ids, wanted) : [];
    let drafts: readonly number[] = [];
    let adjustments: Adjustments[] = [];
    let draws: Draw[] = [];
    this.#work = {
      sequence,
      keys: keys ?? ids,
      mask: this.#mask,
      signal: this.#settings.signal,
      rows: 1 + (draft?.count ?? found.length),
      draft,
      drafts: found,
      build: (drafted) => {
        drafts = drafted;
        adjustments = this.#adjustments.ahead(drafts);
        const requests = adjustments.map((each) => this.#request(each));
        if (this.#drawn + 1 < this.#most) requests[0].draw = this.#draw;
        return { tokens: [token, ...drafts], requests };
      },
      take: (results) => {
        draws = this.#take(results, drafts, adjustments);
        this.#noteDrafts(draws, drafts);
        return draws.length;
      },
      // A reader that is slower than the forwards gets one of them ahead, not more.
      goOn: () => {
        if (this.#isAwaited) this.#accepted = this.#accept(draws);
      },
    };
    return this.#context.forward.speculate(this.#work).then(() => draws);
  }

  /** Drafts that are worth it, as far as there is room for them. */
  #wantedDrafts(isNetwork: boolean): number {
    if (this.#counts === undefined) return 0;
    const room = Math.min(this.#most - this.#drawn, this.#reserved - this.#timeline.ids.length) - 1;
    const cost = (drafts: number) => this.#context.forward.draftCost(drafts, isNetwork);
    return Math.min(Math.max(0, room), this.#lengths.next(cost));
  }

  #noteDrafts(draws: readonly Draw[], drafts: readonly number[]): void {
    if (this.#counts === undefined) return;
    const accepted = draws.filter(({ id }, i) => id === drafts[i]).length;
    this.#counts.drafted += drafts.length;
    this.#counts.accepted += accepted;
    this.#lengths.note(drafts.length, accepted);
  }

  /** Draws from each row as long as the draws are those that the following rows were computed for. */
  #take(results: Results, drafts: readonly number[], adjustments: readonly Adjustments[]): Draw[] {
    if (this.#counts) this.#counts.forwards++;
    const { ids } = this.#timeline;
    const draws: Draw[] = [];
    for (let row = 0; row < results.rows; row++) {
      const draw = drawFrom(
        results,
        row,
        this.#settings,
        adjustments[row],
        ids.length + row,
        this.#context.vocabularySize,
      );
      draws.push(draw);
      if (draw.id !== drafts[row] || (!this.#settings.ignoreEos && this.#context.stops.has(draw.id))) break;
    }
    if (this.#mask & STATE_OUTPUT) this.#state = results.state(draws.length - 1);
    return draws;
  }

  #draftRequest(token: number, count: number): DraftRequest | undefined {
    if (count === 0 || this.#state === undefined) return undefined;
    const { ids } = this.#timeline;
    return {
      token,
      state: this.#state,
      count,
      request: this.#request(this.#adjustments),
      choose: (row, step) => {
        const candidates = candidatesOf(row, this.#context.vocabularySize);
        if (candidates.count === 0) return undefined;
        return sampleCandidates(candidates, this.#settings, ids.length + step) ?? candidates.ids[0];
      },
    };
  }

  #request(adjustments: Adjustments): RowRequest {
    const { temperature } = this.#settings;
    return { adjustments: adjustments.list(), temperature: temperature > 0 ? temperature : 1 };
  }
}
