// Small sums over the ranks, for decode steps: every rank sends all it has to all others, and each
// adds up for itself, in float32 and in the order of the ranks. One way over the link and nothing
// else: a message of S bytes moves 2 S (world_size - 1) out of each GPU, as half of a line is its
// number. Behind it, in the same kernel, the residual addition and RMSNorm that every block of a
// layer ends with: a block a row, whose sum stays in registers.
#include <algorithm>

#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/peers/peer_kernels.h"
#include "backend/cuda/peers/peer_launch.cuh"

namespace nanovllm::cuda {
namespace {

// The float32 values of four or eight bytes.
__device__ inline void unpack(uint2 bits, float (&x)[4], __nv_bfloat16) {
  const float2 low = unpack_bfloat16(bits.x), high = unpack_bfloat16(bits.y);
  x[0] = low.x;
  x[1] = low.y;
  x[2] = high.x;
  x[3] = high.y;
}
__device__ inline void unpack(uint2 bits, float (&x)[2], float) {
  x[0] = __uint_as_float(bits.x);
  x[1] = __uint_as_float(bits.y);
}
__device__ inline uint2 pack(const float (&x)[4], __nv_bfloat16) {
  return {pack_bfloat16(x[0], x[1]), pack_bfloat16(x[2], x[3])};
}
__device__ inline uint2 pack(const float (&x)[2], float) {
  return {__float_as_uint(x[0]), __float_as_uint(x[1])};
}

// One thread's view of the exchange of a chunk: `slot` names a line of this block.
struct Exchange {
  const PeerGroup& group;
  uint32_t number;
  Patience patience;

  __device__ Line* line(int owner, int source, int slot) const {
    return &group.memory[owner]->lines[number % 2][blockIdx.x][source][slot];
  }
  __device__ void send_to_all(int slot, uint2 data) const {
    for (int i = 1; i < group.world_size; ++i) {
      int other = group.rank + i;  // the ranks begin with different links
      if (other >= group.world_size) other -= group.world_size;
      send(line(other, group.rank, slot), data, number);
    }
  }
  // The sum of what all ranks have sent for `slot`, rounded as it will be stored: so that a row
  // does not depend on which kernel adds it up.
  template <typename T, int n>
  __device__ void receive_sum(int slot, uint2 own, float (&sum)[n]) {
    for (int source = 0; source < group.world_size; ++source) {
      uint2 bits = own;
      if (source != group.rank) {
        receive(line(group.rank, source, slot), number, bits, patience);
      }
      float x[n];
      unpack(bits, x, T{});
#pragma unroll
      for (int e = 0; e < n; ++e) sum[e] = source == 0 ? x[e] : sum[e] + x[e];
    }
    unpack(pack(sum, T{}), sum, T{});
  }
};

// A block takes chunks of one line a thread.
template <typename T>
__global__ void __launch_bounds__(kPeerThreads)
    all_reduce_kernel(const __grid_constant__ PeerGroup group, T* x, int64_t num_elements) {
  constexpr int kValues = sizeof(uint2) / sizeof(T);
  release_successor();
  wait_for_predecessor();
  uint32_t& count = group.memory[group.rank]->num_line_exchanges[blockIdx.x];
  Exchange exchange{group, count, Patience(group)};
  const int64_t chunk = int64_t{kPeerThreads} * kValues;
  for (int64_t begin = blockIdx.x * chunk; begin < num_elements; begin += gridDim.x * chunk) {
    // Only when all threads of the block are done with the last number may the next be sent: one
    // that has nothing to send could otherwise find its line overwritten by the one after that.
    __syncthreads();
    exchange.number = next_number(exchange.number);
    const int64_t i = begin + threadIdx.x * kValues;
    if (i >= num_elements) continue;
    float sum[kValues] = {};
    if (i + kValues <= num_elements) {
      const uint2 own = *reinterpret_cast<const uint2*>(x + i);
      exchange.send_to_all(threadIdx.x, own);
      exchange.template receive_sum<T>(threadIdx.x, own, sum);
      *reinterpret_cast<uint2*>(x + i) = pack(sum, T{});
    } else {
      for (int e = 0; i + e < num_elements; ++e) sum[e] = load(x + i + e);
      const uint2 own = pack(sum, T{});
      exchange.send_to_all(threadIdx.x, own);
      exchange.template receive_sum<T>(threadIdx.x, own, sum);
      for (int e = 0; i + e < num_elements; ++e) store(x + i + e, sum[e]);
    }
  }
  __syncthreads();  // all threads have read the count
  if (threadIdx.x == 0) count = exchange.number;
}

// A block takes whole rows; a thread holds kPerThread vectors of 16 bytes, two lines each.
template <typename T, int kPerThread>
__global__ void __launch_bounds__(kPeerThreads)
    all_reduce_add_rms_norm_kernel(const __grid_constant__ PeerGroup group, T* out, float* residual,
                                   const T* x, const float* weight, int num_rows, int hidden,
                                   float eps) {
  constexpr int kHalf = sizeof(uint2) / sizeof(T);
  release_successor();
  wait_for_predecessor();
  uint32_t& count = group.memory[group.rank]->num_line_exchanges[blockIdx.x];
  Exchange exchange{group, count, Patience(group)};
  const auto element = [&](int j) {
    return (threadIdx.x + j * static_cast<int>(blockDim.x)) * 2 * kHalf;
  };
  const auto slot = [&](int j, int half) {
    return (2 * j + half) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  };
  for (int row = blockIdx.x; row < num_rows; row += gridDim.x) {
    exchange.number = next_number(exchange.number);
    const int64_t base = static_cast<int64_t>(row) * hidden;
    uint4 own[kPerThread];
    float value[kPerThread][2][kHalf];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      if (element(j) >= hidden) break;
      own[j] = *reinterpret_cast<const uint4*>(x + base + element(j));
      exchange.send_to_all(slot(j, 0), {own[j].x, own[j].y});
      exchange.send_to_all(slot(j, 1), {own[j].z, own[j].w});
    }
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      if (element(j) >= hidden) break;
      float* stored = residual + base + element(j);
      float old[2][kHalf];  // asked for before the wait
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < kHalf; e += 2) {
          const float2 pair = *reinterpret_cast<const float2*>(stored + half * kHalf + e);
          old[half][e] = pair.x;
          old[half][e + 1] = pair.y;
        }
      }
      exchange.template receive_sum<T>(slot(j, 0), {own[j].x, own[j].y}, value[j][0]);
      exchange.template receive_sum<T>(slot(j, 1), {own[j].z, own[j].w}, value[j][1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < kHalf; e += 2) {
          const float a = value[j][half][e] += old[half][e];
          const float b = value[j][half][e + 1] += old[half][e + 1];
          *reinterpret_cast<float2*>(stored + half * kHalf + e) = make_float2(a, b);
          squares += a * a + b * b;
        }
      }
    }
    const float scale = rsqrtf(block_sum(squares) / static_cast<float>(hidden) + eps);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      if (element(j) >= hidden) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = element(j) + half * kHalf;
#pragma unroll
        for (int e = 0; e < kHalf; ++e) value[j][half][e] *= scale * weight[i + e];
        *reinterpret_cast<uint2*>(out + base + i) = pack(value[j][half], T{});
      }
    }
  }
  if (threadIdx.x == 0) count = exchange.number;  // block_sum has synchronised the threads
}

}  // namespace

void launch_all_reduce_lines(const PeerQueue& queue, void* x, DType dtype, int64_t num_elements) {
  if (num_elements == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    constexpr int kValues = sizeof(uint2) / sizeof(T);
    const int blocks = std::min(kPeerBlocks, div_up(num_elements, kPeerThreads * kValues));
    launch_together(queue, all_reduce_kernel<T>, blocks, kPeerThreads, 0, queue.group,
                    static_cast<T*>(x), num_elements);
  });
}

void launch_all_reduce_add_rms_norm(const PeerQueue& queue, void* out, DType dtype, float* residual,
                                    const void* x, const float* weight, int num_rows, int hidden,
                                    float eps) {
  if (num_rows == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    const int vectors = hidden / static_cast<int>(sizeof(uint4) / sizeof(T));
    const int threads = std::min(kPeerThreads, div_up(vectors, 32) * 32);
    const auto run = [&](auto kernel) {
      launch_together(queue, kernel, std::min(kPeerBlocks, num_rows), threads, 0, queue.group,
                      static_cast<T*>(out), residual, static_cast<const T*>(x), weight, num_rows,
                      hidden, eps);
    };
    if (vectors <= kPeerThreads) {
      run(all_reduce_add_rms_norm_kernel<T, 1>);
    } else {
      run(all_reduce_add_rms_norm_kernel<T, 2>);
    }
  });
}

}  // namespace nanovllm::cuda
