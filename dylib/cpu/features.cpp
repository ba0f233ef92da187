#include "features.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace mb {

namespace scalar { extern const Kernels kernels; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace amx { const Kernels &kernels(); }
#elif defined(__aarch64__)
namespace neon { extern const Kernels kernels; }
namespace neon_dotprod { extern const Kernels kernels; }
#endif

namespace {

#if defined(__x86_64__)
// Register state that the operating system saves: a CPU feature is of no use without it.
uint64_t saved_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Whether this process may use the tile registers of AMX, which Linux grants once it is asked. Threads whose stack for signals is too
// small for their state are a reason to refuse.
bool may_use_tiles(uint64_t state, uint32_t features) {
#if MB_TILES_IN_SOFTWARE
  (void)state, (void)features;
  return true;
#elif defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  const bool tile = features >> 24 & 1, bf16 = features >> 22 & 1;
  return tile && bf16 && (state >> 17 & 3) == 3 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

struct X86 {
  bool avx2 = false, avx512 = false, amx = false;
  X86() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1, avx = c >> 28 & 1;
    if (!osxsave || !avx) return;
    const uint64_t state = saved_state();
    const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = ymm && fma && f16c && (b >> 5 & 1);
    const bool f = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1, vnni = c >> 11 & 1;
    avx512 = avx2 && zmm && f && dq && bw && vl && vnni;
    const uint32_t more = a, features = d;  // leaves below 7; of 7.0
    if (!avx512 || more < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    const bool bf16 = a >> 5 & 1;
    amx = bf16 && may_use_tiles(state, features);
  }
};
#endif

struct Level {
  const char *name;
  const Kernels *kernels;
};

std::vector<Level> levels() {
  std::vector<Level> found{{"scalar", &scalar::kernels}};
#if defined(__x86_64__)
  static const X86 cpu;
  if (cpu.avx2) found.push_back({"avx2", &avx2::kernels});
  if (cpu.avx512) found.push_back({"avx512", &avx512::kernels});
  if (cpu.amx) found.push_back({"amx", &amx::kernels()});
#elif defined(__aarch64__)
  bool dotprod = false;
#if defined(__linux__)
  dotprod = getauxval(AT_HWCAP) & (1u << 20);  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  int32_t value = 0;
  size_t size = sizeof value;
  dotprod = sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value;
#endif
  found.push_back({"neon", dotprod ? &neon_dotprod::kernels : &neon::kernels});
#endif
  return found;
}

}  // namespace

std::vector<std::string> available_levels() {
  std::vector<std::string> names;
  for (const Level &level : levels()) names.push_back(level.name);
  return names;
}

const Kernels &kernels_of_level(const std::string &name) {
  std::string wanted = name;
  const char *source = "options.level";
  if (wanted.empty()) {
    const char *value = getenv("MARKBASE_CPU");
    if (value) wanted = value;
    source = "MARKBASE_CPU";
  }
  const std::vector<Level> found = levels();
  if (wanted.empty()) return *found.back().kernels;
  std::string all;
  for (const Level &level : found) {
    if (wanted == level.name) return *level.kernels;
    all += (all.empty() ? "" : ", ") + std::string(level.name);
  }
  const bool known = wanted == "avx2" || wanted == "avx512" || wanted == "amx" || wanted == "neon";
  fail(MB_UNSUPPORTED, "%s: CPU level \"%.40s\" %s; this CPU has %s.", source, wanted.c_str(),
       known ? "is not available here" : "is unknown", all.c_str());
}

std::string cpu_name() {
#if defined(__x86_64__)
  uint32_t words[12];
  for (uint32_t i = 0; i < 3; i++) {
    if (!__get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3])) return "";
  }
  char text[49] = {};
  memcpy(text, words, 48);
  std::string name = text;
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name;
#elif defined(__APPLE__)
  char text[128] = {};
  size_t size = sizeof text - 1;
  return sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) == 0 ? text : "";
#else
  return "";
#endif
}

}  // namespace mb
