/** One layer in as few ops as the devices have kernels for: five, seven with per-layer embeddings, four more with routed experts. */
import type { LayerContext, Stream } from "./text.ts";
import { addExperts } from "./moe.ts";
import type { LinearOp } from "./ops.ts";

/** Adds the layer's ops; returns the stream that the next layer completes. */
export function fusedLayer(context: LayerContext, stream: Stream): Stream {
  const { builder, config, layer, weights, tensor, maybe } = context;
  const { hiddenSize: H, perLayerInputSize: P, rmsNormEps: eps } = config;
  const { index, heads, kvHeads, headDim: d } = layer;
  const ownsKv = layer.kvOwner === index;
  const at = (name: string) => `layers.${index}.${name}`;
  const linear = (op: Omit<LinearOp, "kind" | "eps">) =>
    builder.add({ kind: "linear", ...op, eps, layer: index });

  // The first op of a layer completes the stream; without a residual the stream is complete already.
  const entered = stream.residual ? builder.activation(at("h"), [context.rows, H]) : stream.x;
  const projections = ownsKv ? [weights.q, weights.k, weights.v] : [weights.q];
  const biases = ownsKv ? [weights.biases.q, weights.biases.k, weights.biases.v] : [weights.biases.q];
  const queryWidth = heads * d;
  const keyWidth = ownsKv ? kvHeads * d : 0;
  const valueWidth = ownsKv && !layer.keysAreValues ? kvHeads * d : 0;
  const qkv = builder.activation(at("qkv"), [context.rows, queryWidth + keyWidth + valueWidth]);
  linear({
    ...stream,
    hOut: stream.residual ? entered : undefined,
    preNorm: tensor(weights.inputNorm),
    weights: projections.filter((weight) => weight !== null).map(tensor),
    biases: biases.map(maybe),
    epilogue: { kind: "none" },
    y: qkv,
  });
  context.entered(entered);

  const attention = builder.activation(at("attention"), [context.rows, queryWidth]);
  builder.add({
    kind: "attention",
    qkv,
    qNorm: tensor(weights.qNorm),
    kNorm: maybe(weights.kNorm),
    kv: context.kv,
    y: attention,
    heads,
    kvHeads,
    headDim: d,
    ownsKv,
    keysAreValues: ownsKv && layer.keysAreValues,
    normValues: config.valueNorm,
    window: layer.window,
    block: context.block,
    rope: {
      theta: layer.rope.theta,
      rotatedPairs: layer.rope.rotatedPairs,
      positionScale: 1 / layer.rope.factor,
      positionOffset: context.positionOffset,
    },
    eps,
    scoreScale: config.attentionScale,
    layer: index,
  });

  const { attended, residual, rows, perLayerInputs } = context.afterAttention(attention, entered);
  const output = builder.activation(at("o"), [rows, H]);
  linear({
    x: attended,
    weights: [tensor(weights.o)],
    biases: [maybe(weights.biases.o)],
    epilogue: { kind: "none" },
    y: output,
  });

  const middle = builder.activation(at("h_attention"), [rows, H]);
  const gated = builder.activation(at("mlp"), [rows, layer.mlpWidth]);
  linear({
    x: output,
    residual,
    postNorm: tensor(weights.postAttentionNorm),
    hOut: middle,
    preNorm: tensor(weights.preFeedforwardNorm),
    weights: [tensor(weights.gate), tensor(weights.up)],
    biases: [maybe(weights.biases.gate), maybe(weights.biases.up)],
    epilogue: { kind: "geglu" },
    y: gated,
  });

  const down = builder.activation(at("down"), [rows, H]);
  linear({
    x: gated,
    weights: [tensor(weights.down)],
    biases: [maybe(weights.biases.down)],
    epilogue: { kind: "none" },
    y: down,
  });

  const mlp = addExperts(context, middle, down);
  const scalar = maybe(weights.layerScalar);
  const postNorm = tensor(weights.postFeedforwardNorm);
  if (!perLayerInputs || !weights.perLayerInputGate || !weights.perLayerProjection) {
    return { x: mlp, residual: middle, postNorm, scalar };
  }
  const afterMlp = builder.activation(at("h_mlp"), [rows, H]);
  const gate = builder.activation(at("per_layer_gate"), [rows, P]);
  linear({
    x: mlp,
    residual: middle,
    postNorm,
    hOut: afterMlp,
    weights: [tensor(weights.perLayerInputGate)],
    epilogue: { kind: "gelu_mul", other: perLayerInputs, column: index * P },
    y: gate,
  });
  const projected = builder.activation(at("per_layer"), [rows, H]);
  linear({
    x: gate,
    weights: [tensor(weights.perLayerProjection)],
    epilogue: { kind: "none" },
    y: projected,
  });
  return { x: projected, residual: afterMlp, postNorm: maybe(weights.postPerLayerInputNorm), scalar };
}
