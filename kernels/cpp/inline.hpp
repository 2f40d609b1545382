// Kernels are functions of one lane alone: inlined, or at least of internal linkage.
#pragma once

#define RAMET_INLINE static inline __attribute__((always_inline))
// The same for members of a type.
#define RAMET_STATIC static inline __attribute__((always_inline))
