// row_products_params.h: how matrix rows and rows of u lie, for row_products.h and the lowerings of its kernels.
#ifndef MARKBASE_ROW_PRODUCTS_PARAMS_H
#define MARKBASE_ROW_PRODUCTS_PARAMS_H
#include "linear_params.h"

struct RowParams {
  uint32_t k;                            // columns
  uint32_t row_bytes;                    // of a matrix
  uint32_t chunks, blocks;               // of a matrix row: chunks of a lane, blocks of 16 chunks
  uint32_t whole;                        // every chunk is whole and aligned
  uint32_t scale_columns, group_shift;   // scales in a matrix row; log2 of the columns that share one
  uint32_t code_exponent;                // kCodeExponent
  uint32_t row_floats;                   // distance of rows of u
};

#endif
