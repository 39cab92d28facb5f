// Large sums and gathers over the ranks, of any size and in place: the ranks send each other the
// addresses of what they bring, and read and write there.
//
// all_reduce: each rank adds up its share of the elements, in float32 and in the order of the
// ranks, and writes the sum to all. A message of S bytes moves S (world_size - 1) / world_size over
// each link in, and as much again out. all_gather: each rank reads what it lacks.
//
// Reads come back a few microseconds later, so every thread has several under way.
#include <algorithm>

#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/peers/peer_kernels.h"
#include "backend/cuda/peers/peer_launch.cuh"

namespace nanovllm::cuda {
namespace {

// The beginning and the end of an exchange of one block; both are for all of its threads.
class AddressExchange {
 public:
  __device__ explicit AddressExchange(const PeerGroup& group)
      : group_(group),
        own_(*group.memory[group.rank]),
        number_(next_number(own_.num_address_exchanges[blockIdx.x])) {}

  // Sends `own` to all ranks and fills in addresses[world_size]. False when a rank has failed. What
  // the kernels before this one have written is there for all to read.
  __device__ bool begin(const void* own, char** addresses) {
    bool there = true;
    if (threadIdx.x < group_.world_size) {
      const auto bits = reinterpret_cast<uint64_t>(own);
      const uint2 data = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
      uint2 answer;
      Patience patience(group_);
      __threadfence_system();
      send(&group_.memory[threadIdx.x]->addresses[blockIdx.x][group_.rank], data, number_);
      there = receive(&own_.addresses[blockIdx.x][threadIdx.x], number_, answer, patience);
      __threadfence_system();
      addresses[threadIdx.x] =
          reinterpret_cast<char*>(uint64_t{answer.y} << 32 | uint64_t{answer.x});
    }
    const bool are_all_there = __syncthreads_and(there) != 0;
    // Not earlier, by any thread: where ranks share a GPU, successors would take the place of those
    // who are waited for.
    release_successor();
    return are_all_there;
  }

  // Waits until the same blocks of all ranks have come here: they read nothing more of this rank's,
  // and what they have written is there.
  __device__ void end() {
    __syncthreads();
    if (threadIdx.x < group_.world_size) {
      Patience patience(group_);
      __threadfence_system();
      volatile uint32_t* theirs = &group_.memory[threadIdx.x]->done[blockIdx.x][group_.rank];
      volatile uint32_t* mine = &own_.done[blockIdx.x][threadIdx.x];
      *theirs = number_;
      while (*mine != number_ && !patience.is_over()) {
      }
      __threadfence_system();
    }
    if (threadIdx.x == 0) own_.num_address_exchanges[blockIdx.x] = number_;
  }

 private:
  const PeerGroup& group_;
  PeerMemory& own_;
  const uint32_t number_;
};

// Adds up kTogether vectors of 16 bytes of every rank, kPeerThreads apart, and writes them to all.
template <typename T, int kTogether>
__device__ void add_vectors(int world_size, char* const* addresses, int64_t first) {
  constexpr int kVector = sizeof(uint4) / sizeof(T);
  float sum[kTogether][kVector];
  for (int source = 0; source < world_size; ++source) {
    const T* x = reinterpret_cast<const T*>(addresses[source]);
    float values[kTogether][kVector];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      load_vector(values[k], x + (first + k * kPeerThreads) * kVector);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        sum[k][e] = source == 0 ? values[k][e] : sum[k][e] + values[k][e];
      }
    }
  }
  for (int target = 0; target < world_size; ++target) {
    T* x = reinterpret_cast<T*>(addresses[target]);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      store_vector(x + (first + k * kPeerThreads) * kVector, sum[k]);
    }
  }
}

template <typename T, int kTogether>
__global__ void __launch_bounds__(kPeerThreads)
    all_reduce_exchange_kernel(const __grid_constant__ PeerGroup group, T* x,
                               int64_t num_elements) {
  constexpr int kVector = sizeof(uint4) / sizeof(T);
  __shared__ char* addresses[kMaxRanks];
  wait_for_predecessor();
  AddressExchange exchange(group);
  if (exchange.begin(x, addresses)) {
    const int64_t vectors = num_elements / kVector;
    const int64_t end = vectors * (group.rank + 1) / group.world_size;
    constexpr int64_t kBlockVectors = int64_t{kPeerThreads} * kTogether;
    int64_t i = vectors * group.rank / group.world_size + blockIdx.x * kBlockVectors;
    for (; i < end; i += gridDim.x * kBlockVectors) {
      if (i + kBlockVectors <= end) {
        add_vectors<T, kTogether>(group.world_size, addresses, i + threadIdx.x);
        continue;
      }
      for (int64_t v = i + threadIdx.x; v < end; v += kPeerThreads) {
        add_vectors<T, 1>(group.world_size, addresses, v);
      }
    }
    // What is left of the last vector is the last rank's.
    const int64_t last = vectors * kVector + threadIdx.x;
    if (group.rank == group.world_size - 1 && blockIdx.x == 0 && last < num_elements) {
      float sum = 0;
      for (int source = 0; source < group.world_size; ++source) {
        sum += load(reinterpret_cast<const T*>(addresses[source]) + last);
      }
      for (int target = 0; target < group.world_size; ++target) {
        store(reinterpret_cast<T*>(addresses[target]) + last, sum);
      }
    }
  }
  exchange.end();
}

// Rows of `units` elements of type Unit from each rank.
template <typename Unit>
__global__ void __launch_bounds__(kPeerThreads)
    all_gather_kernel(const __grid_constant__ PeerGroup group, Unit* out, const Unit* x,
                      int64_t num_rows, int64_t units) {
  constexpr int kTogether = 4;
  __shared__ char* addresses[kMaxRanks];
  wait_for_predecessor();
  AddressExchange exchange(group);
  if (exchange.begin(x, addresses)) {
    const int64_t total = num_rows * units * group.world_size;
    const int64_t threads = int64_t{gridDim.x} * kPeerThreads;
    const auto source = [&](int64_t i) {
      const int64_t part = i / units;  // row * world_size + rank
      const auto* from = reinterpret_cast<const Unit*>(addresses[part % group.world_size]);
      return from + part / group.world_size * units + i % units;
    };
    for (int64_t i = blockIdx.x * int64_t{kPeerThreads} + threadIdx.x; i < total;
         i += kTogether * threads) {
      Unit values[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (i + k * threads < total) values[k] = *source(i + k * threads);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (i + k * threads < total) out[i + k * threads] = values[k];
      }
    }
  }
  exchange.end();
}

}  // namespace

void launch_all_reduce_exchange(const PeerQueue& queue, void* x, DType dtype,
                                int64_t num_elements) {
  if (num_elements == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    constexpr int64_t kVector = sizeof(uint4) / sizeof(T);
    const int64_t vectors =
        num_elements / kVector / queue.group.world_size + 1;  // of a rank, at most
    const int blocks = std::min(kPeerBlocks, div_up(vectors, kPeerThreads));
    const bool one_each = vectors <= int64_t{kPeerBlocks} * kPeerThreads;
    launch_together(queue,
                    one_each ? all_reduce_exchange_kernel<T, 1> : all_reduce_exchange_kernel<T, 4>,
                    blocks, kPeerThreads, 0, queue.group, static_cast<T*>(x), num_elements);
  });
}

void launch_all_gather(const PeerQueue& queue, void* out, const void* x, int64_t num_rows,
                       int64_t row_bytes) {
  if (num_rows == 0 || row_bytes == 0) return;
  with_unit(static_cast<uint64_t>(row_bytes), [&]<typename Unit>(Unit) {
    const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
    const int blocks =
        std::min(kPeerBlocks, div_up(num_rows * units * queue.group.world_size, kPeerThreads));
    launch_together(queue, all_gather_kernel<Unit>, blocks, kPeerThreads, 0, queue.group,
                    static_cast<Unit*>(out), static_cast<const Unit*>(x), num_rows, units);
  });
}

}  // namespace nanovllm::cuda
