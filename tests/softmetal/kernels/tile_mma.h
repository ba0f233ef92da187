// The one place through which matrix products go; the PTX shim brings its own.
#ifndef MSL_TARGET_PTX
template <typename T>
static inline void tile_mma(
    thread simdgroup_matrix<float, 8, 8>* acc,
    const thread simdgroup_matrix<T, 8, 8>* a,
    const thread simdgroup_matrix<T, 8, 8>& b)
{
  simdgroup_multiply_accumulate(acc[0], a[0], b, acc[0]);
  simdgroup_multiply_accumulate(acc[1], a[1], b, acc[1]);
}
#endif
