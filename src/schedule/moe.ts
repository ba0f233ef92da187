/**
 * Routed experts beside the dense MLP of a layer. From the same h:
 * m = post_feedforward_norm_1(mlp(h)) + post_feedforward_norm_2(experts(pre_feedforward_norm_2(h), route(h))).
 */
import type { LayerContext } from "./text.ts";
import type { Dim, Tensor } from "./tensor.ts";

/**
 * Adds the ops of the experts, as coarse as devices can do; `h` [r, H] enters the MLP and `dense` [r, H] is the dense MLP's
 * product. Returns m, which is `dense` itself in a layer without experts.
 */
export function addExperts(context: LayerContext, h: Tensor, dense: Tensor): Tensor {
  const { builder, config, layer, weights: { experts }, tensor } = context;
  if (experts === null || layer.experts === null) return dense;
  const { hiddenSize: H, rmsNormEps: eps } = config;
  const { topK: K, width: I } = layer.experts;
  const { index } = layer;
  const rows = h.shape[0];
  const { chosen, shares } = choice(context, rows);
  builder.add({
    kind: "route",
    x: h,
    scale: tensor(experts.router.scale),
    projection: tensor(experts.router.projection),
    perExpertScale: tensor(experts.router.perExpertScale),
    experts: chosen,
    y: shares,
    eps,
    inScale: H ** -0.5,
    layer: index,
  });
  const { gateUp } = experts;
  const gated = builder.activation(`layers.${index}.experts`, [rows, K * I]);
  builder.add({
    kind: "expert_gate_up",
    x: h,
    preNorm: tensor(experts.preFeedforwardNorm2),
    experts: chosen,
    weights: gateUp.kind === "fused" ? [tensor(gateUp.weight)] : [tensor(gateUp.gate), tensor(gateUp.up)],
    y: gated,
    eps,
    layer: index,
  });
  const down = builder.activation(`layers.${index}.experts_down`, [rows, H]);
  builder.add({
    kind: "expert_down",
    x: gated,
    experts: chosen,
    shares,
    weight: tensor(experts.down),
    y: down,
    layer: index,
  });
  const y = builder.activation(`layers.${index}.mlp_experts`, [rows, H]);
  builder.add({
    kind: "add_norms",
    a: dense,
    aNorm: tensor(experts.postFeedforwardNorm1),
    b: down,
    bNorm: tensor(experts.postFeedforwardNorm2),
    y,
    eps,
    layer: index,
  });
  return y;
}

/** As `addExperts`, of the smallest ops. */
export function addElementaryExperts(context: LayerContext, h: Tensor, dense: Tensor): Tensor {
  const { builder, config, layer, weights: { experts }, tensor } = context;
  if (experts === null || layer.experts === null) return dense;
  const { hiddenSize: H, rmsNormEps: eps } = config;
  const { count: E, topK: K, width: I } = layer.experts;
  const { index } = layer;
  const rows = h.shape[0];
  const fresh = (name: string, width: number) => builder.activation(`layers.${index}.${name}`, [rows, width]);
  const norm = (name: string, x: Tensor, weight: Tensor): Tensor => {
    const y = fresh(name, H);
    builder.add({ kind: "rms_norm", x, weight, y, group: H, eps, inScale: 1, layer: index });
    return y;
  };
  const add = (name: string, a: Tensor, b: Tensor | undefined, aScale: number): Tensor => {
    const y = fresh(name, H);
    builder.add({ kind: "add", a, b, y, aScale, bScale: 1, layer: index });
    return y;
  };

  const normed = norm("router_norm", h, tensor(experts.router.scale));
  const logits = fresh("router", E);
  builder.add({
    kind: "linear",
    x: add("router_input", normed, undefined, H ** -0.5),
    weights: [tensor(experts.router.projection)],
    epilogue: { kind: "none" },
    y: logits,
    eps,
    layer: index,
  });
  const { chosen, shares } = choice(context, rows);
  const perExpertScale = tensor(experts.router.perExpertScale);
  builder.add({ kind: "top_k", logits, perExpertScale, experts: chosen, y: shares, layer: index });

  const product = (name: string, x: Tensor, weight: Tensor, firstRow: number, width: number): Tensor => {
    const y = fresh(name, K * width);
    builder.add({ kind: "expert_linear", x, experts: chosen, weight, firstRow, y, layer: index });
    return y;
  };
  const { gateUp } = experts;
  const [gateWeight, upWeight, firstUp] = gateUp.kind === "fused"
    ? [tensor(gateUp.weight), tensor(gateUp.weight), I]
    : [tensor(gateUp.gate), tensor(gateUp.up), 0];
  const u = norm("experts_norm", h, tensor(experts.preFeedforwardNorm2));
  const gate = product("experts_gate", u, gateWeight, 0, I);
  const up = product("experts_up", u, upWeight, firstUp, I);
  const gated = fresh("experts", K * I);
  builder.add({ kind: "gelu_mul", a: gate, b: up, column: 0, y: gated, layer: index });
  const down = product("experts_down", gated, tensor(experts.down), 0, H);
  const sum = fresh("experts_sum", H);
  builder.add({ kind: "expert_sum", x: down, shares, y: sum, layer: index });
  return add(
    "mlp_experts",
    norm("dense_norm", dense, tensor(experts.postFeedforwardNorm1)),
    norm("experts_sum_norm", sum, tensor(experts.postFeedforwardNorm2)),
    1,
  );
}

/** Where the choice of a layer goes. */
function choice({ builder, layer }: LayerContext, rows: Dim): { chosen: Tensor; shares: Tensor } {
  const K = layer.experts!.topK;
  return {
    chosen: builder.activation(`layers.${layer.index}.chosen`, [rows, K], { kind: "u32" }),
    shares: builder.activation(`layers.${layer.index}.shares`, [rows, K]),
  };
}
