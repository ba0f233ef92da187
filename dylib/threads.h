// threads.h: what threads of the library's own need: the CPU device's pool and the runner of started runs.
#pragma once
#include <dlfcn.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mb {

// Between two looks at something that another thread will change soon.
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// A thread may outlive whoever opened the library, so the code it runs must never be unloaded.
inline void keep_library_loaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&keep_library_loaded), &info) && info.dli_fname) {
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NODELETE);
  }
}

}  // namespace mb
