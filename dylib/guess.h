// guess.h: what a row's next token will most likely be, so that the run after it can begin before the caller has drawn it.
//
// The caller draws (src/sample/sampler.ts), and a guess that differs costs the run that was begun with it and nothing else. So this
// follows the sampler where 256 candidates or all logits decide the draw, and need not equal it to the last bit.
#pragma once
#include <cstdint>
#include <vector>

#include "device.h"

namespace mb {

// How one row's token is drawn, in the order of the numbers that src/engine/following.ts writes.
struct Draw {
  // Bytes into the outputs of the run: u32 [count] candidates in descending order, f32 [count] their logits, f32 of which the
  // first is finite where the row is.
  uint64_t ids, values, statistics;
  uint64_t count;
  uint32_t position;   // of the token to be drawn
  uint64_t seed;       // below 2^53
  double temperature;  // 0: the first candidate
  uint64_t top_k;      // from 1 to `count`; any where the temperature is 0, 0 where all logits decide
  double top_p, min_p;
  // Penalties: what the token's logit is multiplied by from then on (0: nothing changes), and what is added to it where the row
  // has no adjustment of the token yet. Where it has one, `Draws::adds` says what is added.
  double multiply, add;
  // All logits decide: the output of the plan that has them, f32 [out_rows, V]. There must be no adjustments, and no top-p.
  uint64_t logits;
};

// How the tokens of an input block are drawn, row by row: kDrawNumbers f64 each, then those of `adds`.
struct Draws {
  std::vector<Draw> rows;
  std::vector<double> adds;  // for each adjustment of the block, if its token is drawn; empty without penalties
};

constexpr uint64_t kDrawNumbers = 13;
constexpr uint64_t kNoLogits = 0xffffffff;

// Reads what the caller wrote. Throws Error for what are no draws from outputs of `output_bytes`.
Draws read_draws(const double *numbers, uint64_t count, uint64_t rows, uint64_t output_bytes);

// The token that will be drawn from these outputs, kNone where none can be. `logits`: f32 [vocabulary] of the row, where they decide.
uint32_t guess_token(const Draw &draw, const uint8_t *outputs, const float *logits, uint32_t vocabulary);

// Puts the tokens that will be drawn from `outputs` into an input block of as many rows as there are draws, and what they change
// of its adjustments. False, and a block that is of no use, where none can be drawn or it is no input block of the plan.
bool put_guesses(std::vector<uint32_t> &input, const Plan &plan, const Draws &draws, const std::vector<uint8_t> &outputs);

}  // namespace mb
