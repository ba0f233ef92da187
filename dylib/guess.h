// guess.h: what a row's next token will most likely be, so that the run after it can begin before the caller has drawn it.
//
// The caller draws (src/sample/sampler.ts), and a guess that differs costs the run that was begun with it and nothing else. So this
// follows the sampler where 256 candidates decide the draw, without its shortcuts, and need not equal it to the last bit.
#pragma once
#include <cstdint>
#include <vector>

namespace mb {

// How one row's token is drawn: kDrawNumbers f64, written by src/engine/follow.ts.
struct Draw {
  // Bytes into the outputs of the run: u32 [count] candidates in descending order, f32 [count] their logits, f32 of which the
  // first is finite where the row is.
  uint64_t ids, values, statistics;
  uint64_t count;
  uint32_t position;   // of the token to be drawn
  uint64_t seed;       // below 2^53
  double temperature;  // 0: the first candidate
  uint64_t top_k;      // from 1 to `count`; any where the temperature is 0
  double top_p, min_p;
};

constexpr uint64_t kDrawNumbers = 10;

// Reads what the caller wrote. Throws Error for what is no draw from outputs of `output_bytes`.
std::vector<Draw> read_draws(const double *numbers, uint64_t rows, uint64_t output_bytes);

// The token that will be drawn from these outputs, kNone where none can be.
uint32_t guess_token(const Draw &draw, const uint8_t *outputs) noexcept;

}  // namespace mb
