// weights.h: reading weight matrices in every stored format.
//
// A matrix row is read in chunks: what one lane takes at once, 16 bytes where the format allows. Half a simdgroup reads a
// row, 16 chunks ("a block") at a time, so that a simdgroup covers two rows and K of 512 columns at 4 bits comes out even.
#ifndef MARKBASE_WEIGHTS_H
#define MARKBASE_WEIGHTS_H
#include "common.h"
#include "linear_params.h"

// Weight formats as template arguments: the plain ones are kF32, kF16, kBF16; codes of b bits that a scale and a bias belong to
// are kAffine + b, with kFine where those belong to 16 columns and not to 32 at least. Codes with a book stand for its numbers.
constant constexpr uint32_t kAffine = 16;
constant constexpr uint32_t kFine = 32;
constant constexpr uint32_t kIq4 = 64 + kAffine + 4;     // sixteen whole numbers
constant constexpr uint32_t kE2m1 = 128 + kAffine + 4;   // floats of 4 bits, divided by kE2m1Unit
constant constexpr uint32_t kE4m3 = 256 + kAffine + 8;   // floats of 8 bits, divided by kE4m3Unit
constant constexpr float kE2m1Unit = 16384.0f;
constant constexpr float kE4m3Unit = 256.0f;

static constexpr bool is_affine(uint32_t w) { return w >= kAffine; }
static constexpr bool is_fine(uint32_t w) { return w >= kAffine && (w & kFine) != 0; }
static constexpr bool has_book(uint32_t w) { return w >= 64; }
static constexpr uint bits_of(uint32_t w) { return w >= kAffine ? (w & 31) - kAffine : w == kF32 ? 32 : 16; }
// Columns of a chunk, which has one scale.
static constexpr uint chunk_columns(uint32_t w) {
  return w == kF32 ? 4 : w < kAffine ? 8 : is_fine(w) || bits_of(w) == 8 ? 16 : 32;
}
static constexpr uint chunk_words(uint32_t w) { return (chunk_columns(w) * bits_of(w) + 31) / 32; }

// Scale formats as template arguments: kF32, kF16 and kBF16 have biases beside them in the same format. With kSymmetric, halves,
// and kSigned the middle of the codes stands for zero. A scale of kMinimums is two bytes, for scale and minimum, which belong to
// two halves of 256 columns that lie in place of the biases; one of kSigned is a signed byte, which belongs to one half.
// kPowers and kBytes are e8m0 and e4m3 numbers.
constant constexpr uint32_t kSymmetric = 3;
constant constexpr uint32_t kMinimums = 4;
constant constexpr uint32_t kSigned = 5;
constant constexpr uint32_t kPowers = 6;
constant constexpr uint32_t kBytes = 7;

// Words of whole chunk `chunk` of the row at `row`, which is aligned to a chunk or, for 3, 5 and 6 bits, to 4 or 8 bytes.
template <uint32_t W>
static inline void load_words(device const uchar* row, uint chunk, thread uint* words) {
  constexpr uint n = chunk_words(W);
  if (chunk_columns(W) * bits_of(W) % 32 != 0) {  // six bytes
    device const ushort* halves = (device const ushort*)row + chunk * 3;
    words[0] = uint(halves[0]) | uint(halves[1]) << 16;
    words[1] = uint(halves[2]);
  } else if (n == 4) {
    const uint4 v = ((device const uint4*)row)[chunk];
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
  } else if (n % 2 == 0) {
    device const uint2* pairs = (device const uint2*)row + chunk * (n / 2);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < n / 2; i++) {
      const uint2 v = pairs[i];
      words[2 * i] = v.x;
      words[2 * i + 1] = v.y;
    }
  } else {
    device const uint* single = (device const uint*)row + chunk * n;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < n; i++) {
      words[i] = single[i];
    }
  }
}

// The same for plain formats whose rows have no alignment beyond an element's; columns from k on are 0.
template <uint32_t W>
static inline void load_words_ragged(device const uchar* row, uint chunk, uint k, thread uint* words) {
  constexpr uint n = chunk_words(W);
  const uint first = chunk * chunk_columns(W);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < n; i++) {
    if (W == kF32) {
      words[i] = first + i < k ? ((device const uint*)row)[first + i] : 0u;
    } else {
      const uint c = first + 2 * i;
      const uint low = c < k ? uint(((device const ushort*)row)[c]) : 0u;
      const uint high = c + 1 < k ? uint(((device const ushort*)row)[c + 1]) : 0u;
      words[i] = low | high << 16;
    }
  }
}

// The bits of a scale or bias as it is stored, for loads whose conversion has to wait. In 32 bits whatever the format: two of 16
// would be joined in one register, which waits for them too.
template <uint32_t F>
static inline uint load_stored(device const uchar* data, uint i) {
  return F == kF32 ? ((device const uint*)data)[i] : uint(((device const ushort*)data)[i]);
}

template <uint32_t F>
static inline float stored_float(uint bits) {
  if (F == kF16) {
    return float(as_type<half>(ushort(bits)));
  }
  return as_type<float>(F == kF32 ? bits : bits << 16);
}

// Bytes of a scale, and where the biases of a row begin whose scales begin at scale `first`.
static constexpr uint scale_bytes(uint32_t s) { return s == kF32 ? 4 : s >= kSigned ? 1 : 2; }
template <uint32_t W, uint32_t S>
static inline ulong bias_offset(ulong first) {
  constexpr uint shift = is_fine(W) ? 4 : 3;  // groups of 256 columns
  return S <= kBF16 ? first * scale_bytes(S) : S == kMinimums ? (first >> shift) * 4 : S == kSigned ? (first >> shift) * 2 : 0;
}

// Scale i and what goes with it, as stored.
template <uint32_t S>
static inline uint load_scale(device const uchar* scales, uint i) {
  return S >= kSigned ? uint(scales[i]) : load_stored<S>(scales, i);
}
template <uint32_t W, uint32_t S>
static inline uint load_bias(device const uchar* biases, uint i) {
  constexpr uint shift = is_fine(W) ? 4 : 3;
  if (S <= kBF16) {
    return load_stored<S>(biases, i);
  }
  return S == kMinimums ? ((device const uint*)biases)[i >> shift]
      : S == kSigned ? uint(((device const ushort*)biases)[i >> shift]) : 0u;
}

static inline float half_bits(uint bits) { return float(as_type<half>(ushort(bits))); }

// The scale and bias that a weight's code takes: w = scale · code + bias.
template <uint32_t W, uint32_t S>
static inline float scale_of(uint scale, uint bias) {
  constexpr float unit = (W & ~kFine) == kE2m1 ? kE2m1Unit : W == kE4m3 ? kE4m3Unit : 1.0f;
  if (S <= kBF16) {
    return stored_float<S>(scale);
  }
  if (S == kMinimums) {
    return half_bits(bias & 0xffffu) * float(scale & 0xffu);
  }
  if (S == kSigned) {
    return half_bits(bias) * float(int(scale << 24) >> 24);
  }
  if (S == kPowers) {  // 2^-127 is taken as 0, as GPUs do with numbers that small
    return as_type<float>(scale << 23) * unit;
  }
  return S == kBytes ? half_bits((scale & 0x7fu) << 7 | (scale & 0x80u) << 8) * (kE4m3Unit * unit) : half_bits(scale);
}
template <uint32_t W, uint32_t S>
static inline float bias_of(uint scale, uint bias) {
  if (S <= kBF16) {
    return stored_float<S>(bias);
  }
  if (S == kMinimums) {
    return -half_bits(bias >> 16) * float(scale >> 8);
  }
  return has_book(W) ? 0.0f : -float(1u << (bits_of(W) & 31) >> 1) * scale_of<W, S>(scale, bias);
}

// The number that a code stands for.
template <uint32_t W>
static inline float book_value(uint code) {
  if (W == kIq4) {
    const uint low = (code & 4) != 0 ? 0x766a5d4fu : 0x3f2d1801u;   // with 128 added
    const uint high = (code & 4) != 0 ? 0xf1d9c5b5u : 0xa6998d81u;
    const uint four = (code & 8) != 0 ? high : low;
    return float((four >> (code & 3) * 8) & 0xffu) - 128.0f;
  }
  return W == kE4m3 ? half_bits((code & 0x7fu) << 7 | (code & 0x80u) << 8) : half_bits((code & 7u) << 9 | (code & 8u) << 12);
}

// Where code i of a chunk is taken from: bits [code_place, code_place + bits) of a word, of it shifted right by 16, or
// of two joined.
static constexpr uint code_word(uint bits, uint i) { return i * bits / 32; }
static constexpr uint code_shift(uint bits, uint i) { return i * bits % 32; }
static constexpr uint code_place(uint bits, uint i) {
  return code_shift(bits, i) + bits > 32 ? 0
      : code_shift(bits, i) + bits <= 23 ? code_shift(bits, i) : code_shift(bits, i) - 16;
}

// The code's bits at its place, all others 0.
template <uint32_t W>
static inline uint code_bits(const thread uint* words, uint i) {
  constexpr uint bits = bits_of(W);
  constexpr uint mask = (1u << (bits & 31)) - 1;
  const uint word = code_word(bits, i);
  const uint shift = code_shift(bits, i);
  if (shift + bits > 32) {
    return (words[word] >> shift | words[word + 1] << (32 - shift)) & mask;
  }
  return (shift + bits <= 23 ? words[word] : words[word] >> 16) & mask << code_place(bits, i);
}

// Code i of a chunk as a float. The code's bits are put into the mantissa of a power of two, which is then subtracted: exact,
// and cheaper than a conversion where that runs at a fraction of the rate. `exponent` is kCodeExponent as an argument of the
// kernel: mask and power together are one instruction on NVIDIA's GPUs only where one of them lies in a register.
template <uint32_t W>
static inline float code_at(const thread uint* words, uint exponent, uint i) {
  if (has_book(W)) {
    constexpr uint bits = bits_of(W);
    return book_value<W>(words[code_word(bits, i)] >> code_shift(bits, i) & ((1u << (bits & 31)) - 1));
  }
  const uint at = code_place(bits_of(W), i);
  return as_type<float>(code_bits<W>(words, i) | (exponent - (at << 23))) - as_type<float>(kCodeExponent - (at << 23));
}

// Matvecs multiply codes as they lie where a GPU multiplies subnormal floats at full speed: the bits of a code at place `at` are
// code · 2^(at - 149) already. Activations are scaled to suit, by code_factor() of their column, and products by kCodeScale;
// powers of two change no digit of a result. Activations must stay below 2^48, and digits below 2^-80 are lost. Apple's GPUs
// take subnormal floats for 0, so there a code is made a float and no factor is needed.
#ifdef MSL_TARGET_PTX
constant constexpr uint kCodeShift = 80;
static inline float code_factor(uint bits, uint i) {
  return as_type<float>((127 + kCodeShift - code_place(bits, i)) << 23);
}
template <uint32_t W>
static inline float code_operand(const thread uint* words, uint exponent, uint i) {
  return has_book(W) ? code_at<W>(words, exponent, i) : as_type<float>(code_bits<W>(words, i));
}
constant constexpr uint kCodeScaleBits = (127 + kCodeShift - 149) << 23;         // 2^-69
constant constexpr uint kCodeUnscaleBits = (127 + 149 - kCodeShift) << 23;
#else
static inline float code_factor(uint, uint) { return 1.0f; }
template <uint32_t W>
static inline float code_operand(const thread uint* words, uint exponent, uint i) {
  return code_at<W>(words, exponent, i);
}
constant constexpr uint kCodeScaleBits = 127u << 23;
constant constexpr uint kCodeUnscaleBits = 127u << 23;
#endif

// Bits of codes that are multiplied as they lie; 0: of none.
static constexpr uint factor_bits(uint32_t w) { return is_affine(w) && !has_book(w) ? bits_of(w) : 0; }

// The factors of columns 4 i … 4 i + 3 of a chunk of affine codes of `bits` bits; bits 0: of a plain format.
static inline float4 code_factors(uint bits, uint i) {
  return bits == 0 ? float4(1.0f) : float4(
      code_factor(bits, 4 * i), code_factor(bits, 4 * i + 1), code_factor(bits, 4 * i + 2), code_factor(bits, 4 * i + 3));
}

// Element i of a chunk: the value of a plain format, the code of an affine one.
template <uint32_t W>
static inline float element_at(const thread uint* words, uint exponent, uint i) {
  if (W == kF32) {
    return as_type<float>(words[i]);
  }
  if (W == kF16) {
    return float(as_type<half>(ushort(words[i / 2] >> (i % 2 * 16))));
  }
  if (W == kBF16) {
    return as_type<float>(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
  return code_at<W>(words, exponent, i);
}

// Words of a run of 16 columns, rounded up.
static constexpr uint run_words(uint32_t w) { return (bits_of(w) * 16 + 31) / 32; }

// Words of the first or second 16 columns of the 32 that `pair` points at, of an odd number of bits: the second begin in the
// middle of a word.
template <uint bits, typename Words>
static inline void load_half_run(Words pair, uint second, thread uint* words) {
  const uint first = second * (bits / 2);
  uint v = pair[first];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < (bits * 16 + 31) / 32; i++) {
    const uint next = first + i + 1 < bits ? pair[first + i + 1] : 0u;
    words[i] = second == 0 ? v : v >> 16 | next << 16;
    v = next;
  }
}

// Words of the 16 columns from 16 · run on, the first column in the lowest bits. `whole`: rows are aligned and every run is
// full; otherwise plain formats are read element by element, zero from k on.
template <uint32_t W>
static inline void load_run(device const uchar* row, uint run, uint k, bool whole, thread uint* words) {
  constexpr uint n = run_words(W);
  constexpr uint bits = bits_of(W);
  if (!is_affine(W) && !whole) {
    constexpr uint chunks = 16 / chunk_columns(W);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < chunks; i++) {
      load_words_ragged<W>(row, run * chunks + i, k, words + i * chunk_words(W));
    }
  } else if (n % 4 == 0) {
    device const uint4* quads = (device const uint4*)row + run * (n / 4);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < n / 4; i++) {
      const uint4 v = quads[i];
      words[4 * i] = v.x;
      words[4 * i + 1] = v.y;
      words[4 * i + 2] = v.z;
      words[4 * i + 3] = v.w;
    }
  } else if (bits % 2 == 0) {
    device const uint* single = (device const uint*)row + run * n;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < n; i++) {
      words[i] = single[i];
    }
  } else {
    load_half_run<bits>((device const uint*)row + run / 2 * bits, run % 2, words);
  }
}

// Words of `columns` columns, 16 or 32, that a thread reads at once.
template <uint32_t W, uint columns>
static constexpr uint column_words() {
  return is_fine(W) && columns == 32 ? bits_of(W) : columns == chunk_columns(W) ? chunk_words(W) : columns / 16 * run_words(W);
}
// Scales that belong to them.
template <uint32_t W, uint columns>
static constexpr uint column_scales() { return is_fine(W) ? columns / 16 : 1; }

// Columns from `columns` · i on, the first in the lowest bits.
template <uint32_t W, uint columns>
static inline void load_columns(device const uchar* row, uint i, uint k, bool whole, thread uint* words) {
  if (is_fine(W) && columns == 32) {
    load_words<W & ~kFine>(row, i, words);
  } else if (is_affine(W) && columns == chunk_columns(W)) {
    load_words<W>(row, i, words);
  } else {
    #pragma clang loop unroll(full)
    for (uint r = 0; r < columns / 16; r++) {
      load_run<W>(row, i * (columns / 16) + r, k, whole, words + r * run_words(W));
    }
  }
}

#endif
