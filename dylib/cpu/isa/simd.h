// simd.h: the vector wrapper of the instruction set that this unit is compiled for. Kernels are written once in terms of
// it. Everything lives in a namespace named after MB_ISA, and isa units use nothing of the standard library that could
// leave an inline function behind: the linker would keep one copy, perhaps the one that this CPU cannot run.
#pragma once
#include "../half.h"
#include "../kernels.h"

#define MB_ISA_NUMBER_scalar 0
#define MB_ISA_NUMBER_avx2 1
#define MB_ISA_NUMBER_avx512 2
#define MB_ISA_NUMBER_amx 2  // its vectors are those of AVX-512
#define MB_ISA_NUMBER_neon 3
#define MB_ISA_NUMBER_neon_dotprod 4
#define MB_PASTE_(a, b) a##b
#define MB_PASTE(a, b) MB_PASTE_(a, b)
#define MB_ISA_NUMBER MB_PASTE(MB_ISA_NUMBER_, MB_ISA)

// For what must not be called in a loop over weights, where the compiler judges by size.
#define MB_ALWAYS_INLINE __attribute__((always_inline))
#define MB_INLINE inline MB_ALWAYS_INLINE

#if MB_ISA_NUMBER == 0
#include "simd_scalar.h"
#elif MB_ISA_NUMBER == 1
#include "simd_avx2.h"
#elif MB_ISA_NUMBER == 2
#include "simd_avx512.h"
#else
#include "simd_neon.h"
#endif
#include "math.h"
#include "spread.h"
