// centroids_params.h: arguments of centroid_head's kernels, shared by shaders and dylib/gpu/lower_centroids.cpp.
#ifndef MARKBASE_CENTROIDS_PARAMS_H
#define MARKBASE_CENTROIDS_PARAMS_H
#include "row_products_params.h"

struct CentroidsParams {
  struct RowParams row;  // of the table
  uint32_t tokens;       // rows of the table; an id of the ordering from here on stands for none
  uint32_t chosen;       // centroids of a row
  uint32_t each;         // tokens of a centroid
};

#endif
