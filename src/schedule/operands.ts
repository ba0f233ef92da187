/** The tensors of each op, in the operand order of `dylib/plan.h`. */
import type { Op } from "./ops.ts";
import type { Tensor } from "./tensor.ts";

/** Operand slots of an op; undefined where an optional operand is absent. */
export function operandsOf(op: Op): (Tensor | undefined)[] {
  switch (op.kind) {
    case "embed":
      return [op.table, op.y, op.soft];
    case "per_layer_inputs":
      return [op.projected, op.table, op.norm, op.y];
    case "linear": {
      const [w0, w1, w2] = op.weights;
      const [b0, b1, b2] = op.biases ?? [];
      const other = op.epilogue.kind === "gelu_mul" ? op.epilogue.other : undefined;
      return [
        op.x,
        op.residual,
        op.postNorm,
        op.scalar,
        op.hOut,
        op.preNorm,
        w0,
        w1,
        w2,
        b0,
        b1,
        b2,
        other,
        op.y,
      ];
    }
    case "attention":
      return [op.qkv, op.qNorm, op.kNorm, op.kv.pages, op.y];
    case "gather":
      return [op.x, op.y];
    case "candidates":
      return [op.logits, op.ids, op.values, op.stats];
    case "route":
      return [op.x, op.scale, op.projection, op.perExpertScale, op.experts, op.y];
    case "expert_gate_up":
      return [op.x, op.preNorm, op.experts, op.weights[0], op.weights[1], op.y];
    case "expert_down":
      return [op.x, op.experts, op.shares, op.weight, op.y];
    case "add_norms":
      return [op.a, op.aNorm, op.b, op.bNorm, op.y];
    case "draft_input":
      return [op.table, op.state, op.y];
    case "centroid_head":
      return [op.x, op.norm, op.scores, op.ordering, op.table, op.y];
    case "top_k":
      return [op.logits, op.perExpertScale, op.experts, op.y];
    case "expert_linear":
      return [op.x, op.experts, op.weight, op.y];
    case "expert_sum":
      return [op.x, op.shares, op.y];
    case "rms_norm":
      return [op.x, op.weight, op.y];
    case "add":
      return [op.a, op.b, op.scalar, op.y];
    case "gelu_mul":
      return [op.a, op.b, op.y];
    case "softcap":
      return [op.x, op.y];
    case "rope":
      return [op.x, op.y];
    case "kv_write":
      return [op.k, op.v, op.kv.pages];
    case "attend":
      return [op.q, op.kv.pages, op.y];
    case "add_positions":
      return [op.x, op.table, op.positions, op.y];
    case "patch_attention":
      return [op.q, op.k, op.v, op.qNorm, op.kNorm, op.positions, op.y];
    case "pool":
      return [op.x, op.members, op.bias, op.scale, op.y];
    case "subsample":
      return [op.x, op.valid, op.weight, op.norm, op.y];
    case "local_attention":
      return [op.q, op.k, op.v, op.perDimScale, op.relative, op.valid, op.y];
    case "light_conv":
      return [op.x, op.weight, op.norm, op.y];
    case "layer_norm":
      return [op.x, op.weight, op.bias, op.y];
  }
}
