/** Tensor names of GGUF files, brought to the module paths that `weights.ts` asks for, and back. */
import type { Naming } from "./names.ts";

const TOP: readonly [gguf: string, path: string][] = [
  ["token_embd.weight", "embed_tokens.weight"],
  ["output.weight", "lm_head.weight"],
  ["output_norm.weight", "norm.weight"],
  ["per_layer_token_embd.weight", "embed_tokens_per_layer.weight"],
  ["per_layer_model_proj.weight", "per_layer_model_projection.weight"],
  ["per_layer_proj_norm.weight", "per_layer_projection_norm.weight"],
  ["rope_freqs.weight", "rotary_emb.factors"], // has gone into the config
];

/** Within `blk.N.` and `layers.N.`. */
const IN_LAYER: readonly [gguf: string, path: string][] = [
  ["attn_norm.weight", "input_layernorm.weight"],
  ["attn_q.weight", "self_attn.q_proj.weight"],
  ["attn_k.weight", "self_attn.k_proj.weight"],
  ["attn_v.weight", "self_attn.v_proj.weight"],
  ["attn_q_norm.weight", "self_attn.q_norm.weight"],
  ["attn_k_norm.weight", "self_attn.k_norm.weight"],
  ["attn_output.weight", "self_attn.o_proj.weight"],
  ["post_attention_norm.weight", "post_attention_layernorm.weight"],
  ["ffn_norm.weight", "pre_feedforward_layernorm.weight"],
  ["ffn_gate.weight", "mlp.gate_proj.weight"],
  ["ffn_up.weight", "mlp.up_proj.weight"],
  ["ffn_down.weight", "mlp.down_proj.weight"],
  ["post_ffw_norm.weight", "post_feedforward_layernorm.weight"],
  ["layer_output_scale.weight", "layer_scalar"],
  ["inp_gate.weight", "per_layer_input_gate.weight"],
  ["proj.weight", "per_layer_projection.weight"],
  ["post_norm.weight", "post_per_layer_input_norm.weight"],
  ["ffn_gate_inp.weight", "router.proj.weight"],
  ["ffn_gate_inp.scale", "router.scale"],
  ["ffn_down_exps.scale", "router.per_expert_scale"],
  ["post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"],
  ["pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"],
  ["post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"],
  ["ffn_gate_up_exps.weight", "experts.gate_up_proj"],
  ["ffn_gate_exps.weight", "experts.switch_glu.gate_proj.weight"],
  ["ffn_up_exps.weight", "experts.switch_glu.up_proj.weight"],
];

// The down projection stands beside either spelling of gate and up; which one, the names of the file tell.
const DOWN = "ffn_down_exps.weight";
const DOWN_BESIDE_FUSED = "experts.down_proj", DOWN_BESIDE_SPLIT = "experts.switch_glu.down_proj.weight";

/** How the tensors of a GGUF file are named. `names` are those of all its tensors. */
export function ggufNaming(names: Iterable<string>): Naming {
  let split = false;
  for (const name of names) split ||= name.endsWith(".ffn_gate_exps.weight");
  const down: [string, string] = [DOWN, split ? DOWN_BESIDE_SPLIT : DOWN_BESIDE_FUSED];
  const inLayer = [...IN_LAYER, down];
  const paths = mapper(TOP, inLayer, "blk", "layers");
  const flip = ([a, b]: readonly [string, string]) => [b, a] as const;
  const ggufNames = mapper(TOP.map(flip), inLayer.map(flip), "layers", "blk");
  return { config: "its metadata", isMedia: () => false, pathOf: paths, nameOf: ggufNames };
}

function mapper(
  top: readonly (readonly [string, string])[],
  inLayer: readonly (readonly [string, string])[],
  from: string,
  to: string,
): (name: string) => string {
  const topMap = new Map(top), layerMap = new Map(inLayer);
  const pattern = new RegExp(`^${from}\\.(0|[1-9]\\d{0,5})\\.(.+)$`);
  return (name) => {
    const match = pattern.exec(name);
    if (match === null) return topMap.get(name) ?? name;
    const inner = layerMap.get(match[2]);
    return inner === undefined ? name : `${to}.${match[1]}.${inner}`;
  };
}
