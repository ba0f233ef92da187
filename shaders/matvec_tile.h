// matvec_tile.h: the matrix products of decode rows on matrix units. Sixteen activation rows by eight matrix rows make a product; the
// codes of a span are multiplied as whole numbers, and its sums then take scale and bias in f32. Nothing in a row's arithmetic
// depends on how many rows there are or on its place among them.
#ifndef MARKBASE_MATVEC_TILE_H
#define MARKBASE_MATVEC_TILE_H
#include "tile_walk.h"

// What a lane has of u in a span: of activation rows lane / 4 and 8 more its quarter's pairs, two at a time of both rows, and
// the factors of C of them. What the lane held last stays where there is no such row.
template <uint span, uint C>
struct TileU {
  uint4 pairs[span / 16];
  float2 factors[C];
};

// R rows, or twice 8, are staged together; u and factors are the lane's own.
template <uint span, uint C, uint R, typename U, typename Factors>
static inline void load_tile_u(U u, Factors factors, uint at, const thread bool* has_row, thread TileU<span, C>& to) {
  constexpr uint each = span / 16;
  if (has_row[0]) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < each; i++) {
      to.pairs[i] = u[(at * each + i) * 4 * R];
    }
  }
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    if (has_row[c]) {
      to.factors[c] = factors[at * R * C + 8 * c];
    }
  }
}

// Rows of x as they are: of each of C rows the columns of the lane's quarter of a span, 0 where there is no such row. They are
// asked for while another span is multiplied.
template <uint span, uint C>
struct PlainU {
  float4 columns[C * span / 16];
};
template <uint span, uint C>
static inline void load_plain_u(
    device const float4* x, uint row_quads, uint at, const thread bool* has_row, thread PlainU<span, C>& to)
{
  constexpr uint each = span / 16;  // quads of a quarter
  #pragma clang loop unroll(full)
  for (uint i = 0; i < C * each; i++) {
    to.columns[i] = float4(0.0f);
    if (has_row[i / each]) {
      to.columns[i] = x[i / each * 8 * row_quads + at * (span / 4) + i % each];
    }
  }
}

// Their halves and factors, as stage_tile_quad makes them and in the same order.
template <uint32_t W, uint span, uint C>
static inline void halve_plain_u(const thread PlainU<span, C>& x, const thread bool* has_row, thread TileU<span, C>& to) {
  constexpr uint each = span / 16;
  constexpr uint stride = pair_stride(bits_of(W));
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    const thread float4* of_row = x.columns + c * each;
    float sums[each];
    float mosts[each];
    #pragma clang loop unroll(full)
    for (uint q = 0; q < each; q++) {
      sums[q] = of_row[q].x + of_row[q].y + of_row[q].z + of_row[q].w;
      const float4 size = fabs(of_row[q]);
      mosts[q] = max(max(size.x, size.y), max(size.z, size.w));
    }
    float sum = sums[0] + sums[1];
    float most = max(mosts[0], mosts[1]);
    if (each == 4) {
      sum += sums[each - 2] + sums[each - 1];
      most = max(most, max(mosts[each - 2], mosts[each - 1]));
    }
    #pragma clang loop unroll(full)
    for (uint m = 1; m < 4; m *= 2) {
      sum += simd_shuffle_xor(sum, ushort(m));
      most = max(most, simd_shuffle_xor(most, ushort(m)));
    }
    const uint exponent = span_exponent(most);
    half columns[4 * each];
    #pragma clang loop unroll(full)
    for (uint q = 0; q < each; q++) {
      const half4 h = half4(of_row[q] * (pair_factors(bits_of(W), q) * span_scale(exponent)));
      columns[4 * q] = h.x;
      columns[4 * q + 1] = h.y;
      columns[4 * q + 2] = h.z;
      columns[4 * q + 3] = h.w;
    }
    #pragma clang loop unroll(full)
    for (uint f = 0; f < each; f++) {
      const uint first = pair_column(stride, 2 * f);
      const uint second = pair_column(stride, 2 * f + 1);
      to.pairs[f][c] = pair_of(columns[first], columns[first + stride]);
      to.pairs[f][2 + c] = pair_of(columns[second], columns[second + stride]);
    }
    to.factors[c] = has_row[c] ? float2(span_factor(exponent), sum) : float2(0.0f);
  }
}

// acc[2 (i C + c) + j] += the product of activation row 8 c + lane / 4 with row 2 (lane % 4) + j of eight i over span d of the
// step whose rows are given. `scratch` holds kTileScratch floats, the simdgroup's own.
template <uint32_t W, uint32_t S, uint span, uint NT, uint C>
static inline void multiply_span(
    const thread StepRow* rows, thread const TileScales<NT>& scales, uint d, const thread TileU<span, C>& u,
    threadgroup float* scratch, uint lane, thread float* acc)
{
  constexpr uint n = span_words(W, span);
  constexpr uint each = span / 16;  // products of 16 columns
  const uint place = kCopiesAhead ? span_place(d, lane / 4) : d;
  simdgroup_matrix<half, 8, 8> a[4 * each];
  #pragma clang loop unroll(full)
  for (uint f = 0; f < each; f++) {
    const uint pairs[4] = {u.pairs[f].x, u.pairs[f].y, u.pairs[f].z, u.pairs[f].w};
    tiles_of_lanes<4>(pairs, false, scratch, lane, a + 4 * f);
  }
  uint words[NT * n];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NT; i++) {
    load_quarter<W, span>(rows[i], place, lane % 4, words + i * n);
  }
  simdgroup_matrix<float, 8, 8> sums[2 * NT];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2 * NT; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  // Products that wait for each other stand apart.
  #pragma clang loop unroll(full)
  for (uint f = 0; f < each; f++) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NT; i++) {
      const uint pairs[2] = {pair_halves<W>(words + i * n, 2 * f), pair_halves<W>(words + i * n, 2 * f + 1)};
      simdgroup_matrix<half, 8, 8> b[2];
      tiles_of_lanes<2>(pairs, true, scratch, lane, b);
      tile_mma_pair(sums + 2 * i, a + 4 * f, b);
    }
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NT; i++) {
    const float2 first = scale_in_span<W, S>(scales, i, lane % 4 * 2, d);
    const float2 second = scale_in_span<W, S>(scales, i, lane % 4 * 2 + 1, d);
    float2 products[2];
    lanes_of_tiles<2>(sums + 2 * i, scratch, lane, products);
    #pragma clang loop unroll(full)
    for (uint c = 0; c < C; c++) {
      const float2 f = u.factors[c];
      thread float* to = acc + 2 * (i * C + c);
      to[0] = fma(first.y, f.y, fma(first.x, products[c].x * f.x, to[0]));
      to[1] = fma(second.y, f.y, fma(second.x, products[c].y * f.x, to[1]));
    }
  }
}

// A simdgroup's sums of a set into threadgroup memory, [8 · C activation rows, NT · 8 matrix rows].
template <uint NT, uint C>
static inline void store_sums(const thread float* acc, uint columns, uint lane, threadgroup float* to) {
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    const uint column = 8 * c + lane / 4;
    if (column < columns) {
      #pragma clang loop unroll(full)
      for (uint i = 0; i < NT; i++) {
        *(threadgroup float2*)(to + column * (8 * NT) + 8 * i + lane % 4 * 2) =
            float2(acc[2 * (i * C + c)], acc[2 * (i * C + c) + 1]);
      }
    }
  }
}

// Outputs of a pair of a set's [columns, NT · 4 pairs], from its sums: two matrix rows that follow one another, or one of gate and
// the same of up.
template <uint NT>
static inline void store_products(
    float2 sums, uint pair, uint set, constant MatvecTileParams& p, uint first_row, device const uchar* bias0,
    device const uchar* bias1, device const uchar* bias2, device const float* other, device float* y)
{
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint matrix = set_matrix(set, p);
  const uint each = geglu ? 1 : 2;  // matrix rows of a pair
  const uint n = ((set - of_matrix(matrix, 0, p.sets0, p.sets01)) * (4 * NT) + pair % (4 * NT)) * each;
  const uint size = of_matrix(matrix, p.n0, p.n1, p.n2);
  if (n >= size) {
    return;
  }
  const uint row = first_row + pair / (4 * NT);
  const uint next = min(n + 1, size - 1);
  const OutputPlace place = output_place(p.epilogue, bias0, bias1, bias2, matrix, n);
  const OutputPlace beside = output_place(p.epilogue, bias0, bias1, bias2, geglu ? 1 : matrix, geglu ? n : next);
  const float second = sums.y + beside.bias;
  store_output(sums.x + place.bias, second, p.epilogue, other, y, row, n, place.column);
  if (!geglu && n + 1 < size) {
    store_output(second, 0.0f, p.epilogue, other, y, row, n + 1, beside.column);
  }
}

#define TILE_MATRICES w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2

// Bytes of the rings of all simdgroups.
static constexpr uint ring_bytes(uint32_t w, uint span, uint NT) {
  return kCopiesAhead ? kTileSimdgroups * 2 * NT * 8 * step_bytes(w, span) : 0;
}

// Asks for the first step of a simdgroup's run.
template <uint32_t W, uint32_t S, uint span, uint NT>
static inline void begin_run(
    thread TileWalk<NT>& walk, uint tg, uint simdgroup, uint lane, constant MatvecTileParams& p, threadgroup uchar* rings,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2)
{
  walk.run = tile_run(simdgroup, tile_share(tg, p), p);
  walk.slot = 0;
  if (walk.run.left != 0) {
    ask_step<W, S, span, NT>(
        walk, true, lane, p, rings + simdgroup * (ring_bytes(W, span, NT) / kTileSimdgroups), TILE_MATRICES);
  }
}

// Adds the parts that simdgroups have of a set's sums, in their order, and stores the outputs. A simdgroup's part of its first set lies
// in `sums`, set_floats apart, that of a later one in `last`, last_floats apart.
template <uint NT>
static inline void add_parts(
    constant MatvecTileParams& p, threadgroup const float* sums, threadgroup const float* last, uint last_floats, uint set_floats,
    uint tg, uint simdgroup, uint lane, uint first_row, uint columns,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y)
{
  const TileShare share = tile_share(tg, p);
  const uint all = share.sets * p.spans;
  const float all_share = tg < p.more_sets ? p.more_share : p.each_share;
  const uint pairs = columns * 4 * NT;  // of a set
  const uint parts = (pairs + 31) / 32;
  uint set = 0;
  for (uint part = simdgroup; part < share.sets * parts; part += kTileSimdgroups) {
    while (part >= (set + 1) * parts) {
      set++;
    }
    // The simdgroups that have the set's first span and its last; where they are one, it is done.
    const uint begin = set * p.spans;
    const uint front = divided(kTileSimdgroups * (begin + 1) - 1, all, all_share);
    const uint back = divided(kTileSimdgroups * (begin + p.spans) - 1, all, all_share);
    const uint pair = (part - set * parts) * 32 + lane;
    if (front == back || pair >= pairs) {
      continue;
    }
    threadgroup const float* of_front =
        run_begin(front, share, p) >= begin ? sums + front * set_floats : last + front * last_floats;
    float2 sum = ((threadgroup const float2*)of_front)[pair];
    constexpr uint together = 5;
    for (uint i = front + 1; i <= back; i += together) {
      float2 theirs[together];
      #pragma clang loop unroll(full)
      for (uint j = 0; j < together; j++) {
        theirs[j] = ((threadgroup const float2*)(sums + min(i + j, back) * set_floats))[pair];
      }
      #pragma clang loop unroll(full)
      for (uint j = 0; j < together; j++) {
        if (i + j <= back) {
          sum += theirs[j];
        }
      }
    }
    store_products<NT>(sum, pair, share.set + set, p, first_row, bias0, bias1, bias2, other, y);
  }
}

// Where activation rows come from: u and its factors in threadgroup memory, there or in device memory as is_staged says, or x.
enum TileSource : uint { kStagedRows, kReadyRows, kPlainRows };

// All sets of the threadgroup by `columns` activation rows from first_row on. u is staged R rows together or 8 and 8 more; of plain
// rows it is x, plain_quads a row. `sums` holds the sums of a set for each simdgroup; so does a slot of the ring, or `last` where
// there is no ring.
template <uint32_t W, uint32_t S, uint span, uint NT, uint C, uint R, uint A>
static inline void multiply_sets(
    thread TileWalk<NT>& walk, threadgroup const uint4* staged, threadgroup const float2* staged_factors,
    device const uint4* u, device const float2* factors, bool is_staged, uint plain_quads, uint first_row, uint columns,
    constant MatvecTileParams& p, threadgroup uchar* rings, threadgroup float* sums, threadgroup float* last,
    threadgroup float* scratch, uint tg, uint simdgroup, uint lane,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y)
{
  constexpr uint set_floats = C * R * 8 * NT;
  constexpr uint slot_bytes = NT * 8 * step_bytes(W, span);
  threadgroup uchar* ring = rings + simdgroup * (2 * slot_bytes);
  TileU<span, C> held;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < span / 16; i++) {
    held.pairs[i] = uint4(0u);
  }
  bool has_row[C];
  float acc[2 * NT * C];
  #pragma clang loop unroll(full)
  for (uint c = 0; c < C; c++) {
    held.factors[c] = float2(0.0f);
    has_row[c] = 8 * c + lane / 4 < columns;
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2 * NT * C; i++) {
    acc[i] = 0.0f;
  }
  const uint lane_quad = lane / 4 % R * 4 + lane % 4;
  device const float4* x = (device const float4*)u + (lane / 4 * plain_quads + lane % 4 * (span / 16));
  PlainU<span, C> columns_of_x;
  if (A == kPlainRows && C == 1 && walk.run.left != 0) {
    load_plain_u(x, plain_quads, walk.run.at, has_row, columns_of_x);
  }
  bool from_beginning = walk.run.at == 0;
  bool first_set = true;
  while (walk.run.left != 0) {
    // While one step is multiplied, the next is on its way.
    const SpanRun run = walk.run;
    const uint step = step_of(run, p);
    const uint slot = walk.slot;
    wait_for_async_copies();
    TileScales<NT> scales = walk.scales;
    join_scales<S>(scales);
    StepRow rows[NT];
    step_rows<W, span, NT>(walk, lane, p, ring, w0, w1, w2, rows);
    walk.run = behind_step(run, p);
    walk.slot = 1 - slot;
    if (walk.run.left != 0) {
      ask_step<W, S, span, NT>(walk, walk.run.at == 0, lane, p, ring, TILE_MATRICES);
    }
    // Unrolled it took an H200 longer.
    #pragma clang loop unroll(disable)
    for (uint d = 0; d < step; d++) {
      if (A == kPlainRows) {
        // The next span's columns are asked for now where registers allow.
        if (C != 1) {
          load_plain_u(x, plain_quads, run.at + d, has_row, columns_of_x);
        }
        halve_plain_u<W, span, C>(columns_of_x, has_row, held);
        if (C == 1) {
          load_plain_u(x, plain_quads, d + 1 < step ? run.at + d + 1 : walk.run.at, has_row, columns_of_x);
        }
      } else if (A == kStagedRows || is_staged) {
        load_tile_u<span, C, R>(staged + lane_quad, staged_factors + lane / 4 % R, run.at + d, has_row, held);
      } else {
        load_tile_u<span, C, R>(u + lane_quad, factors + lane / 4 % R, run.at + d, has_row, held);
      }
      multiply_span<W, S, span, NT, C>(rows, scales, d, held, scratch + simdgroup * kTileScratch, lane, acc);
    }
    const bool to_end = walk.run.at == 0;
    if (to_end || walk.run.left == 0) {
      const bool whole = from_beginning && to_end;
      // A set that others have no part of is finished at once, in the slot that was read just now.
      threadgroup float* to = !whole && first_set ? sums + simdgroup * set_floats
          : !kCopiesAhead ? last + simdgroup * set_floats : (threadgroup float*)(ring + (whole ? slot * slot_bytes : 0));
      simdgroup_barrier(mem_flags::mem_threadgroup);
      store_sums<NT, C>(acc, columns, lane, to);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint pair = lane; whole && pair < columns * 4 * NT; pair += 32) {
        store_products<NT>(
            ((threadgroup const float2*)to)[pair], pair, run.set, p, first_row, bias0, bias1, bias2, other, y);
      }
      #pragma clang loop unroll(full)
      for (uint i = 0; i < 2 * NT * C; i++) {
        acc[i] = 0.0f;
      }
      from_beginning = true;
      first_set = false;
    }
  }
  if (first_set) {  // an empty run has no part of any sum
    store_sums<NT, C>(acc, columns, lane, sums + simdgroup * set_floats);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  add_parts<NT>(
      p, sums, kCopiesAhead ? (threadgroup const float*)rings : last, kCopiesAhead ? 2 * slot_bytes / 4 : set_floats, set_floats, tg,
      simdgroup, lane, first_row, columns, bias0, bias1, bias2, other, y);
}

// Scratch memory where matrices are filled and read through memory; one float more, since no array may be empty.
#define TILE_SCRATCH threadgroup float scratch[kTileSimdgroups * kTileScratch + 1]

// Floats of the sums of one set of each simdgroup.
static constexpr uint sum_floats(uint NT, uint rows) { return kTileSimdgroups * rows * 8 * NT; }

// Up to R activation rows, prologue included: x, residual, h_out [rows, k]; norms [k]. Threadgroup memory: the rings, u with its
// factors, the sums of sets.
template <uint32_t W, uint32_t S, uint span, uint NT, uint R>
[[kernel, max_total_threads_per_threadgroup(512)]] void matvec_tile_own(
    STREAM_OPERANDS,
    MATRIX_OPERANDS(MatvecTileParams),
    threadgroup uint4* memory        [[threadgroup(0)]],
    uint tg        [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * R * kTileSimdgroups];
  TILE_SCRATCH;
  threadgroup uchar* rings = (threadgroup uchar*)memory;
  TileWalk<NT> walk;
  begin_run<W, S, span, NT>(walk, tg, simdgroup, lane, p, rings, TILE_MATRICES);
  wait_for_earlier_dispatches();
  threadgroup uint4* staged = memory + ring_bytes(W, span, NT) / 16;
  threadgroup float2* factors = (threadgroup float2*)(staged + p.spans * (span / 4) * R);
  threadgroup float* sums = (threadgroup float*)(factors + p.spans * R);
  const uint row = tid / (kTileThreads / R);
  stage_held_row<R, R>(
      x, residual, post_norm, scalar, h_out, pre_norm, p.stream, row, p.rows, R, bits_of(W), span,
      p.stream.stores_h != 0 && tg == 0, (threadgroup uint*)staged, factors, partial, tid, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_sets<W, S, span, NT, 1, R, kStagedRows>(
      walk, staged, factors, (device const uint4*)x, (device const float2*)x, true, 0, 0, p.rows, p, rings, sums,
      sums + sum_floats(NT, R), scratch, tg, simdgroup, lane, TILE_MATRICES, bias0, bias1, bias2, other, y);
}

// Activation rows 8 · C at a time, whose u linear_prologue_tile has put into scratch. Grid: activation rows, then sets, so that
// neighbours share matrix rows. Threadgroup memory as above where `staged`, else without u.
template <uint32_t W, uint32_t S, uint span, uint NT, uint C>
[[kernel, max_total_threads_per_threadgroup(512)]] void matvec_tile_ready(
    device const uint4* all_u        [[buffer(0)]],
    device const float2* all_factors [[buffer(1)]],
    MATRIX_OPERANDS(MatvecTileParams),
    threadgroup uint4* memory        [[threadgroup(0)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  TILE_SCRATCH;
  threadgroup uchar* rings = (threadgroup uchar*)memory;
  TileWalk<NT> walk;
  begin_run<W, S, span, NT>(walk, tg.y, simdgroup, lane, p, rings, TILE_MATRICES);
  wait_for_earlier_dispatches();
  const uint quads = p.spans * (span * 2);
  const uint pairs = p.spans * (8 * C);
  device const uint4* u = all_u + ulong(tg.x) * quads;
  device const float2* factors = all_factors + ulong(tg.x) * pairs;
  threadgroup uint4* staged = memory + ring_bytes(W, span, NT) / 16;
  threadgroup float2* staged_factors = (threadgroup float2*)(staged + (p.staged != 0 ? quads : 0));
  threadgroup float* sums = (threadgroup float*)(staged_factors + (p.staged != 0 ? pairs : 0));
  if (p.staged != 0) {
    constexpr uint together = 5;
    for (uint start = tid; start < quads; start += together * kTileThreads) {
      uint4 v[together];
      #pragma clang loop unroll(full)
      for (uint j = 0; j < together; j++) {
        v[j] = u[min(start + j * kTileThreads, quads - 1)];
      }
      #pragma clang loop unroll(full)
      for (uint j = 0; j < together; j++) {
        if (start + j * kTileThreads < quads) {
          staged[start + j * kTileThreads] = v[j];
        }
      }
    }
    for (uint i = tid; i < pairs; i += kTileThreads) {
      staged_factors[i] = factors[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const uint first_row = tg.x * (8 * C);
  multiply_sets<W, S, span, NT, C, 8, kReadyRows>(
      walk, staged, staged_factors, u, factors, p.staged != 0, 0, first_row, min(p.rows - first_row, 8 * C), p, rings, sums,
      sums + sum_floats(NT, 8 * C), scratch, tg.y, simdgroup, lane, TILE_MATRICES, bias0, bias1, bias2, other, y);
}

// The same of x as it is: each simdgroup makes halves of it. Threadgroup memory as above without u.
template <uint32_t W, uint32_t S, uint span, uint NT, uint C>
[[kernel, max_total_threads_per_threadgroup(512)]] void matvec_tile_plain(
    device const float* x            [[buffer(0)]],
    MATRIX_OPERANDS(MatvecTileParams),
    threadgroup uint4* memory        [[threadgroup(0)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  TILE_SCRATCH;
  threadgroup uchar* rings = (threadgroup uchar*)memory;
  TileWalk<NT> walk;
  begin_run<W, S, span, NT>(walk, tg.y, simdgroup, lane, p, rings, TILE_MATRICES);
  wait_for_earlier_dispatches();
  const uint first_row = tg.x * (8 * C);
  device const uint4* rows = (device const uint4*)(x + ulong(first_row) * p.stream.k);
  threadgroup float* sums = (threadgroup float*)(memory + ring_bytes(W, span, NT) / 16);
  multiply_sets<W, S, span, NT, C, 8, kPlainRows>(
      walk, memory, (threadgroup const float2*)memory, rows, (device const float2*)rows, false, p.stream.k / 4, first_row,
      min(p.rows - first_row, 8 * C), p, rings, sums, sums + sum_floats(NT, 8 * C), scratch, tg.y, simdgroup, lane,
      TILE_MATRICES, bias0, bias1, bias2, other, y);
}

#define INSTANTIATE_MATVEC_TILE_SETS(name, W, S, span, NT) \
  INSTANTIATE(matvec_tile_##name##_s##span##_own1_n##NT, matvec_tile_own<W, S, span, NT, 1>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_own4_n##NT, matvec_tile_own<W, S, span, NT, 4>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_r8_n##NT, matvec_tile_ready<W, S, span, NT, 1>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_r16_n##NT, matvec_tile_ready<W, S, span, NT, 2>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_plain8_n##NT, matvec_tile_plain<W, S, span, NT, 1>) \
  INSTANTIATE(matvec_tile_##name##_s##span##_plain16_n##NT, matvec_tile_plain<W, S, span, NT, 2>)

// Sets of 24 rows take more threadgroup memory than a GPU of Apple's has.
#ifdef MSL_TARGET_PTX
#define INSTANTIATE_MATVEC_TILE(name, W, S, span) \
  INSTANTIATE_MATVEC_TILE_SETS(name, W, S, span, 1) \
  INSTANTIATE_MATVEC_TILE_SETS(name, W, S, span, 3)
#else
#define INSTANTIATE_MATVEC_TILE(name, W, S, span) INSTANTIATE_MATVEC_TILE_SETS(name, W, S, span, 1)
#endif

#endif
