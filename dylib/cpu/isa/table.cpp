// The kernels of one instruction set in one table.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

#define MB_TEXT_(a) #a
#define MB_TEXT(a) MB_TEXT_(a)

// The level as users name it: which of the two NEON builds runs is up to the CPU.
constexpr const char *level = MB_ISA_NUMBER >= 3 ? "neon" : MB_TEXT(MB_ISA);

extern const Kernels kernels;
const Kernels kernels = {
    level,         kLanes,       sum_of_squares, scale_row,    add_rows,          gelu_mul,          softcap,
    silu,          gate,         clamp_row,      sum_row,                multiply_add,
    rotate,        to_half,      all_finite,     dequantize, unpack_run,   interleave, matmul,            code_padding,      quantize_for_rows,
    quantize_for_tile, product_rows, tile_columns, tile_bytes,   pack_tile,         product_tile,
    softmax_block, weighted_sum, blend,          block_maxima, sum_exp,
};

}  // namespace MB_ISA
}  // namespace mb
