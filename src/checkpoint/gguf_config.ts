/**
 * The architecture that the metadata of a GGUF file describes, in the words of `config.json`, so that one reader checks
 * both. What the metadata leaves to the tensors (tied head, keys as values, rotated pairs) is read off them.
 */
import { CheckpointError } from "../errors.ts";
import type { GgufMetadata } from "./gguf_metadata.ts";
import type { RawTensor } from "./tensor.ts";

/** Architectures that can be run. */
const GGUF_ARCHITECTURES: readonly string[] = ["gemma3", "gemma4"];

/** Metadata under `general.sampling.` and its names in `generation_config.json`. */
const SUGGESTIONS = {
  temp: "temperature",
  top_k: "top_k",
  top_p: "top_p",
  min_p: "min_p",
  penalty_repeat: "repetition_penalty",
};

const SUPPRESSED = "tokenizer.ggml.suppress_tokens";

/** What the config is made from. */
export interface GgufModel {
  /** Of the first file. */
  metadata: GgufMetadata;
  /** Of all files by name. */
  tensors: ReadonlyMap<string, RawTensor>;
  /** The numbers of `rope_freqs.weight`: divisors of the full layers' frequencies; null where there are none. */
  ropeFactors: ArrayLike<number> | null;
}

/** A value that a divisor of a frequency may have where a pair is not turned at all. */
const UNTURNED = 1e30;

/** The `config.json` of the file. Throws `CheckpointError` that names the metadata key. */
export function ggufConfig(model: GgufModel): Record<string, unknown> {
  const { metadata } = model;
  const architecture = metadata.string("general.architecture");
  if (!GGUF_ARCHITECTURES.includes(architecture)) {
    throw new CheckpointError(
      "unknown_model_type",
      `${metadata.file}: the architecture "${architecture}" is not supported. ` +
        `Supported: ${GGUF_ARCHITECTURES.join(", ")}.`,
    );
  }
  const reader = new Reader(model, architecture);
  return architecture === "gemma3" ? gemma3(reader) : gemma4(reader);
}

/** What the file says of sampling, in the words of `generation_config.json`. */
export function ggufSuggestions(metadata: GgufMetadata): Record<string, unknown> {
  const named: Record<string, unknown> = {};
  if (metadata.has(SUPPRESSED)) named.suppress_tokens = metadata.get(SUPPRESSED);
  for (const [key, name] of Object.entries(SUGGESTIONS)) {
    if (metadata.has(`general.sampling.${key}`)) named[name] = metadata.number(`general.sampling.${key}`);
  }
  return named;
}

function gemma3(reader: Reader): Record<string, unknown> {
  const layers = reader.integer("block_count");
  const headDim = reader.headDim();
  const heads = reader.integer("attention.head_count");
  const scaling = reader.linearScaling();
  return {
    ...common(reader),
    model_type: "gemma3_text",
    num_key_value_heads: reader.integer("attention.head_count_kv"),
    head_dim: headDim,
    intermediate_size: reader.integer("feed_forward_length"),
    layer_types: reader.kinds(layers, true),
    query_pre_attn_scalar: reader.queryScalar(layers, heads, headDim),
    rope_theta: reader.number("rope.freq_base", 1_000_000),
    rope_local_base_freq: reader.number("rope.freq_base_swa", 10_000),
    rope_scaling: scaling === 1 ? null : { rope_type: "linear", factor: scaling },
  };
}

function gemma4(reader: Reader): Record<string, unknown> {
  const layers = reader.integer("block_count");
  const kinds = reader.kinds(layers, false);
  const headDim = reader.headDim(), slidingHeadDim = reader.headDim("_swa", headDim);
  const kvHeads = reader.perLayer("attention.head_count_kv", layers);
  const shared = reader.integer("attention.shared_kv_layers", 0);
  const perLayer: Record<string, unknown> = {};
  kinds.forEach((kind, i) => {
    perLayer[i] = {
      head_dim: kind === "full_attention" ? headDim : slidingHeadDim,
      num_key_value_heads: kvHeads[i],
    };
  });
  if (reader.linearScaling() !== 1) {
    throw reader.wrong("rope.scaling.factor", "1 or absent in this architecture");
  }
  return {
    ...common(reader),
    model_type: "gemma4_text",
    layer_types: kinds,
    head_dim: slidingHeadDim,
    num_key_value_heads: kvHeads[0],
    per_layer_config: perLayer,
    attention_k_eq_v: reader.keysAreValues(kinds, layers - shared),
    num_kv_shared_layers: shared,
    ...mlpWidths(reader, layers, shared),
    rope_parameters: {
      full_attention: {
        rope_type: "proportional",
        rope_theta: reader.number("rope.freq_base", 1_000_000),
        partial_rotary_factor: reader.rotatedShare(headDim),
      },
      sliding_attention: { rope_type: "default", rope_theta: reader.number("rope.freq_base_swa", 10_000) },
    },
    hidden_size_per_layer_input: reader.integer("embedding_length_per_layer_input", 0) || null,
    vocab_size_per_layer_input: reader.rows("per_layer_token_embd.weight"),
    ...experts(reader),
  };
}

/** What both families have. */
function common(reader: Reader): Record<string, unknown> {
  const { metadata } = reader.model;
  const token = (name: string) => {
    const key = `tokenizer.ggml.${name}_token_id`;
    return metadata.has(key) ? metadata.integer(key) : null;
  };
  const ends = ["eos", "eot", "eom"].map(token).filter((id) => id !== null);
  return {
    vocab_size: reader.rows("token_embd.weight"),
    hidden_size: reader.integer("embedding_length"),
    num_hidden_layers: reader.integer("block_count"),
    num_attention_heads: reader.integer("attention.head_count"),
    sliding_window: reader.integer("attention.sliding_window"),
    rms_norm_eps: reader.number("attention.layer_norm_rms_epsilon"),
    final_logit_softcapping: reader.number("final_logit_softcapping", 0),
    max_position_embeddings: reader.integer("context_length"),
    tie_word_embeddings: !reader.model.tensors.has("output.weight"),
    use_bidirectional_attention: null,
    bos_token_id: metadata.boolean("tokenizer.ggml.add_bos_token", true) ? token("bos") ?? 2 : null,
    eos_token_id: ends.length === 0 ? null : ends,
    pad_token_id: token("padding"),
  };
}

/** One width, or twice as much in the layers that share keys and values. */
function mlpWidths(reader: Reader, layers: number, shared: number): Record<string, unknown> {
  const widths = reader.perLayer("feed_forward_length", layers);
  const own = widths[0], wide = shared > 0 && widths[layers - 1] === 2 * own;
  if (widths.some((width, i) => width !== (wide && i >= layers - shared ? 2 * own : own))) {
    throw reader.wrong(
      "feed_forward_length",
      "one width, or twice as much in the layers that share keys and values",
    );
  }
  return { intermediate_size: own, use_double_wide_mlp: wide };
}

function experts(reader: Reader): Record<string, unknown> {
  const count = reader.integer("expert_count", 0);
  if (count === 0) return { enable_moe_block: false };
  return {
    enable_moe_block: true,
    num_experts: count,
    top_k_experts: reader.integer("expert_used_count"),
    moe_intermediate_size: reader.integer("expert_feed_forward_length"),
  };
}

/** Metadata under the prefix of its architecture. */
class Reader {
  readonly #prefix: string;

  constructor(readonly model: GgufModel, architecture: string) {
    this.#prefix = `${architecture}.`;
  }

  wrong(key: string, rule: string): CheckpointError {
    return this.model.metadata.wrong(this.#prefix + key, rule);
  }

  integer(key: string, or?: number): number {
    return this.model.metadata.integer(this.#prefix + key, or);
  }

  number(key: string, or?: number): number {
    return this.model.metadata.number(this.#prefix + key, or);
  }

  /** A value for each layer, given once or as a list. */
  perLayer(key: string, layers: number): number[] {
    const value = this.model.metadata.get(this.#prefix + key);
    if (Array.isArray(value)) {
      if (value.length === layers && value.every((entry) => typeof entry === "number")) {
        return value as number[];
      }
      throw this.wrong(key, `a number, or a list of one for each of the ${layers} layers`);
    }
    return Array<number>(Math.min(layers, 1024)).fill(this.integer(key)); // the config refuses more layers
  }

  /** Rows of a matrix, or null where the file has none. */
  rows(name: string): number | null {
    return this.model.tensors.get(name)?.shape[0] ?? null;
  }

  /** Lanes of a head; `suffix` picks the sliding layers' value. Heads of keys and values must agree, and turn as a whole. */
  headDim(suffix: "" | "_swa" = "", or?: number): number {
    const size = this.integer(`attention.key_length${suffix}`, or);
    if (this.integer(`attention.value_length${suffix}`, size) !== size) {
      throw this.wrong(`attention.value_length${suffix}`, `${size} as key_length${suffix}`);
    }
    if (this.integer(`rope.dimension_count${suffix}`, size) !== size) {
      throw this.wrong(`rope.dimension_count${suffix}`, `${size} as key_length${suffix}`);
    }
    return size;
  }

  /** Kind of each layer: a list, or a period whose last layer is full (six unless given). */
  kinds(layers: number, periodic: boolean): string[] {
    const key = "attention.sliding_window_pattern";
    const value = this.model.metadata.get(this.#prefix + key);
    if (Array.isArray(value)) {
      if (value.length !== layers || value.some((entry) => typeof entry !== "boolean")) {
        throw this.wrong(key, `a list of ${layers} booleans`);
      }
      return value.map((sliding) => sliding ? "sliding_attention" : "full_attention");
    }
    if (!periodic) throw this.wrong(key, `a list of ${layers} booleans`);
    const period = this.integer(key, 6);
    if (period === 0) throw this.wrong(key, "a list of booleans or a period from 1");
    return Array.from(
      { length: Math.min(layers, 1024) },
      (_, i) => (i + 1) % period === 0 ? "full_attention" : "sliding_attention",
    );
  }

  /** The linear factor of positions in full layers; 1 without scaling. */
  linearScaling(): number {
    const key = "rope.scaling.type";
    const type = this.model.metadata.string(this.#prefix + key, "none");
    if (type === "none") return 1;
    if (type === "linear") return this.number("rope.scaling.factor");
    throw this.wrong(key, '"none" or "linear"');
  }

  /**
   * The square of the divisor of attention scores. Files that do not give the factor follow the family: the head size,
   * and in its largest model, known by its 62 layers, the width of the stream over the number of heads.
   */
  queryScalar(layers: number, heads: number, headDim: number): number {
    const key = "attention.scale";
    if (this.model.metadata.has(this.#prefix + key)) {
      const scale = this.number(key);
      if (scale <= 0) throw this.wrong(key, "above 0");
      return scale ** -2;
    }
    return layers === 62 ? this.integer("embedding_length") / heads : headDim;
  }

  /** Whether the full layers that own keys have no values of their own: all of them or none. */
  keysAreValues(kinds: readonly string[], owners: number): boolean {
    const full = kinds.flatMap((kind, i) => kind === "full_attention" && i < owners ? [i] : []);
    const without = full.filter((i) => !this.model.tensors.has(`blk.${i}.attn_v.weight`));
    if (without.length === 0 || without.length === full.length) return full.length > 0 && without.length > 0;
    throw new CheckpointError(
      "missing_tensor",
      `${this.model.metadata.file}: tensor "blk.${
        without[0]
      }.attn_v.weight" is missing, but other full layers ` +
        `have theirs. Convert the model again.`,
    );
  }

  /** Pairs that full layers turn over all pairs of a head: those whose frequency is not divided. */
  rotatedShare(headDim: number): number {
    const { ropeFactors, metadata } = this.model;
    const pairs = headDim / 2;
    const wrong = (problem: string) =>
      new CheckpointError(
        "invalid_config",
        `${metadata.file}: tensor "rope_freqs.weight" ${problem}. Convert the model again.`,
      );
    if (ropeFactors === null) throw wrong("is missing; it tells which pairs of the full layers' heads turn");
    if (ropeFactors.length !== pairs) throw wrong(`has ${ropeFactors.length} numbers instead of ${pairs}`);
    let turned = 0;
    while (turned < pairs && ropeFactors[turned] === 1) turned++;
    for (let i = turned; i < pairs; i++) {
      if (ropeFactors[i] < UNTURNED * 0.99) {
        throw wrong(`has ${ropeFactors[i]} at ${i}; it must be 1, then 1e30`);
      }
    }
    // Such that the floor of share · pairs is `turned` again.
    return Math.floor(turned / pairs * pairs) === turned ? turned / pairs : (turned + 0.5) / pairs;
  }
}
