// epilogue.h: what happens to the products of a linear op before they are stored.
#ifndef MARKBASE_EPILOGUE_H
#define MARKBASE_EPILOGUE_H
#include "common.h"
#include "linear_params.h"

// Numbered as Epilogue in plan.h.
enum EpilogueKind : uint32_t { kEpilogueNone = 0, kEpilogueGeglu = 1, kEpilogueGeluMul = 2, kEpilogueSoftcap = 3 };

// One of three by matrix. Arguments are values: a choice between places in an argument struct would make a compiler for CUDA
// copy the struct to memory.
static inline uint of_matrix(uint m, uint a0, uint a1, uint a2) {
  return m == 0 ? a0 : m == 1 ? a1 : a2;
}
static inline device const uchar* of_matrix(
    uint m, device const uchar* a0, device const uchar* a1, device const uchar* a2)
{
  return m == 0 ? a0 : m == 1 ? a1 : a2;
}

// Where output n of matrix m gets its bias and goes to.
struct OutputPlace {
  float bias;
  uint column;
};
static inline OutputPlace output_place(
    constant EpilogueParams& e, device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    uint m, uint n)
{
  OutputPlace place;
  const uint has_bias = of_matrix(m, e.has_bias0, e.has_bias1, e.has_bias2);
  const uint format = of_matrix(m, e.bias_format0, e.bias_format1, e.bias_format2);
  place.bias = has_bias != 0 ? load_scalar(of_matrix(m, bias0, bias1, bias2), format, n) : 0.0f;
  place.column = of_matrix(m, e.y_column0, e.y_column1, e.y_column2) + n;
  return place;
}

// y of an activation row from a product with its bias; n is the output within its matrix, `column` within the row of y, and
// `up` the second product of geglu.
static inline void store_output(
    float v, float up, constant EpilogueParams& e, device const float* other, device float* y, uint row, uint n, uint column)
{
  float result = v;
  if (e.kind == kEpilogueGeglu) {
    result = gelu_tanh(v) * up;
  } else if (e.kind == kEpilogueGeluMul) {
    result = gelu_tanh(v) * other[ulong(row) * e.other_stride + e.other_column + n];
  } else if (e.kind == kEpilogueSoftcap) {
    result = soft_cap(v, e.cap);
  }
  y[ulong(row) * e.y_stride + column] = result;
}

// The arguments of a kernel of up to three matrices, from buffer 6 on; P: its parameters.
#define MATRIX_OPERAND(m, w_slot, scales_slot, biases_slot) \
    device const uchar* w##m [[buffer(w_slot)]], device const uchar* scales##m [[buffer(scales_slot)]], \
    device const uchar* biases##m [[buffer(biases_slot)]]
#define MATRIX_OPERANDS(P) \
    MATRIX_OPERAND(0, 6, 7, 8), MATRIX_OPERAND(1, 9, 10, 11), MATRIX_OPERAND(2, 12, 13, 14), \
    device const uchar* bias0 [[buffer(15)]], device const uchar* bias1 [[buffer(16)]], \
    device const uchar* bias2 [[buffer(17)]], device const float* other [[buffer(18)]], device float* y [[buffer(19)]], \
    constant P& p [[buffer(20)]]

#endif
