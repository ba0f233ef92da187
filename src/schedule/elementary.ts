/** One layer made of the smallest ops, readable line by line beside the formulas; tests compare the fused one with it. */
import type { WeightTensor } from "../checkpoint/tensor.ts";
import { addElementaryExperts } from "./moe.ts";
import type { LayerContext, Stream } from "./text.ts";
import type { Dim, Tensor } from "./tensor.ts";

/** Adds the layer's ops. The stream that goes in and out is complete: it has no residual. */
export function elementaryLayer(context: LayerContext, stream: Stream): Stream {
  const { builder, config, layer, weights, tensor, maybe } = context;
  const { hiddenSize: H, perLayerInputSize: P, rmsNormEps: eps } = config;
  const { index, heads, kvHeads, headDim: d, mlpWidth: W, rope: turn } = layer;
  const ownsKv = layer.kvOwner === index;
  const rope = {
    theta: turn.theta,
    rotatedPairs: turn.rotatedPairs,
    positionScale: 1 / turn.factor,
    positionOffset: context.positionOffset,
  };
  let rows: Dim = context.rows;

  const fresh = (name: string, width: number) => builder.activation(`layers.${index}.${name}`, [rows, width]);
  const product = (
    name: string,
    width: number,
    x: Tensor,
    weight: WeightTensor,
    bias?: WeightTensor,
  ): Tensor => {
    const y = fresh(name, width);
    builder.add({
      kind: "linear",
      x,
      weights: [tensor(weight)],
      biases: [maybe(bias)],
      epilogue: { kind: "none" },
      y,
      eps,
      layer: index,
    });
    return y;
  };
  const norm = (name: string, x: Tensor, weight: WeightTensor | null, group: number): Tensor => {
    const y = fresh(name, x.shape[1] as number);
    builder.add({ kind: "rms_norm", x, weight: maybe(weight), y, group, eps, inScale: 1, layer: index });
    return y;
  };
  const turned = (name: string, x: Tensor, count: number): Tensor => {
    const y = fresh(name, count * d);
    builder.add({ kind: "rope", x, y, heads: count, headDim: d, rope, layer: index });
    return y;
  };
  const sum = (name: string, a: Tensor, b?: Tensor, scalar?: Tensor): Tensor => {
    const y = fresh(name, H);
    builder.add({ kind: "add", a, b, scalar, y, aScale: 1, bScale: 1, layer: index });
    return y;
  };
  const gelu = (name: string, width: number, a: Tensor, b: Tensor, column: number): Tensor => {
    const y = fresh(name, width);
    builder.add({ kind: "gelu_mul", a, b, column, y, layer: index });
    return y;
  };

  // h = h + post_attention_norm(o · attention(input_norm(h)))
  const entered = stream.x;
  context.entered(entered);
  const u = norm("input_norm", entered, weights.inputNorm, H);
  const rawQ = product("q", heads * d, u, weights.q, weights.biases.q);
  const q = turned("q_turned", norm("q_norm", rawQ, weights.qNorm, d), heads);
  if (ownsKv) {
    const rawK = product("k", kvHeads * d, u, weights.k!, weights.biases.k);
    const rawV = layer.keysAreValues ? rawK : product("v", kvHeads * d, u, weights.v!, weights.biases.v);
    const k = turned("k_turned", norm("k_norm", rawK, weights.kNorm, d), kvHeads);
    const v = config.valueNorm ? norm("v_norm", rawV, null, d) : rawV;
    builder.add({ kind: "kv_write", k, v, kv: context.kv, kvHeads, headDim: d, layer: index });
  }
  const attention = fresh("attention", heads * d);
  builder.add({
    kind: "attend",
    q,
    kv: context.kv,
    y: attention,
    heads,
    kvHeads,
    headDim: d,
    window: layer.window,
    block: context.block,
    scoreScale: config.attentionScale,
    layer: index,
  });
  const next = context.afterAttention(attention, entered);
  rows = next.rows;
  const output = product("o", H, next.attended, weights.o, weights.biases.o);
  let h = sum("h_attention", next.residual, norm("o_norm", output, weights.postAttentionNorm, H));

  // h = h + post_feedforward_norm(down · (gelu(gate · n) * up · n)), n = pre_feedforward_norm(h)
  const n = norm("mlp_norm", h, weights.preFeedforwardNorm, H);
  const gate = product("gate", W, n, weights.gate, weights.biases.gate);
  const up = product("up", W, n, weights.up, weights.biases.up);
  const down = product("down", H, gelu("mlp", W, gate, up, 0), weights.down, weights.biases.down);
  const mlp = addElementaryExperts(context, h, down);
  h = sum("h_mlp", h, norm("down_norm", mlp, weights.postFeedforwardNorm, H));

  // h = h + post_per_layer_input_norm(projection · (gelu(gate · h) * per_layer_inputs[layer]))
  if (next.perLayerInputs && weights.perLayerInputGate && weights.perLayerProjection) {
    const gated = gelu(
      "per_layer_gelu",
      P,
      product("per_layer_gate", P, h, weights.perLayerInputGate),
      next.perLayerInputs,
      index * P,
    );
    const projected = product("per_layer", H, gated, weights.perLayerProjection);
    h = sum("h_per_layer", h, norm("per_layer_norm", projected, weights.postPerLayerInputNorm, H));
  }
  const scalar = maybe(weights.layerScalar);
  return { x: scalar ? sum("h", h, undefined, scalar) : h };
}
