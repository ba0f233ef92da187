// Memory read bandwidth of this machine: each of T threads sums its own share of a buffer far larger than any cache.
// Usage: bandwidth THREADS MEBIBYTES REPETITIONS; prints one figure a repetition in GB/s (1e9 bytes).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Lanes __attribute__((vector_size(64)));

uint64_t sum(const Lanes *values, size_t count) {
  Lanes a{}, b{}, c{}, d{};
  for (size_t i = 0; i + 4 <= count; i += 4) {
    a += values[i];
    b += values[i + 1];
    c += values[i + 2];
    d += values[i + 3];
  }
  a = (a + b) + (c + d);
  uint64_t total = 0;
  for (int lane = 0; lane < 8; lane++) total += a[lane];
  return total;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int threads = atoi(argv[1]);
  const size_t bytes = size_t(atoi(argv[2])) << 20;
  const int repetitions = atoi(argv[3]);
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  memset(memory, 1, bytes);
  const size_t share = bytes / sizeof(Lanes) / threads;
  volatile uint64_t sink = 0;  // keeps the sums
  for (int repetition = 0; repetition <= repetitions; repetition++) {
    std::vector<uint64_t> totals(threads);
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; t++)
      workers.emplace_back([&, t] { totals[t] = sum(static_cast<Lanes *>(memory) + share * t, share); });
    for (std::thread &worker : workers) worker.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (uint64_t total : totals) sink = sink + total;
    if (repetition > 0) printf("%.2f\n", double(share * threads * sizeof(Lanes)) / seconds / 1e9);
  }
}
