/** The ops of vision and audio towers. An index that points outside contributes nothing. */
import type { LocalAttentionOp, PatchAttentionOp, SubsampleOp } from "../../schedule/tower_ops.ts";
import { rmsNorm } from "./norm.ts";

/** y = x + the table's rows of both positions. x, y [r, n]; positions [r, 2]; `row(i)` gives a row of the table. */
export function addPositions(
  x: Float64Array,
  n: number,
  row: (index: number) => Float64Array,
  positions: Float64Array,
  { count, step, second }: { count: number; step: number; second: number },
): Float64Array {
  return x.map((value, i) => {
    const at = 2 * Math.floor(i / n);
    const part = (position: number, start: number) =>
      position < count ? row(position * step + start)[i % n] : 0;
    return value + part(positions[at], 0) + part(positions[at + 1], second);
  });
}

/** Rotates each half of each head by one axis: pairs (i, i + d/4) of a half by position · theta^(-4i/d). x [r, heads·d]. */
function rotateAxes(x: Float64Array, heads: number, d: number, theta: number, positions: Float64Array) {
  const y = new Float64Array(x.length);
  const pairs = d / 4;
  for (let start = 0; start < x.length; start += pairs * 2) {
    const row = Math.floor(start / (heads * d));
    const axis = start / (pairs * 2) % 2;
    for (let i = 0; i < pairs; i++) {
      const angle = positions[2 * row + axis] * theta ** (-2 * i / (d / 2));
      const [a, b] = [x[start + i], x[start + pairs + i]];
      y[start + i] = a * Math.cos(angle) - b * Math.sin(angle);
      y[start + pairs + i] = b * Math.cos(angle) + a * Math.sin(angle);
    }
  }
  return y;
}

/** softmax of scores of any length; empty where there are none. */
function softmax(scores: number[]): number[] {
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

/** Head norms, two-axis rotation and attention of every row to every row. q [r, heads·d], k and v [r, kvHeads·d]. */
export function patchAttention(
  rawQ: Float64Array,
  rawK: Float64Array,
  rawV: Float64Array,
  qNorm: Float64Array,
  kNorm: Float64Array,
  positions: Float64Array,
  op: PatchAttentionOp,
): Float64Array {
  const { heads, kvHeads, headDim: d, theta, eps, scoreScale } = op;
  const q = rotateAxes(rmsNorm(rawQ, qNorm, d, eps), heads, d, theta, positions);
  const k = rotateAxes(rmsNorm(rawK, kNorm, d, eps), kvHeads, d, theta, positions);
  const v = rmsNorm(rawV, undefined, d, eps);
  const rows = q.length / (heads * d);
  const y = new Float64Array(q.length);
  for (let r = 0; r < rows; r++) {
    for (let head = 0; head < heads; head++) {
      const at = (r * heads + head) * d;
      const keyAt = (key: number) => (key * kvHeads + Math.floor(head / (heads / kvHeads))) * d;
      const scores = Array.from({ length: rows }, (_, key) => {
        let dot = 0;
        for (let i = 0; i < d; i++) dot += q[at + i] * k[keyAt(key) + i];
        return dot * scoreScale;
      });
      softmax(scores).forEach((weight, key) => {
        for (let i = 0; i < d; i++) y[at + i] += weight * v[keyAt(key) + i];
      });
    }
  }
  return y;
}

/** y[i] = (factor · Σ_j x[members[i, j]] - bias) · scale. x [rows, n], members [out rows, m]. */
export function pool(
  x: Float64Array,
  n: number,
  members: Float64Array,
  m: number,
  factor: number,
  bias: Float64Array | undefined,
  scale: Float64Array | undefined,
): Float64Array {
  const y = new Float64Array(members.length / m * n);
  return y.map((_, i) => {
    let sum = 0;
    for (let j = 0; j < m; j++) {
      const row = members[Math.floor(i / n) * m + j];
      if (row * n < x.length) sum += x[row * n + i % n];
    }
    return (sum * factor - (bias?.[i % n] ?? 0)) * (scale?.[i % n] ?? 1);
  });
}

/** y = (x - mean) · (variance + eps)^-1/2 · weight + bias over each `group` numbers. */
export function layerNorm(
  x: Float64Array,
  group: number,
  weight: Float64Array,
  bias: Float64Array | undefined,
  eps: number,
): Float64Array {
  const y = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += group) {
    const values = x.subarray(start, start + group);
    const mean = values.reduce((a, b) => a + b, 0) / group;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / group;
    values.forEach((value, i) => {
      y[start + i] = (value - mean) / Math.sqrt(variance + eps) * weight[i] + (bias?.[i] ?? 0);
    });
  }
  return y;
}

/** Convolution, layer norm and ReLU. x [frames, bins · C], valid [frames] → [outFrames, bins / 2 · C']. */
export function subsample(
  x: Float64Array,
  valid: Float64Array,
  weight: Float64Array,
  norm: Float64Array,
  outFrames: number,
  { bins, channelsLast, eps }: Pick<SubsampleOp, "bins" | "channelsLast" | "eps">,
): Float64Array {
  const frames = valid.length;
  const C = x.length / frames / bins;
  const outputs = norm.length;
  const y = new Float64Array(outFrames * bins / 2 * outputs);
  for (let t = 0; t < outFrames; t++) {
    for (let f = 0; f < bins / 2; f++) {
      for (let c = 0; c < outputs; c++) {
        let sum = 0;
        for (let i = 0; i < 3; i++) {
          for (let j = 0; j < 3; j++) {
            const [time, bin] = [2 * t - 1 + i, 2 * f - 1 + j];
            if (time < 0 || time >= frames || bin < 0 || bin >= bins || valid[time] === 0) continue;
            for (let b = 0; b < C; b++) {
              const w = channelsLast ? (c * 9 + i * 3 + j) * C + b : (c * C + b) * 9 + i * 3 + j;
              sum += weight[w] * x[(time * bins + bin) * C + b];
            }
          }
        }
        y[(t * bins / 2 + f) * outputs + c] = sum;
      }
    }
  }
  return layerNorm(y, outputs, norm, undefined, eps).map((value) => Math.max(0, value));
}

/** Attention to rows around each row, with keys for distances. q, k, v [r, heads·d]; relative [heads·d, n]; valid [r]. */
export function localAttention(
  q: Float64Array,
  k: Float64Array,
  v: Float64Array,
  perDimScale: Float64Array,
  relative: Float64Array,
  valid: Float64Array,
  op: LocalAttentionOp,
): Float64Array {
  const { heads, headDim: d, left, right, shift, qScale, kScale, cap } = op;
  const width = heads * d;
  const n = relative.length / width;
  const rows = valid.length;
  const relativeKey = (distance: number) => {
    const position = distance + shift;
    const time = (i: number) => 10000 ** (-i / (n / 2 - 1));
    const table = Float64Array.from(
      { length: n },
      (_, i) => i < n / 2 ? Math.sin(position * time(i)) : Math.cos(position * time(i - n / 2)),
    );
    return Float64Array.from(
      { length: width },
      (_, row) => table.reduce((sum, value, i) => sum + value * relative[row * n + i], 0),
    );
  };
  const keys = new Map<number, Float64Array>();
  for (let distance = 1 - Math.max(right, 1); distance < left; distance++) {
    keys.set(distance, relativeKey(distance));
  }
  const y = new Float64Array(q.length);
  for (let a = 0; a < rows; a++) {
    const visible: number[] = [];
    for (let b = Math.max(0, a - left + 1); b < Math.min(rows, Math.max(a + 1, a + right)); b++) {
      if (valid[b] !== 0 && (b > a || a - b < left)) visible.push(b);
    }
    for (let head = 0; head < heads; head++) {
      const scores = visible.map((b) => {
        let dot = 0;
        for (let i = 0; i < d; i++) {
          const scaled = q[a * width + head * d + i] * qScale * Math.log1p(Math.exp(perDimScale[i]));
          dot += scaled * (k[b * width + head * d + i] * kScale + keys.get(a - b)![head * d + i]);
        }
        return cap * Math.tanh(dot / cap);
      });
      softmax(scores).forEach((weight, j) => {
        for (let i = 0; i < d; i++) {
          y[a * width + head * d + i] += weight * v[visible[j] * width + head * d + i];
        }
      });
    }
  }
  return y;
}

/** Gate, causal depthwise convolution, norm and SiLU. x [r, 2n], weight [n, k], norm [n] → [r, n]. */
export function lightConv(
  x: Float64Array,
  weight: Float64Array,
  norm: Float64Array,
  eps: number,
): Float64Array {
  const n = norm.length;
  const [rows, k] = [x.length / (2 * n), weight.length / n];
  const gated = (t: number, c: number) =>
    t < 0 ? 0 : x[t * 2 * n + c] / (1 + Math.exp(-x[t * 2 * n + n + c]));
  const y = new Float64Array(rows * n);
  for (let t = 0; t < rows; t++) {
    for (let c = 0; c < n; c++) {
      for (let j = 0; j < k; j++) y[t * n + c] += weight[c * k + j] * gated(t - (k - 1) + j, c);
    }
  }
  return rmsNorm(y, norm, n, eps).map((value) => value / (1 + Math.exp(-value)));
}
