// A row stays on the chip between its two sweeps. A cluster of blocks (1, 2, 4 or 8) takes one row after another; block
// r of the cluster has the r-th part of the row. The shared memory of a block is one ring of slots. Its warps have
// roles, and all roles work on the ring at the same time, each on another slot:
//
//   producer   1 thread. Starts the bulk copies (TMA) of the next chunks into free slots, also those of the next row.
//   summers    8 warps. First sweep: each sums its share of a chunk once the chunk has arrived. At the end of the row
//              each warp sends its sums to all blocks of the cluster (st.async into distributed shared memory). A
//              cluster of one block stores them instead, since memcheck objects to st.async there.
//   judge      1 warp. Joins the sums of the row, computes log-prob and entropy, gets the gradient of the loss from
//              loss_math.h, and gives the writers the numbers that the second sweep needs. Also counts the metrics.
//   writers    8 warps. Second sweep: they read the slots and write gradients to global memory. The whole row has been
//              read by then, so the gradient may overwrite it.
//
// So loads, sums, gradients and stores of neighbouring rows overlap, and no barrier covers a whole block.
#include "ops/grpo_loss.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "common/dependent_launch.cuh"
#include "common/device_facts.h"
#include "common/rows.cuh"

namespace kc {
namespace {

constexpr int kWarp = 32;
constexpr int kSummers = 8;
constexpr int kWriters = 8;
constexpr int kProducerWarp = kSummers + kWriters;
constexpr int kJudgeWarp = kProducerWarp + 1;
constexpr int kThreads = kWarp * (kJudgeWarp + 1);
constexpr int kUnroll = 4;                   // packs of 16 bytes a lane takes of a slot
constexpr int kPartPacks = kUnroll * kWarp;  // packs a warp takes of a slot
constexpr int kMostSlots = 48;
// Number of rows whose sums and judgements fit into shared memory. Let k be the number of rows that a ring can hold.
// When a block sums row n, its own writers have finished row n - k. They needed the sums of all blocks for that row, so
// every block has summed row n - k, and, by the same argument, its judge has finished row n - 2k. So with kRows > 2k no
// message overwrites one that has not been read.
constexpr int kRows = 16;
constexpr int kMostRowsInRing = 7;

struct Layout {
  int cluster;      // blocks a row
  int block_packs;  // packs of a block's part of the row (the last block: at most)
  int chunks;       // chunks of that part
  int part_packs;   // packs of a warp's part of a chunk
  int slots;        // of the ring
  int bytes;        // of dynamic shared memory
};

struct alignas(16) WarpSums {
  float max, sum, weighted, target;
};

// The numbers of a row that a writer needs.
struct alignas(16) Judgement {
  RowGradient<float> gradient;
  float shifted;  // 2^(x c - shifted) is the size of an element's gradient if the entropy has no gradient
  uint32_t sign;  // its sign, as bits to flip in a pair of 16-bit floats
  int kind;       // 0: all zero, 1: without entropy's gradient, 2: with it
};

struct Shared {
  uint64_t full[kMostSlots];
  uint64_t empty[kMostSlots];
  uint64_t sums_here[kRows];
  uint64_t judged[kRows];
  Judgement judgements[kRows];
  double metrics[kLossMetrics];  // of one row, in the end of all rows that this block has judged
  bool is_last;                  // of all blocks of the grid
};

// Shared memory: Shared, WarpSums[kRows][cluster kSummers], ring.
constexpr int kSumsOffset = (sizeof(Shared) + 127) / 128 * 128;
KC_HOST_DEVICE int ring_offset(int cluster) {
  return kSumsOffset + kRows * cluster * kSummers * static_cast<int>(sizeof(WarpSums));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define KC_HAS_CLUSTERS 1
#endif

#ifdef KC_HAS_CLUSTERS
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void copy_in(uint32_t to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void send(WarpSums value, const WarpSums* to, const uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there, bell;\n"
      "mapa.shared::cluster.u32 there, %4, %6;\n"
      "mapa.shared::cluster.u32 bell, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%0, %1, %2, %3}, [bell];\n"
      "}" ::"f"(value.max),
      "f"(value.sum), "f"(value.weighted), "f"(value.target), "r"(shared_address(to)), "r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ int block_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
// A place in a ring and the parity of its barrier's phase there.
struct Place {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int size) {
    if (++index == size) {
      index = 0;
      parity ^= 1u;
    }
  }
};

// The rows of this cluster, one after another, including masked ones. All numbers of the next row are loaded before the
// current row is handled.
struct RowInfo {
  int64_t token, id;
  float temperature;
  bool active;

  // The pack that holds the token; none for an id below 0, for which the division would give the first pack.
  __device__ __forceinline__ int64_t target_pack(int pack_size) const { return id < 0 ? -1 : id / pack_size; }
};
template <class T>
__device__ __forceinline__ RowInfo row_info(const LogitRows<T>& rows, int64_t row, int64_t count) {
  if (row >= count) return {0, 0, 1.0f, false};
  const int64_t token = rows.tokens ? rows.tokens[row] : row;
  return {token, rows.ids[token], rows.temperature_of(token), !rows.mask || rows.mask[token]};
}
template <class T, class Visit>
__device__ __forceinline__ void for_rows(const LogitRows<T>& rows, int64_t count, const Layout& layout,
                                         const Visit& visit) {
  const int64_t step = gridDim.x / static_cast<unsigned>(layout.cluster);
  int64_t row = blockIdx.x / static_cast<unsigned>(layout.cluster);
  RowInfo info = row_info(rows, row, count);
  for (; row < count; row += step) {
    const RowInfo next = row_info(rows, row + step, count);
    visit(row, info);
    info = next;
  }
}

// The gradient of a pack of T: as many elements of O, which is T or narrower.
template <class T, class O>
struct OutPack {
  using Raw = std::conditional_t<sizeof(O) == sizeof(T), uint4, uint2>;
  __device__ __forceinline__ static Raw zeros() {
    if constexpr (sizeof(O) == sizeof(T))
      return make_uint4(0, 0, 0, 0);
    else
      return make_uint2(0, 0);
  }
  __device__ __forceinline__ static Raw pack(const float (&v)[Pack<T>::kCount]) {
    if constexpr (sizeof(O) == sizeof(T)) {
      return Pack<O>::pack(v);
    } else {
      const float wide[8] = {v[0], v[1], v[2], v[3], 0, 0, 0, 0};
      const uint4 packed = Pack<O>::pack(wide);
      return make_uint2(packed.x, packed.y);
    }
  }
  __device__ __forceinline__ static Raw flipped(Raw raw, uint32_t sign) {
    raw.x ^= sign;
    raw.y ^= sign;
    if constexpr (sizeof(O) == sizeof(T)) {
      raw.z ^= sign;
      raw.w ^= sign;
    }
    return raw;
  }
};

// This block's part of a row, and the pieces of it, in packs.
struct Part {
  int64_t begin;
  int packs;
  int chunks;
  int chunk_packs, warp_packs;

  __device__ Part(const Layout& layout, int64_t row_packs, int rank) {
    begin = static_cast<int64_t>(rank) * layout.block_packs;
    packs = static_cast<int>(min(static_cast<int64_t>(layout.block_packs), row_packs - begin));
    warp_packs = layout.part_packs;
    chunk_packs = warp_packs * kSummers;
    chunks = layout.chunks;
  }
  // Of chunk k; of warp w's share in it. May be 0 for the last block.
  __device__ __forceinline__ int chunk_size(int k) const { return max(0, min(chunk_packs, packs - k * chunk_packs)); }
  __device__ __forceinline__ int share_size(int k, int w) const {
    return max(0, min(warp_packs, packs - k * chunk_packs - w * warp_packs));
  }
};
#endif

#ifdef KC_HAS_CLUSTERS
// Called by the first block of each cluster when it has judged its rows: writes its part of the metrics. The last of
// these blocks also computes the loss and all metrics, adding the parts in a fixed order. `room` is shared memory for
// kProducerWarp kLossMetrics numbers.
__device__ void add_up(Shared& shared, double* room, const PolicyLossScratch& scratch,
                       const PolicyLossDeviceResult<float>& result, const Layout& layout) {
  const int thread = static_cast<int>(threadIdx.x), clusters = static_cast<int>(gridDim.x) / layout.cluster;
  const int cluster = static_cast<int>(blockIdx.x) / layout.cluster;
  if (thread < kLossMetrics) {
    scratch.partials[cluster * kLossMetrics + thread] = shared.metrics[thread];
    __threadfence();
  }
  __syncthreads();
  if (thread == 0)
    shared.is_last = atomicAdd(&scratch.counts[2], 1ull) + 1 == static_cast<unsigned long long>(clusters);
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  const int warp = thread / kWarp, lane = thread % kWarp;
  if (warp < kProducerWarp && lane < kLossMetrics) {
    double sum = 0;
    for (int c = warp; c < clusters; c += kProducerWarp) sum += __ldcg(&scratch.partials[c * kLossMetrics + lane]);
    room[warp * kLossMetrics + lane] = sum;
  }
  __syncthreads();
  if (thread < kLossMetrics)
    for (int w = 1; w < kProducerWarp; ++w) room[thread] += room[w * kLossMetrics + thread];
  __syncthreads();
  if (thread == 0) write_totals(room, scratch, result);
}
#endif

template <class T, class O>
__global__ void __launch_bounds__(kThreads, 1)
    fused_kernel(LogitRows<T> rows, int64_t count, TokenStats<float> stats, PolicyLossArgs<float> args, LossSpec spec,
                 PolicyLossScratch scratch, GradientRows<O> gradients, PolicyLossDeviceResult<float> result,
                 Layout layout) {
#ifdef KC_HAS_CLUSTERS
  constexpr int kPack = Pack<T>::kCount;
  constexpr float kFloor = Floor<T>::value;
  using Out = OutPack<T, O>;
  using OutRaw = typename Out::Raw;
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  auto* const sums = reinterpret_cast<WarpSums*>(memory + kSumsOffset);
  const int senders = layout.cluster * kSummers;  // of sums, each row
  const uint32_t ring = shared_address(memory) + static_cast<uint32_t>(ring_offset(layout.cluster));
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank = block_in_cluster();
  const Part part(layout, rows.vocab / kPack, rank);
  const int slot_bytes = part.chunk_packs * 16;

  if (threadIdx.x == 0) {
    for (int s = 0; s < layout.slots; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], kWriters);
    }
    for (int r = 0; r < kRows; ++r) {
      barrier_init(&shared.sums_here[r], layout.cluster == 1 ? kSummers : 1);
      barrier_init(&shared.judged[r], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();

  if (warp < kSummers) {
    Place slot, turn;
    for_rows(rows, count, layout, [&](int64_t, const RowInfo& info) {
      if (!info.active) return;
      const float c = log2_scale(info.temperature);
      const int64_t target_pack = info.target_pack(kPack) - part.begin;
      RowSums<float> mine{kFloor, 0, 0};
      float target = 0;
      for (int k = 0; k < part.chunks; ++k) {
        const int size = part.share_size(k, warp);
        const uint32_t share = ring + static_cast<uint32_t>(slot.index * slot_bytes + warp * part.warp_packs * 16);
        const int64_t target_in_share = target_pack - (k * part.chunk_packs + warp * part.warp_packs);
        barrier_wait(&shared.full[slot.index], slot.parity);
        uint4 raw[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int i = lane + u * kWarp;
          raw[u] = i < size ? load_shared(share + static_cast<uint32_t>(i) * 16) : Pack<T>::all_floor();
        }
        if (target_in_share >= 0 && target_in_share < size && target_in_share % kWarp == lane) {
          const int place = static_cast<int>(info.id % kPack);
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if (target_in_share / kWarp != u) continue;
            target = Pack<T>::element(raw[u], place);
            raw[u] = Pack<T>::replaced(raw[u], place, kFloor);
          }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) raw[u] = Pack<T>::floored(raw[u]);
        mine.template add<T>(raw, c);
        slot.advance(layout.slots);
      }
      mine = warp_merge(mine, c);
      target = warp_sum(target);
      if (layout.cluster == 1) {
        if (lane == 0) {
          sums[turn.index * senders + warp] = {mine.max, mine.sum, mine.weighted, target};
          barrier_arrive(&shared.sums_here[turn.index]);
        }
      } else if (lane < layout.cluster) {
        send({mine.max, mine.sum, mine.weighted, target}, &sums[turn.index * senders + rank * kSummers + warp],
             &shared.sums_here[turn.index], lane);
      }
      turn.advance(kRows);
    });
  } else if (warp < kProducerWarp) {
    const int w = warp - kSummers;
    Place slot, turn;
    for_rows(rows, count, layout, [&](int64_t row, const RowInfo& info) {
      O* out = gradients.data + gradients.places.of(row) + part.begin * kPack;
      const auto write_zeros = [&](int k) {
        auto* to = reinterpret_cast<OutRaw*>(out) + k * part.chunk_packs + w * part.warp_packs;
        for (int i = lane; i < part.share_size(k, w); i += kWarp) __stcs(to + i, Out::zeros());
      };
      if (!info.active) {
        for (int k = 0; k < part.chunks; ++k) write_zeros(k);
        return;
      }
      barrier_wait(&shared.judged[turn.index], turn.parity);
      const Judgement judged = shared.judgements[turn.index];
      const RowGradient<float> gradient = judged.gradient;
      const int64_t target_pack = info.target_pack(kPack) - part.begin;
      for (int k = 0; k < part.chunks; ++k) {
        const int size = part.share_size(k, w);
        if (judged.kind == 0) {
          write_zeros(k);
          if (lane == 0) barrier_arrive(&shared.empty[slot.index]);
          slot.advance(layout.slots);
          continue;
        }
        const uint32_t share = ring + static_cast<uint32_t>(slot.index * slot_bytes + w * part.warp_packs * 16);
        const int64_t target_in_share = target_pack - (k * part.chunk_packs + w * part.warp_packs);
        barrier_wait(&shared.full[slot.index], slot.parity);
        uint4 raw[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int i = lane + u * kWarp;
          raw[u] = i < size ? load_shared(share + static_cast<uint32_t>(i) * 16) : make_uint4(0, 0, 0, 0);
        }
        __syncwarp();  // the slot has been read, so it may be filled again while its gradient is computed
        if (lane == 0) barrier_arrive(&shared.empty[slot.index]);
        auto* to = reinterpret_cast<OutRaw*>(out) + k * part.chunk_packs + w * part.warp_packs;
        const bool has_target = target_in_share >= 0 && target_in_share < size && target_in_share % kWarp == lane;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          float v[kPack];
          Pack<T>::unpack(raw[u], v);
          OutRaw packed;
          if (sizeof(O) == 2 && judged.kind == 1) {
#pragma unroll
            for (float& x : v) x = exp2_fast(fmaf(x, gradient.c, -judged.shifted));
            packed = Out::flipped(Out::pack(v), judged.sign);
          } else {
#pragma unroll
            for (float& x : v) x = gradient.of(x, kFloor);
            packed = Out::pack(v);
          }
          const int i = lane + u * kWarp;
          if (i < size) __stcs(to + i, packed);
        }
        if (has_target)  // after the packs, by the lane that wrote this one
          store_narrow(reinterpret_cast<O*>(to + target_in_share) + info.id % kPack, gradient.own);
        slot.advance(layout.slots);
      }
      turn.advance(kRows);
    });
  } else if (warp == kProducerWarp) {
    if (lane == 0) {
      Place slot;
      slot.parity = 1;  // all slots are free
      for_rows(rows, count, layout, [&](int64_t row, const RowInfo& info) {
        if (!info.active) return;
        const T* from = rows.logits + rows.places.of(row) + part.begin * kPack;
        for (int k = 0; k < part.chunks; ++k) {
          const int bytes = part.chunk_size(k) * 16;
          barrier_wait(&shared.empty[slot.index], slot.parity);
          barrier_expect(&shared.full[slot.index], bytes);
          if (bytes > 0)
            copy_in(ring + static_cast<uint32_t>(slot.index * slot_bytes), from + k * part.chunk_packs * kPack, bytes,
                    &shared.full[slot.index]);
          slot.advance(layout.slots);
        }
      });
    }
  } else {
    double metric = 0;  // lane m adds up metric m
    Place turn;
    wait_for_previous_kernel();  // it counts the sequences
    for_rows(rows, count, layout, [&](int64_t, const RowInfo& info) {
      const int64_t token_id = info.token;
      if (!info.active) {
        if (rank == 0 && lane == 0) {
          stats.logprobs[token_id] = stats.entropy[token_id] = stats.max[token_id] = stats.sum[token_id] = 0;
          if (gradients.by_logprobs) gradients.by_logprobs[token_id] = 0;
          if (gradients.by_entropy) gradients.by_entropy[token_id] = 0;
        }
        return;
      }
      // The inputs of the loss are loaded while the row is summed.
      const int64_t sequence = scratch.sequence_of[token_id];
      LossToken<double> token = load_token<double>(args, spec, token_id, sequence, 0.0, 0.0);
      const double weight = weight_on_device(args, spec, scratch, sequence);
      const float c = log2_scale(info.temperature);
      if (layout.cluster > 1 && lane == 0)
        barrier_expect(&shared.sums_here[turn.index], senders * static_cast<int>(sizeof(WarpSums)));
      __syncwarp();
      barrier_wait(&shared.sums_here[turn.index], turn.parity);
      RowSums<float> all{kFloor, 0, 0};
      float target = 0;
      for (int i = lane; i < senders; i += kWarp) {
        const WarpSums part_sums = sums[turn.index * senders + i];
        all.merge({part_sums.max, part_sums.sum, part_sums.weighted}, c);
        target += part_sums.target;
      }
      all = warp_merge(all, c);
      target = warp_sum(target);
      if (info.id < 0 || info.id >= rows.vocab) target = nanf("");
      const RowResult<float> row = finish_row(all, target, info.temperature, kFloor);
      if (lane == 0) {
        const double logprob = static_cast<double>(row.logprob);
        const bool own_old = !args.old_logprobs || (spec.ratio_to_rollout && !token.has_rollout);
        token.logprob = logprob;
        if (own_old) token.old = logprob;
        token.entropy = static_cast<double>(row.entropy);
        const TokenTerms<double> terms = token_terms(spec, token, SequenceState<double>{});
        // As policy_loss rounds them.
        const auto g = static_cast<float>(weight * terms.grad_own), h = static_cast<float>(weight * terms.grad_entropy);
        Judgement judged;
        judged.gradient = row_gradient(row, g, h, info.temperature);
        judged.kind = g == 0 && h == 0 ? 0 : (h == 0 ? 1 : 2);
        const float size = judged.gradient.scale * judged.gradient.constant;
        judged.shifted = judged.gradient.max * judged.gradient.c - log2f(fabsf(size));
        judged.sign = size < 0 ? 0x80008000u : 0u;
        shared.judgements[turn.index] = judged;
        barrier_arrive(&shared.judged[turn.index]);
        if (rank == 0) {
          stats.logprobs[token_id] = row.logprob;
          stats.entropy[token_id] = row.entropy;
          stats.max[token_id] = row.max;
          stats.sum[token_id] = row.sum;
          if (gradients.by_logprobs) gradients.by_logprobs[token_id] = g;
          if (gradients.by_entropy) gradients.by_entropy[token_id] = h;
          if (result.loss) token_metrics<float>(shared.metrics, token, terms, weight, weight * terms.grad_own);
        }
      }
      __syncwarp();
      if (result.loss && rank == 0 && lane < kLossMetrics) metric += shared.metrics[lane];
      __syncwarp();
      turn.advance(kRows);
    });
    if (lane < kLossMetrics) shared.metrics[lane] = metric;
  }
  __syncwarp();
  cluster_sync();  // no block ends while another one may still write to its memory
  if (result.loss && rank == 0)
    add_up(shared, reinterpret_cast<double*>(memory + ring_offset(layout.cluster)), scratch, result, layout);
#endif
}

struct CudaRuntime {
  [[nodiscard]] static int current(int* device) { return cudaGetDevice(device); }
  [[nodiscard]] static int ask(int device, DeviceFacts* facts) {
    if (const int error = cudaDeviceGetAttribute(&facts->multiprocessors, cudaDevAttrMultiProcessorCount, device))
      return error;
    if (const int error = cudaDeviceGetAttribute(&facts->major, cudaDevAttrComputeCapabilityMajor, device))
      return error;
    return cudaDeviceGetAttribute(&facts->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
};

[[nodiscard]] int current_device(DeviceFacts* facts) {
  return current_device_facts<CudaRuntime>(facts);
}

// The result is cached, because cudaOccupancyMaxActiveClusters takes longer than a launch and a training run has only
// one or two shapes.
template <class T, class O>
int resident_clusters(const cudaLaunchConfig_t& config, const Layout& layout, int* clusters) {
  static thread_local struct {
    int device = -1, cluster = 0, bytes = 0, clusters = 0;
  } last;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (last.device != device || last.cluster != layout.cluster || last.bytes != layout.bytes) {
    if (const cudaError_t error =
            cudaFuncSetAttribute(fused_kernel<T, O>, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes))
      return error;
    if (const cudaError_t error = cudaOccupancyMaxActiveClusters(&last.clusters, fused_kernel<T, O>, &config))
      return error;
    last.device = device;
    last.cluster = layout.cluster;
    last.bytes = layout.bytes;
  }
  *clusters = last.clusters;
  return cudaSuccess;
}

// Parts begin at multiples of 512 bytes of their row, so that no two warps write to the same cache line and every full
// load and store of a warp is one such piece. Parts that share cache lines cost 7%.
constexpr int kPiecePacks = 32;
constexpr int64_t round_up(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

// Chooses the smallest cluster whose ring holds a block's part of a row one and a half times. Fewer blocks for each row
// are better, since the parts wait for each other (measured on an H200, docs/cuda_kernels.md). Returns false if there
// is none, or if a row is so short that the ring would hold too many rows.
bool make_layout(int64_t row_packs, int shared_bytes, Layout& layout) {
  for (const int cluster : {1, 2, 4, 8}) {
    const int64_t block_packs = round_up((row_packs + cluster - 1) / cluster, kPiecePacks);
    const int64_t most_chunk = kPartPacks * kSummers;
    const int64_t chunks = std::max<int64_t>(3, (block_packs + most_chunk - 1) / most_chunk);
    const int64_t part_packs = round_up((block_packs + chunks * kSummers - 1) / (chunks * kSummers), kPiecePacks);
    const int64_t slot_packs = part_packs * kSummers;
    const int64_t slots = std::min<int64_t>(kMostSlots, (shared_bytes - ring_offset(cluster)) / (slot_packs * 16));
    if (slots / chunks >= kMostRowsInRing) return false;
    if (slots * slot_packs * 2 < block_packs * 3) continue;
    const auto bytes = static_cast<int>(ring_offset(cluster) + slots * slot_packs * 16);
    layout = {cluster,
              static_cast<int>(block_packs),
              static_cast<int>(chunks),
              static_cast<int>(part_packs),
              static_cast<int>(slots),
              bytes};
    return true;
  }
  return false;
}

// KC_CLUSTER_KERNELS=never uses the kernels for older GPUs, for tests and for comparison.
bool clusters_are_allowed() {
  const char* const use = std::getenv("KC_CLUSTER_KERNELS");
  return !use || std::strcmp(use, "never") != 0;
}

}  // namespace

template <class T, class O>
bool can_fuse_loss_gradient(const LogitRows<T>& rows, int64_t count, const LossSpec& spec,
                            const GradientRows<O>& gradients) {
  if constexpr (sizeof(T) == 8) {
    return false;
  } else {
    DeviceFacts device;
    if (current_device(&device)) return false;  // the launch of the other kernels reports why
    const auto aligned = [](const auto* data, const RowPlaces& places) {
      const auto bytes = static_cast<int64_t>(sizeof(*data));
      return reinterpret_cast<uintptr_t>(data) % 16 == 0 && places.stride * bytes % 16 == 0 &&
             (places.inner == 0 || places.outer_stride * bytes % 16 == 0);
    };
    Layout layout;
    return device.major >= 9 && clusters_are_allowed() && splits_sequences(spec) && count > 0 &&
           rows.vocab % Pack<T>::kCount == 0 && aligned(rows.logits, rows.places) &&
           aligned(gradients.data, gradients.places) &&
           make_layout(rows.vocab / Pack<T>::kCount, device.shared_bytes, layout);
  }
}

template <class T, class O>
int launch_fused_loss_gradient(const LogitRows<T>& rows, int64_t count, const TokenStats<Accumulator<T>>& stats,
                               const PolicyLossArgs<Accumulator<T>>& args, const LossSpec& spec,
                               const PolicyLossScratch& scratch, const GradientRows<O>& gradients,
                               const PolicyLossDeviceResult<Accumulator<T>>& result, bool follows_count, void* stream) {
  if constexpr (sizeof(T) == 8) {
    return cudaErrorNotSupported;
  } else {
    DeviceFacts device;
    if (const int error = current_device(&device)) return error;
    Layout layout;
    if (!make_layout(rows.vocab / Pack<T>::kCount, device.shared_bytes, layout)) return cudaErrorNotSupported;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(layout.cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(layout.bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = 1;
    // The number of multiprocessors of a graphics processing cluster (GPC) may not be a multiple of C.
    config.gridDim = dim3(static_cast<unsigned>(device.multiprocessors / layout.cluster * layout.cluster));
    int resident = 0;
    if (const int error = resident_clusters<T, O>(config, layout, &resident)) return error;
    if (follows_count) config.numAttrs = 2;
    const int64_t clusters = std::min<int64_t>(std::max(1, resident), count);
    config.gridDim = dim3(static_cast<unsigned>(clusters * layout.cluster));
    return cudaLaunchKernelEx(&config, fused_kernel<T, O>, rows, count, stats, args, spec, scratch, gradients, result,
                              layout);
  }
}

namespace {

constexpr int kScaleThreads = 256;

// A few blocks handle all rows, so that the launch costs little if there is nothing to do.
template <class T>
__global__ void __launch_bounds__(kScaleThreads)
    scale_kernel(T* gradient, int64_t count, int64_t vocab, RowPlaces places, const Accumulator<T>* factor) {
  const Accumulator<T> by = *factor;
  if (by == Accumulator<T>(1)) return;
  constexpr int kPack = Pack<T>::kCount;
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    T* x = gradient + places.of(row);
    const int64_t packs = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? vocab / kPack : 0;
    auto* body = reinterpret_cast<uint4*>(x);
    for (int64_t i = threadIdx.x; i < packs; i += kScaleThreads) {
      Accumulator<T> v[kPack];
      Pack<T>::unpack(body[i], v);
#pragma unroll
      for (auto& value : v) value *= by;
      body[i] = Pack<T>::pack(v);
    }
    for (int64_t j = packs * kPack + threadIdx.x; j < vocab; j += kScaleThreads)
      store_narrow(x + j, load_wide(x + j) * by);
  }
}

}  // namespace

template <class T>
int launch_scale_gradient(T* gradient, int64_t count, int64_t vocab, const RowPlaces& places,
                          const Accumulator<T>* factor, void* stream) {
  if (count == 0 || vocab == 0) return cudaSuccess;
  DeviceFacts device;
  if (const int error = current_device(&device)) return error;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(device.multiprocessors * 8, count));
  scale_kernel<T>
      <<<blocks, kScaleThreads, 0, static_cast<cudaStream_t>(stream)>>>(gradient, count, vocab, places, factor);
  return cudaGetLastError();
}

#define KC_INSTANTIATE_FUSED(T, O)                                                                                   \
  template bool can_fuse_loss_gradient<T, O>(const LogitRows<T>&, int64_t, const LossSpec&, const GradientRows<O>&); \
  template int launch_fused_loss_gradient<T, O>(const LogitRows<T>&, int64_t, const TokenStats<Accumulator<T>>&,     \
                                                const PolicyLossArgs<Accumulator<T>>&, const LossSpec&,              \
                                                const PolicyLossScratch&, const GradientRows<O>&,                    \
                                                const PolicyLossDeviceResult<Accumulator<T>>&, bool, void*);
#define KC_INSTANTIATE(T)    \
  KC_INSTANTIATE_FUSED(T, T) \
  template int launch_scale_gradient<T>(T*, int64_t, int64_t, const RowPlaces&, const Accumulator<T>*, void*);
KC_INSTANTIATE(float)
KC_INSTANTIATE(double)
KC_INSTANTIATE(BFloat16)
KC_INSTANTIATE(Float16)
KC_INSTANTIATE_FUSED(float, BFloat16)
#undef KC_INSTANTIATE
#undef KC_INSTANTIATE_FUSED

}  // namespace kc
