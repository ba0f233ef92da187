// matvec_tile.h: the matrix products of decode rows on matrix units. Sixteen matrix rows by eight activation rows make a tile; the
// codes of a span are multiplied as whole numbers, with the high and low halves of u apart, and their sums then take scale
// and bias in f32. Nothing in a row's arithmetic depends on how many rows there are or on its place in the tile.
//
// `slices` simdgroups share a tile, each of which takes spans that follow one another; their sums are added in order. With geglu
// a tile is 8 rows of gate and the same 8 of up.
#ifndef MARKBASE_MATVEC_TILE_H
#define MARKBASE_MATVEC_TILE_H
#include "epilogue.h"
#include "tile_stream.h"

// A lane has matrix rows lane / 4 and 8 more of a tile; those beyond the end repeat the last. w is the lane's
// quarter of the first span of the simdgroup's slice, or the row's beginning (tile_codes.h).
struct TileRows {
  device const uchar* w[2];
  device const uchar* scales[2];
  device const uchar* biases[2];
};

// Spans that are on their way, as many as registers allow beside the sums of C · 8 rows; at most four.
static constexpr uint tile_depth(uint32_t w, uint span, uint C) { return (span_words(w, span) > 2 ? 3 : 4) - (C > 1 ? 1 : 0); }

static inline uint tile_matrix(uint tile, constant MatvecTileParams& p) {
  return tile < p.tiles0 ? 0 : tile < p.tiles01 ? 1 : 2;
}

template <uint32_t W, uint32_t S, uint span>
static inline TileRows tile_rows(
    uint tile, uint first_span, uint lane, constant MatvecTileParams& p,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2)
{
  TileRows rows;
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint first = tile_matrix(tile, p);
  const uint base = (tile - of_matrix(first, 0, p.tiles0, p.tiles01)) * (geglu ? 8 : 16) + lane / 4;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2; i++) {
    const uint m = geglu ? i : first;
    const uint row = min(geglu ? base : base + 8 * i, of_matrix(m, p.n0, p.n1, p.n2) - 1);
    const ulong scale = ulong(row) * p.scale_columns;
    rows.w[i] = of_matrix(m, w0, w1, w2) + ulong(row) * p.row_bytes + (first_span * 4 + lane % 4) * quarter_bytes(W, span);
    rows.scales[i] = of_matrix(m, scales0, scales1, scales2) + scale * scale_bytes(S);
    rows.biases[i] = of_matrix(m, biases0, biases1, biases2) + bias_offset<W, S>(scale);
  }
  return rows;
}

// The lane's quarters of span `at` of the slice that begins with span `first`, of both rows.
template <uint32_t W, uint span>
static inline void load_tile_words(thread const TileRows& rows, uint first, uint at, uint lane, thread uint* words) {
  const uint quarter = quarter_bytes(W, span) != 0 ? at * 4 : (first + at) * 4 + lane % 4;
  load_quarter<W, span>(rows.w[0], quarter, words);
  load_quarter<W, span>(rows.w[1], quarter, words + span_words(W, span));
}

// Scales and biases as stored, of both rows; converting them would wait for them.
struct TileScales {
  uint scale[2];
  uint bias[2];
};

// Those of span `at` + lane % 4 of the row: each of a row's four lanes brings one span's.
template <uint32_t W, uint32_t S>
static inline void load_tile_scales(
    thread const TileRows& rows, uint at, uint lane, constant MatvecTileParams& p, thread TileScales& to)
{
  const uint i = min(at + lane % 4, p.spans - 1) >> p.scale_shift;
  #pragma clang loop unroll(full)
  for (uint r = 0; r < 2; r++) {
    to.scale[r] = load_scale<S>(rows.scales[r], i);
    to.bias[r] = load_bias<W, S>(rows.biases[r], i);
  }
}

// Scale and bias in one word, where they are of 16 bits, for the lanes to hand on.
template <uint32_t S>
static inline void join_scales(thread TileScales& scales) {
  if (S == kF16 || S == kBF16) {
    scales.scale[0] |= scales.bias[0] << 16;
    scales.scale[1] |= scales.bias[1] << 16;
  }
}

// Scale and bias of row r in span d of the four.
template <uint32_t W, uint32_t S>
static inline float2 scale_in_span(thread const TileScales& scales, uint r, uint d, uint lane) {
  const ushort from = ushort((lane & 28) + d);
  const uint scale = simd_shuffle(scales.scale[r], from);
  if (S == kF16 || S == kBF16) {
    return float2(scale_of<W, S>(scale & 0xffffu, 0), bias_of<W, S>(0, scale >> 16));
  }
  const uint bias = simd_shuffle(scales.bias[r], from);
  return float2(scale_of<W, S>(scale, bias), bias_of<W, S>(scale, bias));
}

// acc[4 c + 2 i + j] += the product of matrix row lane / 4 + 8 i with activation row 8 c + 2 (lane % 4) + j over span d of the present; c < C. u[c]
// is the lane's quarter of the first of these in activation row 8 c + lane / 4, at factors[c] are those of the sums that it has; R
// rows are staged together. `held` is what the lane read last, which stays where there is no such row. `scratch` holds
// kTileScratch floats, the simdgroup's own.
template <uint32_t W, uint32_t S, uint span, uint C, uint R, typename U, typename Factors>
static inline void multiply_span(
    const thread uint* words, thread const TileScales& scales, uint d, const thread U* u, const thread Factors* factors,
    bool has_row, thread uint4* held, threadgroup float* scratch, uint lane, thread float* acc)
{
  constexpr uint n = span_words(W, span);
  constexpr uint fours = span / 32;  // of pairs in a lane's quarter
  simdgroup_matrix<float, 8, 8> high[2 * C];
  simdgroup_matrix<float, 8, 8> low[2 * C];
  float2 factor[2 * C];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2 * C; i++) {
    high[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    low[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    factor[i] = factors[i / 2][R == 1 ? d : d * R + i % 2];
  }
  if (R < 8 && has_row) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 2 * fours; i++) {
      held[i] = u[0][(d * 2 * fours + i) * 4 * R];
    }
  }
  #pragma clang loop unroll(full)
  for (uint f = 0; f < fours; f++) {
    simdgroup_matrix<half, 8, 8> a[8];
    #pragma clang loop unroll(full)
    for (uint h = 0; h < 2; h++) {
      uint pairs[4];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < 4; i++) {
        pairs[i] = pair_halves<W>(words + i % 2 * n, 4 * f + 2 * h + i / 2);
      }
      tiles_of_lanes<4>(pairs, false, scratch, lane, a + 4 * h);
    }
    #pragma clang loop unroll(full)
    for (uint c = 0; c < C; c++) {
      #pragma clang loop unroll(full)
      for (uint part = 0; part < 2; part++) {
        const uint at = part * fours + f;
        uint4 v = held[at];
        if (R == 8) {
          v = u[c][(d * 2 * fours + at) * 4 * R];
        }
        const uint pairs[4] = {v.x, v.y, v.z, v.w};
        simdgroup_matrix<half, 8, 8> b[4];
        tiles_of_lanes<4>(pairs, true, scratch, lane, b);
        thread simdgroup_matrix<float, 8, 8>* sums = part == 0 ? high + 2 * c : low + 2 * c;
        tile_mma_pair(sums, a, b);
        tile_mma_pair(sums, a + 4, b + 2);
      }
    }
  }
  const float2 first = scale_in_span<W, S>(scales, 0, d, lane);
  const float2 second = scale_in_span<W, S>(scales, 1, d, lane);
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    float2 of_high[2];
    float2 of_low[2];
    lanes_of_tiles<2>(high + 2 * c, scratch, lane, of_high);
    lanes_of_tiles<2>(low + 2 * c, scratch, lane, of_low);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
      const float2 scale = i / 2 == 0 ? first : second;
      const float2 f = factor[2 * c + i % 2];
      const float sum = (of_high[i / 2][i % 2] + of_low[i / 2][i % 2]) * f.x;
      acc[4 * c + i] = fma(scale.y, f.y, fma(scale.x, sum, acc[4 * c + i]));
    }
  }
}

// Floats of a simdgroup's scratch memory: where matrices are filled and read through memory, and later a part of the sums of
// `columns` activation rows. Those of one row lie kTileSumStride apart, so that lanes write to different banks.
constant constexpr uint kTileSumStride = 20;
static constexpr uint tile_scratch(uint columns) {
  return columns * kTileSumStride > kTileScratch ? columns * kTileSumStride : kTileScratch;
}

// Adds the slices' sums of a tile and stores the outputs of activation rows first_row … first_row + columns - 1. All simdgroups of
// the threadgroup call this, with `active` false where no tile is left.
template <uint C>
static inline void finish_tile(
    const thread float* acc, uint tile, bool active, constant MatvecTileParams& p, threadgroup float* scratch, uint scratch_floats,
    uint simdgroup, uint same_lane, uint first_row, uint columns,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y)
{
  // Asked for anew: what is made of it here would else be kept in registers while spans are multiplied.
  const uint lane = simd_shuffle(same_lane, ushort(same_lane));
  threadgroup float* own = scratch + simdgroup * scratch_floats;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4 * C; i++) {
    const uint column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (column < columns) {
      own[column * kTileSumStride + lane / 4 + i % 4 / 2 * 8] = acc[i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (active) {
    const uint slice = simdgroup & (p.slices - 1);
    const bool geglu = p.epilogue.kind == kEpilogueGeglu;
    const uint first = tile_matrix(tile, p);
    const uint side = lane % 16 / 8;
    const uint matrix = geglu ? side : first;
    const uint n = geglu ? tile * 8 + lane % 8 : (tile - of_matrix(first, 0, p.tiles0, p.tiles01)) * 16 + lane % 16;
    const uint size = of_matrix(matrix, p.n0, p.n1, p.n2);
    const OutputPlace place = output_place(p.epilogue, bias0, bias1, bias2, matrix, min(n, size - 1));
    const bool mine = n < size && !(geglu && side == 1);
    threadgroup const float* sums = scratch + (simdgroup - slice) * scratch_floats + lane % 16;
    for (uint start = 2 * slice; start < columns; start += 2 * p.slices) {
      const uint column = start + lane / 16;
      const uint at = min(column, columns - 1) * kTileSumStride;
      float total = sums[at];
      for (uint s = 1; s < p.slices; s++) {
        total += sums[s * scratch_floats + at];
      }
      total += place.bias;
      const float up = simd_shuffle_xor(total, ushort(8));
      if (mine && column < columns) {
        store_output(total, up, p.epilogue, other, y, first_row + column, n, place.column);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

#define TILE_MATRICES w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2

// Where a simdgroup is: its tile, the spans of its slice, and what is on its way.
template <uint N, uint D>
struct TileWalk {
  uint tile;
  uint first;  // span of the slice
  uint count;  // of its spans
  TileRows rows;
  TileScales scales;
  uint words[2 * N * D];
};

// Asks for the first spans of a simdgroup's first tile.
template <uint32_t W, uint32_t S, uint span, uint D>
static inline void begin_tiles(
    uint tg, uint simdgroup, uint lane, constant MatvecTileParams& p,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2,
    thread TileWalk<span_words(W, span), D>& walk)
{
  walk.tile = (tg * kTileSimdgroups + simdgroup) >> p.slice_shift;
  walk.first = (simdgroup & (p.slices - 1)) * p.slice_spans;
  walk.count = min(walk.first + p.slice_spans, p.spans) - min(walk.first, p.spans);
  walk.rows = tile_rows<W, S, span>(min(walk.tile, p.tiles - 1), walk.first, lane, p, TILE_MATRICES);
  load_tile_scales<W, S>(walk.rows, walk.first, lane, p, walk.scales);
  #pragma clang loop unroll(full)
  for (uint d = 0; d < D; d++) {
    if (d < walk.count) {
      load_tile_words<W, span>(walk.rows, walk.first, d, lane, walk.words + d * 2 * span_words(W, span));
    }
  }
}

// All tiles of the threadgroup by `columns` activation rows from first_row on. u and factors: what is staged of them, 8 · C rows as C
// parts `part` floats of factors apart, or R < 8 rows.
template <uint32_t W, uint32_t S, uint span, uint C, uint R, uint D, typename U, typename Factors>
static inline void multiply_tiles(
    thread TileWalk<span_words(W, span), D>& walk, U u, Factors factors, uint first_row, uint columns,
    constant MatvecTileParams& p, threadgroup float* scratch, uint simdgroup, uint lane,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y)
{
  constexpr uint span_fours = span / 4 * R;
  const uint walked = (p.slice_spans + D - 1) / D * D;
  const bool has_row = lane / 4 < columns;
  uint4 held[span / 16];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < span / 16; i++) {
    held[i] = uint4(0u);
  }
  U lane_u[C];
  Factors lane_factors[C];
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    const uint part = c * p.spans + walk.first;
    lane_u[c] = u + part * span_fours + min(8 * c + lane / 4, columns - 1) % 8 * 4 + lane % 4;
    lane_factors[c] = factors + part * R + min(8 * c + lane % 4 * 2, (columns - 1) / 2 * 2) % 8;
  }
  for (uint it = 0; it < p.iterations; it++) {
    const uint tile = walk.tile;
    const bool active = tile < p.tiles;
    float acc[4 * C];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 4 * C; i++) {
      acc[i] = 0.0f;
    }
    walk.tile += p.tile_stride;
    for (uint at = 0; at < p.slice_spans; at += D) {
      // While one span is multiplied, the one D further takes its place; behind a tile's last comes the first of the next tile.
      const bool last = at + D >= p.slice_spans;
      const uint next = last ? 0 : at + D;
      const uint wanted = last && (it + 1 >= p.iterations || walk.tile >= p.tiles) ? 0 : walk.count;
      if (last && wanted != 0) {
        walk.rows = tile_rows<W, S, span>(walk.tile, walk.first, lane, p, TILE_MATRICES);
      }
      TileScales scales = walk.scales;
      join_scales<S>(scales);
      if (wanted != 0) {
        load_tile_scales<W, S>(walk.rows, walk.first + next, lane, p, walk.scales);
      }
      #pragma clang loop unroll(full)
      for (uint d = 0; d < D; d++) {
        thread uint* words = walk.words + d * 2 * span_words(W, span);
        if (at + d < walk.count) {
          multiply_span<W, S, span, C, R>(
              words, scales, d, lane_u, lane_factors, has_row, held, scratch + simdgroup * tile_scratch(R * C), lane, acc);
        }
        if (next + d < wanted) {
          load_tile_words<W, span>(walk.rows, walk.first, next + d, lane, words);
        }
      }
      #pragma clang loop unroll(full)
      for (uint c = 0; c < C; c++) {
        lane_u[c] += D * span_fours;
        lane_factors[c] += D * R;
      }
    }
    #pragma clang loop unroll(full)
    for (uint c = 0; c < C; c++) {
      lane_u[c] -= walked * span_fours;
      lane_factors[c] -= walked * R;
    }
    finish_tile<C>(
        acc, tile, active, p, scratch, tile_scratch(R * C), simdgroup, lane, first_row, columns, bias0, bias1, bias2, other, y);
  }
}

// Up to R activation rows, prologue included: x, residual, h_out [rows, k]; norms [k]. u is staged in threadgroup memory,
// followed by its factors.
template <uint32_t W, uint32_t S, uint span, uint R>
[[kernel, max_total_threads_per_threadgroup(512)]] void matvec_tile_own(
    STREAM_OPERANDS,
    MATRIX_OPERANDS(MatvecTileParams),
    threadgroup uint4* staged        [[threadgroup(0)]],
    uint tg        [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * R * kTileSimdgroups];
  threadgroup float scratch[kTileSimdgroups * tile_scratch(R)];
  constexpr uint depth = tile_depth(W, span, 1);
  TileWalk<span_words(W, span), depth> walk;
  begin_tiles<W, S, span, depth>(tg, simdgroup, lane, p, TILE_MATRICES, walk);
  wait_for_earlier_dispatches();
  threadgroup float2* factors = (threadgroup float2*)(staged + p.spans * (span / 4) * R);
  const uint row = tid / (kTileThreads / R);
  stage_tile_row<R, R>(
      x, residual, post_norm, scalar, h_out, pre_norm, p.stream, row, p.rows, row, bits_of(W), span,
      p.stream.stores_h != 0 && tg == 0, (threadgroup uint2*)staged, factors, partial, tid, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_tiles<W, S, span, 1, R, depth>(
      walk, (threadgroup const uint4*)staged, (threadgroup const float2*)factors, 0, p.rows, p, scratch, simdgroup, lane,
      TILE_MATRICES, bias0, bias1, bias2, other, y);
}

// Activation rows whose u linear_prologue_tile has put into scratch, 8 · C at a time. Grid: activation rows, then tiles, so that
// neighbours share matrix rows.
template <uint32_t W, uint32_t S, uint span, uint C>
[[kernel, max_total_threads_per_threadgroup(512)]] void matvec_tile_ready(
    device const uint4* u            [[buffer(0)]],
    device const float2* factors     [[buffer(1)]],
    MATRIX_OPERANDS(MatvecTileParams),
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float scratch[kTileSimdgroups * tile_scratch(8 * C)];
  constexpr uint depth = tile_depth(W, span, C);
  TileWalk<span_words(W, span), depth> walk;
  begin_tiles<W, S, span, depth>(tg.y, simdgroup, lane, p, TILE_MATRICES, walk);
  wait_for_earlier_dispatches();
  const uint first_row = tg.x * 8 * C;
  const uint block = first_row * p.spans;  // in factors
  multiply_tiles<W, S, span, C, 8, depth>(
      walk, u + ulong(block) * (span / 4), factors + block, first_row, min(p.rows - first_row, 8 * C), p, scratch, simdgroup,
      lane, TILE_MATRICES, bias0, bias1, bias2, other, y);
}

#define INSTANTIATE_MATVEC_TILE(name, W, S, span) \
  INSTANTIATE(matvec_tile_##name##_s##span##_own1, matvec_tile_own<W, S, span, 1>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_own4, matvec_tile_own<W, S, span, 4>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_r8, matvec_tile_ready<W, S, span, 1>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_r16, matvec_tile_ready<W, S, span, 2>)

#endif
