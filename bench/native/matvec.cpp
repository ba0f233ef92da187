// matvec.cpp: how fast the matrix products run on an NVIDIA GPU, for each way of spreading them over simdgroups, at the shapes of
// an E4B in 4 bits. It is what the choices in dylib/gpu/lower_linear.cpp are made from.
//   c++ -O2 -std=c++17 bench/native/matvec.cpp -ldl -o matvec && ./matvec FOLDER_OF_PTX… [SHAPE…] [ROWS…]
// Each folder holds <kernel>.ptx as dylib/ptx/build.ts writes them; several folders compare builds of the same kernels.
// Weights are cycled over at least 512 MB, so that none comes from the cache. One line a kernel, with the best way of spreading
// it, for 1, 2, 4 and 8 rows.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../../shaders/linear_params.h"

namespace {

using Address = unsigned long long;
void *driver;

template <class... A>
void call(const char *name, A... a) {
  static std::map<std::string, void *> known;
  void *&symbol = known[name];
  if (!symbol) symbol = dlsym(driver, name);
  if (!symbol) std::printf("the driver has no %s\n", name), std::exit(1);
  const int status = reinterpret_cast<int (*)(A...)>(symbol)(a...);
  if (status != 0) std::printf("%s fails with %d\n", name, status), std::exit(1);
}

void *stream, *event0, *event1;

Address allocate(size_t bytes) {
  Address at = 0;
  call("cuMemAlloc_v2", &at, bytes);
  return at;
}

struct Function {
  void *handle = nullptr;
};

Function load(const std::string &folder, const std::string &kernel) {
  std::ifstream file(folder + "/" + kernel + ".ptx");
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().empty()) return {};
  void *module = nullptr;
  Function f;
  const std::string ptx = text.str();
  call("cuModuleLoadData", &module, ptx.c_str());
  call("cuModuleGetFunction", &f.handle, module, ("k_" + kernel).c_str());
  return f;
}

// Seconds of one of `count` launches, replayed as a graph.
double seconds(int count, const std::function<void(int)> &launch) {
  void *graph = nullptr, *exec = nullptr;
  call("cuStreamBeginCapture_v2", stream, 2);
  for (int i = 0; i < count; i++) launch(i);
  call("cuStreamEndCapture", stream, &graph);
  call("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
  float best = 1e9f;
  for (int repeat = 0; repeat < 4; repeat++) {
    float ms = 0;
    call("cuEventRecord", event0, stream);
    call("cuGraphLaunch", exec, stream);
    call("cuEventRecord", event1, stream);
    call("cuEventSynchronize", event1);
    call("cuEventElapsedTime", &ms, event0, event1);
    if (repeat > 0) best = std::min(best, ms);
  }
  call("cuGraphExecDestroy", exec);
  call("cuGraphDestroy", graph);
  return best * 1e-3 / count;
}

struct Shape {
  const char *name;
  uint32_t k;
  std::vector<uint32_t> n;
  uint32_t epilogue;  // as Epilogue in plan.h
  bool norms;
};

uint32_t up(uint64_t a, uint64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

constexpr uint32_t kGroup = 64;

// One matrix's codes, scales and biases.
struct Matrix {
  Address w, scales, biases;
};

uint64_t matrix_bytes(uint64_t n, uint64_t k) { return n * k / 2 + 4 * n * k / kGroup; }

// A kernel of decode rows, by its name: matvec_affine4_bf16_r<rows>_n<rows of half>_d<blocks in flight>.
struct Kernel {
  std::string name;
  uint32_t r, nr, d;
  Function function;
};

std::vector<Kernel> kernels_of(const std::string &folder) {
  std::vector<Kernel> found;
  for (const uint32_t r : {1u, 2u, 4u, 8u}) {
    for (const uint32_t nr : {1u, 2u, 3u, 4u, 5u}) {
      for (const uint32_t d : {1u, 2u, 3u, 4u, 5u}) {
        const std::string name =
            "matvec_affine4_bf16_r" + std::to_string(r) + "_n" + std::to_string(nr) + "_d" + std::to_string(d);
        const Function f = load(folder, name);
        if (f.handle) found.push_back({folder + "/" + name.substr(20), r, nr, d, f});
      }
    }
  }
  return found;
}

void bench_shape(const Shape &s, uint32_t r, const std::vector<Kernel> &kernels, double copy, Address pool, uint64_t pool_bytes) {
  uint64_t bytes = 0;
  for (const uint32_t n : s.n) bytes += matrix_bytes(n, s.k);
  const int copies = static_cast<int>(std::clamp<uint64_t>((600ull << 20) / bytes, 1, 200));
  if (copies * bytes > pool_bytes) std::printf("pool too small\n"), std::exit(1);
  const Address x = allocate(s.k * 4), residual = allocate(s.k * 4), norm = allocate(s.k * 2), h = allocate(s.k * 4);
  const uint32_t blocks = up(s.k, 512), row_floats = blocks * 512 + blocks * 16;
  const Address u = allocate(8 * row_floats * 4);
  uint32_t outputs = 0;
  for (const uint32_t n : s.n) outputs += n;
  const Address y = allocate(8ull * outputs * 4);
  std::vector<float> values(8 * row_floats);
  for (uint32_t i = 0; i < values.size(); i++) values[i] = std::sin(i * 1.3f);
  call("cuMemcpyHtoD_v2", x, static_cast<const void *>(values.data()), size_t{s.k} * 4);
  call("cuMemcpyHtoD_v2", residual, static_cast<const void *>(values.data()), size_t{s.k} * 4);
  call("cuMemcpyHtoD_v2", u, static_cast<const void *>(values.data()), values.size() * 4);
  call("cuMemsetD16_v2", norm, static_cast<unsigned short>(0x3f80), size_t{s.k});

  struct Line {
    double seconds;
    std::string text;
  };
  {
    std::vector<Line> lines;
    for (const Kernel &kernel : kernels) {
      if (kernel.r != r) continue;
      Line best{1, ""};
      for (const uint32_t slices : {1u, 2u, 4u, 8u}) {
        const uint32_t nr = kernel.nr;
        MatvecParams p{};
        p.stream.k = s.k;
        p.stream.eps = 1e-6f;
        if (s.norms && r == 1) {
          p.stream.has_residual = p.stream.has_post = p.stream.has_pre = p.stream.stores_h = 1;
          p.stream.post_format = p.stream.pre_format = 2;
        }
        p.epilogue.kind = s.epilogue;
        p.epilogue.cap = 30;
        p.epilogue.y_stride = outputs;
        const bool geglu = s.epilogue == 1;
        const auto n = [&](size_t i) { return i < s.n.size() ? s.n[i] : 0; };
        p.n0 = n(0), p.n1 = n(1), p.n2 = n(2);
        if (!geglu) p.epilogue.y_column1 = p.n0, p.epilogue.y_column2 = p.n0 + p.n1;
        p.groups0 = geglu ? up(p.n0, nr) : up(p.n0, 2 * nr);
        p.groups01 = p.groups0 + (geglu ? 0 : up(p.n1, 2 * nr));
        p.groups = p.groups01 + up(p.n2, 2 * nr);
        p.row_bytes = s.k / 2;
        p.chunks = s.k / 32;
        p.blocks = blocks;
        p.whole = 1;
        p.scale_columns = s.k / kGroup;
        p.group_shift = 6;
        p.code_exponent = kCodeExponent;
        p.slices = slices;
        while (1u << p.slice_shift < slices) p.slice_shift++;
        p.rows = r;
        p.row_floats = row_floats;
        const uint32_t block_bytes = 8 * 17 * 16 + 16 * 4;
        p.phase_blocks = p.blocks;
        if (slices > p.blocks) continue;
        const uint32_t wanted = up(p.groups, 8 / slices);
        uint32_t before = 0;
        for (const uint32_t of_core : {1u, 2u, 3u, 4u, 8u, 1000000u}) {
          p.iterations = up(wanted, std::min(wanted, 132 * of_core));
          for (const bool even : {false, true}) {
            const uint32_t threadgroups = even ? up(wanted, p.iterations) : std::min(wanted, 132 * of_core);
            if (threadgroups == before) continue;
            before = threadgroups;
            p.group_stride = threadgroups * (8 / slices);
            const auto launch = [&](int i) {
              Address at = pool + (i % copies) * bytes;
              Matrix m[3] = {};
              for (size_t j = 0; j < s.n.size(); j++) {
                m[j].w = at;
                m[j].scales = at + uint64_t{s.n[j]} * s.k / 2;
                m[j].biases = m[j].scales + 2ull * s.n[j] * s.k / kGroup;
                at += matrix_bytes(s.n[j], s.k);
              }
              for (size_t j = s.n.size(); j < 3; j++) m[j] = m[0];
              Address a[20] = {x, residual, norm, norm, h, norm, m[0].w, m[0].scales, m[0].biases, m[1].w, m[1].scales,
                               m[1].biases, m[2].w, m[2].scales, m[2].biases, norm, norm, norm, x, y};
              if (r > 1) a[5] = u;
              uint32_t offset = 0;
              void *args[22];
              const int first = r == 1 ? 0 : 5;
              for (int j = first; j < 20; j++) args[j] = &a[j];
              args[20] = &p;
              args[21] = &offset;
              call("cuLaunchKernel", kernel.function.handle, r == 1 ? threadgroups : 1u, r == 1 ? 1u : threadgroups, 1u, 256u,
                   1u, 1u, r == 1 ? p.phase_blocks * block_bytes : 0u, stream, static_cast<void **>(args + first),
                   static_cast<void **>(nullptr));
            };
            const double t = seconds(std::max(copies, 20), launch);
            if (t >= best.seconds) continue;
            char text[200];
            std::snprintf(text, sizeof text, "  %-8s %8.2f us %5.1f%% slices=%u iterations=%u groups=%u %s",
                          s.name, t * 1e6, 100 * bytes / t / copy, slices, p.iterations, threadgroups, kernel.name.c_str());
            best = {t, text};
          }
        }
      }
      lines.push_back(best);
    }
    std::sort(lines.begin(), lines.end(), [](const Line &a, const Line &b) { return a.seconds < b.seconds; });
    for (size_t i = 0; i < std::min<size_t>(lines.size(), r == 1 ? 8 : 5); i++) std::puts(lines[i].text.c_str());
    std::fflush(stdout);
  }
}

// 512 rows through the f16 tiles.
void bench_matmul(const Shape &s, const std::vector<std::string> &folders, Address pool) {
  const uint32_t rows = 512;
  uint32_t outputs = 0;
  for (const uint32_t n : s.n) outputs += n;
  const Address u = allocate(uint64_t{rows} * s.k * 2), scale = allocate(rows * 4), y = allocate(uint64_t{rows} * outputs * 4);
  call("cuMemsetD16_v2", u, static_cast<unsigned short>(0x3c00), size_t{rows} * s.k);
  call("cuMemsetD32_v2", scale, 0x3f800000u, size_t{rows});
  for (const std::string &folder : folders) {
    for (const uint32_t m : {16u, 64u}) {
      const Function f = load(folder, "matmul_affine4_bf16_f16_m" + std::to_string(m));
      if (!f.handle) continue;
      MatmulParams p{};
      p.epilogue.kind = s.epilogue == 3 ? 0 : s.epilogue;
      p.epilogue.y_stride = outputs;
      const bool geglu = s.epilogue == 1;
      const uint32_t tile = m == 16 ? 32 : 64, n_tile = geglu ? tile / 2 : tile;
      const auto n = [&](size_t i) { return i < s.n.size() ? s.n[i] : 0; };
      p.n0 = n(0), p.n1 = n(1), p.n2 = n(2);
      if (!geglu) p.epilogue.y_column1 = p.n0, p.epilogue.y_column2 = p.n0 + p.n1;
      p.tiles0 = up(p.n0, n_tile);
      p.tiles01 = p.tiles0 + (geglu ? 0 : up(p.n1, tile));
      const uint32_t tiles = p.tiles01 + up(p.n2, tile);
      p.rows = rows;
      p.columns = s.k;
      p.row_bytes = s.k / 2;
      p.scale_columns = s.k / kGroup;
      p.tile = {s.k, s.k / 64, 1, 6, kCodeExponent};
      const auto launch = [&](int) {
        Address at = pool;
        Matrix mm[3] = {};
        for (size_t j = 0; j < s.n.size(); j++) {
          mm[j] = {at, at + uint64_t{s.n[j]} * s.k / 2, at + uint64_t{s.n[j]} * s.k / 2 + 2ull * s.n[j] * s.k / kGroup};
          at += matrix_bytes(s.n[j], s.k);
        }
        for (size_t j = s.n.size(); j < 3; j++) mm[j] = mm[0];
        Address a[16] = {u, scale, mm[0].w, mm[0].scales, mm[0].biases, mm[1].w, mm[1].scales, mm[1].biases,
                         mm[2].w, mm[2].scales, mm[2].biases, u, u, u, u, y};
        void *args[17];
        for (int j = 0; j < 16; j++) args[j] = &a[j];
        args[16] = &p;
        call("cuLaunchKernel", f.handle, up(rows, m), tiles, 1u, 128u, 1u, 1u, 0u, stream, static_cast<void **>(args),
             static_cast<void **>(nullptr));
      };
      const double t = seconds(10, launch);
      std::printf("  %-8s %8.2f us %6.1f TFLOP/s  512 rows by tiles of %u  %s\n", s.name, t * 1e6,
                  2.0 * rows * outputs * s.k / t * 1e-12, m, folder.c_str());
    }
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv) {
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return std::printf("no NVIDIA driver: %s\n", dlerror()), 1;
  int device = 0;
  void *context = nullptr;
  call("cuInit", 0u);
  call("cuDeviceGet", &device, 0);
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  call("cuStreamCreate", &stream, 1u);
  call("cuEventCreate", &event0, 0u);
  call("cuEventCreate", &event1, 0u);
  const uint64_t pool_bytes = 1200ull << 20;
  const Address pool = allocate(pool_bytes), other = allocate(1ull << 30);
  call("cuMemsetD32_v2", pool, 0x3c213d17u, pool_bytes / 4);  // any codes; as bf16: about 0.01 and 0.04
  const double t = seconds(16, [&](int) { call("cuMemcpyDtoDAsync_v2", other, pool, size_t{1} << 30, stream); });
  const double copy = 2.0 * (1ull << 30) / t;
  std::printf("copy %.0f GB/s\n", copy * 1e-9);
  const std::vector<Shape> shapes = {
      {"gate_up", 2560, {10240, 10240}, 1, true}, {"down", 10240, {2560}, 0, false},
      {"head", 2560, {262144}, 3, true},          {"qkv", 2560, {2048, 512, 512}, 0, true},
      {"o", 2048, {2560}, 0, false},              {"ple_gate", 2560, {256}, 0, true},
      {"ple", 256, {2560}, 0, false},
  };
  std::vector<std::string> folders;
  std::vector<Shape> chosen;
  std::vector<uint32_t> rows;
  for (const std::string argument : std::vector<std::string>(argv + 1, argv + argc)) {
    const auto named = std::find_if(shapes.begin(), shapes.end(), [&](const Shape &s) { return s.name == argument; });
    if (named != shapes.end()) chosen.push_back(*named);
    else if (argument.find_first_not_of("0123456789") == std::string::npos) rows.push_back(std::stoul(argument));
    else folders.push_back(argument);
  }
  if (chosen.empty()) chosen = shapes;
  if (rows.empty()) rows = {1, 2, 4, 8, 512};
  std::vector<Kernel> kernels;
  for (const std::string &folder : folders) {
    for (Kernel &kernel : kernels_of(folder)) kernels.push_back(std::move(kernel));
  }
  for (const Shape &s : chosen) {
    for (const uint32_t r : rows) {
      if (r == 512) bench_matmul(s, folders, pool);
      else bench_shape(s, r, kernels, copy, pool, pool_bytes);
    }
  }
  return 0;
}
