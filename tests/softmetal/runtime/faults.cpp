// Faults inside kernels become errors of the command buffer: stray accesses by guard pages, undefined behaviour by traps.
#include "exec.hpp"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <ucontext.h>
#include <unistd.h>
using namespace sm;
namespace {
struct Guard { char* high; std::string what; };
std::mutex guardLock;
std::map<char*, Guard> guards;
struct sigaction oldActions[32];

const void* programCounter(void* context) {
  auto* u = (ucontext_t*)context;
#if defined(__x86_64__)
  return (const void*)u->uc_mcontext.gregs[REG_RIP];
#else
  return (const void*)u->uc_mcontext.pc;
#endif
}
std::string describe(Worker* w, char* a) {
  if ((ulong)a >= w->stackLow && (ulong)a < w->stackHigh) return "thread stack overflow";
  std::string m = "wild access";
  if ((ulong)a < 65536) m = "access through a null pointer (unbound buffer?)";
  else {
    auto i = guards.upper_bound(a);
    if (i != guards.begin() && a < (--i)->second.high) m = i->second.what;
  }
  for (int i = 0; i < MAX_BINDINGS; i++) {
    Binding& b = w->d->bindings[i];
    if (!b.p) continue;
    long past = a - b.p - (long)b.length, before = b.p - a;
    if (past >= 0 && past < (1 << 20)) m += format("; %ld bytes past the end of buffer(%d) '%s' (%lu bytes bound)", past, i, b.name, b.length);
    else if (before > 0 && before < (1 << 20)) m += format("; %ld bytes before buffer(%d) '%s'", before, i, b.name);
  }
  return "out-of-bounds: " + m;
}
void onFault(int sig, siginfo_t* info, void* context) {
  Worker* w = worker;
  if (w && w->inFiber) {
    auto* pc = (const char*)programCounter(context);
    std::string m = sig == SIGSEGV || sig == SIGBUS
        ? describe(w, (char*)info->si_addr)
        : "undefined behaviour (misaligned access, index outside a local array, shift amount, division by zero or conversion)";
    w->error = m + " by " + who(w, w->current) + where(pc + 1);
    w->aborted = true;
    siglongjmp(w->recover, 1);
  }
  struct sigaction& old = oldActions[sig];
  if (old.sa_flags & SA_SIGINFO && old.sa_sigaction) return old.sa_sigaction(sig, info, context);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(sig);
  signal(sig, SIG_DFL);
  raise(sig);
}
}  // namespace
void sm::installFaultHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction a{};
    a.sa_sigaction = onFault;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE}) sigaction(s, &a, &oldActions[s]);
  });
}
void sm::addGuard(char* low, char* high, const char* what) { std::lock_guard<std::mutex> l(guardLock); guards[low] = {high, what}; }
void sm::dropGuard(char* low) { std::lock_guard<std::mutex> l(guardLock); guards.erase(low); }

// The source line of a return address, from the debug information of the kernel's shared object.
std::string sm::where(const void* pc) {
  Dl_info i{};
  if (!pc || !dladdr(pc, &i)) return "";
  for (const char* tool : {"llvm-symbolizer-19", "llvm-symbolizer", "llvm-symbolizer-20", "llvm-symbolizer-21"}) {
    std::string command = format("%s --inlines --obj='%s' 0x%lx 2>/dev/null", tool, i.dli_fname, (ulong)pc - (ulong)i.dli_fbase - 1);
    FILE* p = popen(command.c_str(), "r");
    if (!p) return "";
    char line[512];
    std::string found;
    while (fgets(line, sizeof line, p)) {
      std::string s(line);
      if (!found.empty() || s.find(".metal:") == std::string::npos || s.find(".metal:0") != std::string::npos) continue;
      s.pop_back();
      found = s.substr(s.rfind('/') == std::string::npos ? 0 : s.rfind('/') + 1);
    }
    if (pclose(p) == 0) return found.empty() ? "" : " at " + found;
  }
  return "";
}
