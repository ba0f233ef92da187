// tile_walk.h: how simdgroups share the rows of matrices whose products tile_mma makes (matvec_tile.h), and what of them is on its way.
//
// A set is NT · 8 matrix rows; with geglu each eight of them are 4 rows of gate and the same 4 of up in turn. A threadgroup has sets that
// follow one another. Their spans, one set's after the other's, are dealt out evenly: each simdgroup takes a run of them, and nobody
// waits for another before all are done. Sums of a set that several have a part of are then added in order.
#ifndef MARKBASE_TILE_WALK_H
#define MARKBASE_TILE_WALK_H
#include "epilogue.h"
#include "tile_stream.h"

// Spans of a matrix row that are copied at once: a step.
constant constexpr uint kStepSpans = 4;

// Bytes of a step of a matrix row, and of one copy.
static constexpr uint step_bytes(uint32_t w, uint span) { return kStepSpans * span * bits_of(w) / 8; }
static constexpr uint copy_bytes(uint32_t w, uint span) { return span * bits_of(w) / 8 % 16 == 0 ? 16 : 8; }

static inline uint set_matrix(uint set, constant MatvecTileParams& p) {
  return set < p.sets0 ? 0 : set < p.sets01 ? 1 : 2;
}

// Row `lane_row` of each eight of a set, and its matrix; those beyond the end repeat the last.
template <uint NT>
struct SetRows {
  uint matrix;
  uint row[NT];
};

template <uint NT>
static inline void set_rows(uint set, uint lane_row, constant MatvecTileParams& p, thread SetRows<NT>& rows) {
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint first = set_matrix(set, p);
  rows.matrix = geglu ? lane_row % 2 : first;
  const uint each = geglu ? 4 : 8;
  const uint base = (set - of_matrix(first, 0, p.sets0, p.sets01)) * (each * NT) + (geglu ? lane_row / 2 : lane_row);
  const uint end = of_matrix(rows.matrix, p.n0, p.n1, p.n2) - 1;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NT; i++) {
    rows.row[i] = min(base + each * i, end);
  }
}

// A run of spans: those from `at` of set `set` on, over the sets that follow. Steps do not go beyond a set.
struct SpanRun {
  uint set;
  uint at;
  uint left;
};
static inline uint step_of(SpanRun run, constant MatvecTileParams& p) {
  return min(min(p.spans - run.at, run.left), kStepSpans);
}
static inline SpanRun behind_step(SpanRun run, constant MatvecTileParams& p) {
  const uint step = step_of(run, p);
  run.left -= step;
  run.at += step;
  if (run.at == p.spans) {
    run.at = 0;
    run.set++;
  }
  return run;
}

// The sets of a threadgroup, and where simdgroup `simdgroup` begins in their spans.
struct TileShare {
  uint set;
  uint sets;
};
static inline TileShare tile_share(uint tg, constant MatvecTileParams& p) {
  TileShare share;
  share.set = tg * p.each_sets + min(tg, p.more_sets);
  share.sets = p.each_sets + (tg < p.more_sets ? 1 : 0);
  return share;
}
// x / divisor, of which `inverse` is the inverse as near as a float is; x < 2^24. GPUs divide whole numbers in many instructions.
static inline uint divided(uint x, uint divisor, float inverse) {
  const uint near = uint(float(x) * inverse);
  return near * divisor > x ? near - 1 : (near + 1) * divisor <= x ? near + 1 : near;
}
static inline uint run_begin(uint simdgroup, TileShare share, constant MatvecTileParams& p) {
  return simdgroup * (share.sets * p.spans) / kTileSimdgroups;
}
static inline SpanRun tile_run(uint simdgroup, TileShare share, constant MatvecTileParams& p) {
  const uint begin = run_begin(simdgroup, share, p);
  SpanRun run;
  const uint set = divided(begin, p.spans, p.span_share);
  run.set = share.set + set;
  run.at = begin - set * p.spans;
  run.left = run_begin(simdgroup + 1, share, p) - begin;
  return run;
}

// Span d of a row of a step lies at place d ^ (row % 4) in the ring, so that the rows that are read at once lie in different banks.
static inline uint span_place(uint d, uint row) { return d ^ (row & 3); }

// Scales and biases as stored; converting them would wait for them.
template <uint NT>
struct TileScales {
  uint scale[NT];
  uint bias[NT];
};

// What a simdgroup has on its way: a step's codes, in one of two slots of NT · 8 rows in its ring, and its scales, of which each of
// a row's four lanes brings one span's.
template <uint NT>
struct TileWalk {
  SpanRun run;
  uint slot;
  SetRows<NT> rows;  // row lane / 4 of each eight
  TileScales<NT> scales;
};

// Asks for the step at walk.run.
template <uint32_t W, uint32_t S, uint span, uint NT>
static inline void ask_step(
    thread TileWalk<NT>& walk, bool new_set, uint lane, constant MatvecTileParams& p, threadgroup uchar* ring,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2)
{
  constexpr uint bytes = copy_bytes(W, span);
  constexpr uint span_bytes = span * bits_of(W) / 8;
  constexpr uint each = span_bytes / bytes;  // copies of a span
  if (new_set) {
    set_rows<NT>(walk.run.set, lane / 4, p, walk.rows);
  }
  const uint m = walk.rows.matrix;
  if (kCopiesAhead) {
    const uint row = lane / 4;
    const uint filled = step_of(walk.run, p) * each;
    device const uchar* w = of_matrix(m, w0, w1, w2) + (walk.run.at * span_bytes + lane % 4 * bytes);
    threadgroup uchar* to = ring + (walk.slot * NT * 8 + row) * step_bytes(W, span);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NT; i++) {
      device const uchar* from = w + ulong(walk.rows.row[i]) * p.row_bytes;
      #pragma clang loop unroll(full)
      for (uint j = 0; j < each; j++) {
        const uint copy = 4 * j + lane % 4;
        if (copy < filled) {
          async_copy<bytes>(
              to + (i * 8 * step_bytes(W, span) + span_place(copy / each, row) * span_bytes + copy % each * bytes),
              from + 4 * j * bytes);
        }
      }
    }
    end_async_copies();
  }
  const uint at = min(walk.run.at + lane % 4, p.spans - 1) >> p.scale_shift;
  device const uchar* scales = of_matrix(m, scales0, scales1, scales2);
  device const uchar* biases = of_matrix(m, biases0, biases1, biases2);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NT; i++) {
    const ulong first = ulong(walk.rows.row[i]) * p.scale_columns;
    walk.scales.scale[i] = load_scale<S>(scales + first * scale_bytes(S), at);
    walk.scales.bias[i] = load_bias<W, S>(biases + bias_offset<W, S>(first), at);
  }
}

// Row lane / 4 of each eight of the step at walk.run.
template <uint32_t W, uint span, uint NT>
static inline void step_rows(
    thread const TileWalk<NT>& walk, uint lane, constant MatvecTileParams& p, threadgroup const uchar* ring,
    device const uchar* w0, device const uchar* w1, device const uchar* w2, thread StepRow* to)
{
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NT; i++) {
#ifdef MSL_TARGET_PTX
    to[i] = ring + ((walk.slot * NT + i) * 8 + lane / 4) * step_bytes(W, span);
#else
    to[i] = of_matrix(walk.rows.matrix, w0, w1, w2) + ulong(walk.rows.row[i]) * p.row_bytes +
            walk.run.at * (span * bits_of(W) / 8);
#endif
  }
}

// Scale and bias in one word, where they are of 16 bits, for the lanes to hand on.
template <uint32_t S, uint NT>
static inline void join_scales(thread TileScales<NT>& scales) {
  if (S == kF16 || S == kBF16) {
    #pragma clang loop unroll(full)
    for (uint r = 0; r < NT; r++) {
      scales.scale[r] |= scales.bias[r] << 16;
    }
  }
}

// Scale and bias of row `row` of eight i in span d of the four.
template <uint32_t W, uint32_t S, uint NT>
static inline float2 scale_in_span(thread const TileScales<NT>& scales, uint i, uint row, uint d) {
  const ushort from = ushort(row * 4 + d);
  const uint scale = simd_shuffle(scales.scale[i], from);
  if (S == kF16 || S == kBF16) {
    return float2(scale_of<W, S>(scale & 0xffffu, 0), bias_of<W, S>(0, scale >> 16));
  }
  const uint bias = simd_shuffle(scales.bias[i], from);
  return float2(scale_of<W, S>(scale, bias), bias_of<W, S>(scale, bias));
}

#endif
