// Barriers and simdgroup functions on NVPTX: a simdgroup is a warp, all of whose lanes take part.
#pragma once
namespace metal {
// A kernel may start while the one before it ends. From the wait on, all that earlier ones wrote can be read.
#ifdef SM_EARLY_START
SM_INLINE void let_next_dispatch_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
SM_INLINE void wait_for_earlier_dispatches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
SM_INLINE void let_next_dispatch_start() {}
SM_INLINE void wait_for_earlier_dispatches() {}
#endif

// Of shaders/attention_spread.h alone, which is for CUDA. modules.ts looks for the comments.
// Registers are given out so that a core holds N threadgroups of this kernel.
template <uint N> SM_INLINE void resident_threadgroups() { asm volatile("// threadgroups of a core: %0" : : "n"(N)); }

// Threadgroups of a cluster, eight along x, begin together and send each other values: each says how many bytes it will get
// (cluster_begin), waits until all have begun before it sends (cluster_wait), and for what it gets before it reads (cluster_receive).
// What is sent counts its bytes at a barrier of the one that gets it: a barrier of them all would first wait until everything
// that they wrote is seen by the whole GPU.
#ifdef SM_EARLY_START
SM_INLINE void cluster_begin(SM_THREADGROUP ulong* bell, uint bytes, uint tid) {
  const uint at = (uint)(unsigned long)bell;
  if (tid == 0) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
        "fence.mbarrier_init.release.cluster;\n\t"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
  }
  __nvvm_bar_warp_sync(~0u);
  asm volatile("// threadgroups of a cluster: 8\n\tbarrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
SM_INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
SM_INLINE uint sm_of_cluster(uint at, uint rank) {
  uint there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
SM_INLINE void cluster_send(SM_THREADGROUP float4* to, uint rank, float4 v, SM_THREADGROUP ulong* bell) {
  const uint there = sm_of_cluster((uint)(unsigned long)to, rank), rung = sm_of_cluster((uint)(unsigned long)bell, rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               : : "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(rung) : "memory");
}
SM_INLINE void cluster_receive(SM_THREADGROUP ulong* bell) {
  const uint at = (uint)(unsigned long)bell;
  uint done = 0;
  while (done == 0) {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(at) : "memory");
  }
}
#else
SM_INLINE void cluster_begin(SM_THREADGROUP ulong*, uint, uint) {}
SM_INLINE void cluster_wait() {}
SM_INLINE void cluster_send(SM_THREADGROUP float4* to, uint, float4 v, SM_THREADGROUP ulong*) { *to = v; }
SM_INLINE void cluster_receive(SM_THREADGROUP ulong*) {}
#endif

// Copies past the registers (shaders/common.h).
template <uint BYTES> SM_INLINE void async_copy(SM_THREADGROUP uchar* to, const SM_DEVICE uchar* from) {
  const uint at = (uint)(unsigned long)to;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(at), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" : : "r"(at), "l"(from), "n"(BYTES) : "memory");
  }
}
SM_INLINE void end_async_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
SM_INLINE void wait_for_async_copies() {
  asm volatile("cp.async.wait_group 0;" : : : "memory");
  __nvvm_bar_warp_sync(~0u);
}

SM_INLINE void threadgroup_barrier(mem_flags) { __nvvm_bar_sync(0); }
SM_INLINE void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(~0u); }

// Any trivially copyable value, 32 bits at a time.
template <class T, class F> SM_INLINE T sm_words(T v, F f) {
  constexpr int n = (sizeof(T) + 3) / 4;
  uint w[n] = {};
  __builtin_memcpy(w, &v, sizeof v);
  for (int i = 0; i < n; i++) w[i] = f(w[i]);
  __builtin_memcpy(&v, w, sizeof v);
  return v;
}
template <class T> SM_INLINE T simd_shuffle_xor(T v, ushort m) {
  return sm_words(v, [m](uint w) { return (uint)__nvvm_shfl_sync_bfly_i32(~0u, (int)w, m, 31); });
}
template <class T> SM_INLINE T simd_shuffle(T v, ushort l) {
  return sm_words(v, [l](uint w) { return (uint)__nvvm_shfl_sync_idx_i32(~0u, (int)w, l, 31); });
}
template <class T> SM_INLINE T simd_shuffle_down(T v, ushort d) {
  return sm_words(v, [d](uint w) { return (uint)__nvvm_shfl_sync_down_i32(~0u, (int)w, d, 31); });
}
template <class T> SM_INLINE T simd_shuffle_up(T v, ushort d) {
  return sm_words(v, [d](uint w) { return (uint)__nvvm_shfl_sync_up_i32(~0u, (int)w, d, 0); });
}
template <class T> SM_INLINE T simd_broadcast(T v, ushort l) { return simd_shuffle(v, l); }
template <class T> SM_INLINE T simd_broadcast_first(T v) { return simd_shuffle(v, 0); }
SM_INLINE ushort sm_lane() { return (ushort)__nvvm_read_ptx_sreg_laneid(); }
template <class T> SM_INLINE T simd_shuffle_rotate_down(T v, ushort d) { return simd_shuffle(v, (ushort)((sm_lane() + d) & 31)); }
template <class T> SM_INLINE T simd_shuffle_rotate_up(T v, ushort d) { return simd_shuffle(v, (ushort)((sm_lane() - d) & 31)); }

template <class T, class F> SM_INLINE T sm_reduce(T v, F f) {
  for (int m = 16; m > 0; m >>= 1) v = f(v, simd_shuffle_xor(v, (ushort)m));
  return v;
}
template <class T> SM_INLINE T simd_sum(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a + b); }); }
template <class T> SM_INLINE T simd_product(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a * b); }); }
template <class T> SM_INLINE T simd_max(T v) { return sm_reduce(v, [](T a, T b) { return max(a, b); }); }
template <class T> SM_INLINE T simd_min(T v) { return sm_reduce(v, [](T a, T b) { return min(a, b); }); }
SM_INLINE uint simd_sum(uint v) { return (uint)__nvvm_redux_sync_add((int)v, -1); }
SM_INLINE uint simd_max(uint v) { return (uint)__nvvm_redux_sync_umax(v, ~0u); }
SM_INLINE uint simd_min(uint v) { return (uint)__nvvm_redux_sync_umin(v, ~0u); }
template <class T> SM_INLINE T simd_and(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a & b); }); }
template <class T> SM_INLINE T simd_or(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a | b); }); }
template <class T> SM_INLINE T simd_xor(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a ^ b); }); }
SM_INLINE bool simd_any(bool v) { return __nvvm_vote_any_sync(~0u, v); }
SM_INLINE bool simd_all(bool v) { return __nvvm_vote_all_sync(~0u, v); }
template <class T> SM_INLINE T simd_prefix_inclusive_sum(T v) {
  for (int d = 1; d < 32; d <<= 1) { T o = simd_shuffle_up(v, (ushort)d); if (sm_lane() >= d) v = (T)(v + o); }
  return v;
}
template <class T> SM_INLINE T simd_prefix_exclusive_sum(T v) {
  T s = simd_shuffle_up(simd_prefix_inclusive_sum(v), 1);
  return sm_lane() == 0 ? (T)0 : s;
}
}  // namespace metal
