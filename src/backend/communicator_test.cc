// The exchanges between the ranks of a tensor-parallel group: on the CPU, on as many GPUs as there
// are ranks, and on one GPU that all ranks share.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "backend/layer_tail_test_support.h"
#include "backend/registry.h"
#include "base/message.h"
#include "nanovllm/error.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm::test {
namespace {

struct Case {
  std::string name;
  std::string device;
  int world_size;
  bool share_a_gpu = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const std::string& device, int world_size) {
    all.push_back(
        {fmt::format("{}_{}", name, world_size), device, world_size, name == "cuda_shared"});
  };
  for (const int world_size : {1, 2, 3, 4, 8}) add("cpu", "cpu", world_size);
#ifdef NANOVLLM_WITH_CUDA
  for (const int world_size : {2, 3, 4}) add("cuda_shared", "cuda", world_size);
  for (const int world_size : {2, 4, 8}) add("cuda", "cuda", world_size);
#endif
  return all;
}

class Communicators : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
#ifdef NANOVLLM_WITH_CUDA
    const int needed = GetParam().share_a_gpu ? 1 : world_size();
    if (GetParam().device == "cuda" && CudaBackend::device_count() < needed) {
      GTEST_SKIP() << "this machine has " << CudaBackend::device_count() << " GPUs";
    }
#endif
  }
  int world_size() const { return GetParam().world_size; }

  // Calls f(rank, backend) on a thread of each rank.
  template <typename F>
  void on_all_ranks(F f) {
    group_ = make_group();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto backend = make_backend({.device = GetParam().device,
                                           .num_threads = 2 * world_size(),
                                           .num_ranks = GetParam().share_a_gpu ? 1 : world_size(),
                                           .rank = GetParam().share_a_gpu ? 0 : rank,
                                           .deterministic = deterministic_});
        group_->join(rank, *backend);
        EXPECT_EQ(backend->rank(), rank);
        EXPECT_EQ(backend->world_size(), world_size());
        f(rank, *backend);
      });
    }
    for (std::thread& thread : threads) thread.join();
    group_->check();
  }

  std::unique_ptr<CommunicatorGroup> make_group() const {
#ifdef NANOVLLM_WITH_CUDA
    if (GetParam().share_a_gpu) return std::make_unique<CudaCommunicatorGroup>(world_size());
#endif
    return make_communicator_group(GetParam().device, world_size());
  }
  // Where all ranks wait for each other.
  void meet(int rank) { group_->min_over_ranks(rank, 0); }

  // Calls f, or launches what a graph has recorded of it: the threads do not meet at each of its
  // calls then.
  template <typename F>
  static void run_at_once(Backend& backend, const F& f) {
    const auto graph = backend.capture(f);
    if (graph == nullptr) return f();
    backend.launch(*graph);
    backend.synchronize();
  }

  // What rank `rank` brings to call `call`: every rank can say it of every other.
  static HostTensor input(int call, int rank, DType dtype, int64_t rows, int64_t cols) {
    Random random(static_cast<uint32_t>(1000 * call + rank));
    return {random.floats(rows * cols, -2, 2), dtype, {rows, cols}};
  }
  // The sum of all ranks' inputs, added in the order of the ranks in float32.
  std::vector<float> sum(int call, DType dtype, int64_t rows, int64_t cols) const {
    std::vector<float> total(static_cast<size_t>(rows * cols));
    for (int rank = 0; rank < world_size(); ++rank) {
      const HostTensor x = input(call, rank, dtype, rows, cols);
      for (size_t i = 0; i < total.size(); ++i) total[i] += x.at(static_cast<int64_t>(i));
    }
    return total;
  }

  std::unique_ptr<CommunicatorGroup> group_;
  bool deterministic_ = false;
};

INSTANTIATE_TEST_SUITE_P(Devices, Communicators, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// Rows and columns: one element, odd sizes, whole decode and prefill steps.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},
                                                   {3, 7},
                                                   {1, 1024},
                                                   {1, 4096},
                                                   {5, 2056},
                                                   {37, 1023},
                                                   {full_or_reduced(64, 12), 4096},
                                                   {full_or_reduced(400, 70), 1024}};

TEST_P(Communicators, AllReduceAddsInTheOrderOfTheRanks) {
  on_all_ranks([&](int rank, Backend& backend) {
    int call = 0;
    for (const auto& [rows, cols] : kShapes) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        ++call;
        const DeviceTensor x = upload(backend, input(call, rank, dtype, rows, cols).view);
        backend.all_reduce(x.view);
        const HostTensor expected(sum(call, dtype, rows, cols), dtype, {rows, cols});
        expect_same_bits(download(backend, x.view).bytes, expected.bytes);
      }
    }
  });
}

TEST_P(Communicators, CallsInQuickSuccessionDoNotOverrunEachOther) {
  // A GPU has room for 128 kernels, and a rank's graph starts all of its own ahead of time: ranks
  // that share one must leave room for the last to begin.
  const int num_calls = GetParam().share_a_gpu ? 120 / (world_size() - 1) : 100;
  on_all_ranks([&](int rank, Backend& backend) {
    std::vector<DeviceTensor> tensors;
    const auto cols = [](int call) { return int64_t{8} << (call * 7 % 11); };
    for (int call = 0; call < num_calls; ++call) {
      tensors.push_back(upload(backend, input(call, rank, DType::kBFloat16, 1, cols(call)).view));
    }
    const DeviceTensor scratch = device_tensor(backend, DType::kBFloat16, {1, 8});
    backend.all_reduce(scratch.view);  // kernels are loaded outside graphs
    run_at_once(backend, [&] {
      for (const DeviceTensor& x : tensors) backend.all_reduce(x.view);
    });
    for (int call = 0; call < num_calls; ++call) {
      const HostTensor expected(sum(call, DType::kBFloat16, 1, cols(call)), DType::kBFloat16,
                                {1, cols(call)});
      expect_same_bits(download(backend, tensors[call].view).bytes, expected.bytes);
    }
  });
}

// A product of zeros, whose kernel depends on its rows and dtype.
class Product {
 public:
  Product(Backend& backend, int64_t rows, DType dtype)
      : in_(device_tensor(backend, dtype, {rows, kSize})),
        out_(device_tensor(backend, dtype, {rows, kSize})) {
    const std::vector<float> zeros(kSize * kSize);
    const HostMatrix piece{zeros.data(), DType::kFloat32, kSize, kSize, kSize};
    weight_ = backend.make_linear({&piece, 1}, nullptr, dtype);
    backend.synchronize();
  }
  void compute(Backend& backend) { backend.linear(out_.view, in_.view, *weight_); }

 private:
  static constexpr int64_t kSize = 512;
  DeviceTensor in_, out_;
  std::unique_ptr<LinearWeight> weight_;
};

// On GPUs both may wait for all that a device has been given, and to load a kernel takes a lock
// that all ranks share: no GPU may be given a call before the last rank is ready for it. Only the
// first product of a kind in a process loads kernels.
TEST_P(Communicators, RanksMayLoadKernelsAndFreeMemoryBesideALateOne) {
  on_all_ranks([&](int rank, Backend& backend) {
    int call = 0;
    for (const int rows : {1024, 64, 4096}) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
        const DeviceTensor x = upload(backend, input(call, rank, dtype, 8, 512).view);
        Product product(backend, GetParam().device == "cpu" ? 1 : rows, dtype);
        const auto load_and_free = [&] {
          product.compute(backend);
          backend.allocate(1 << 20);
        };
        meet(rank);
        const bool is_late = rank == (call + call / 2) % world_size();  // with either dtype
        if (is_late) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          load_and_free();
        }
        backend.all_reduce(x.view);
        if (!is_late) load_and_free();
        const HostTensor expected(sum(call, dtype, 8, 512), dtype, {8, 512});
        expect_same_bits(download(backend, x.view).bytes, expected.bytes);
        ++call;
      }
    }
  });
}

TEST_P(Communicators, AllReduceAddRmsNormIsThatOfTheSum) {
  on_all_ranks([&](int rank, Backend& backend) {
    int call = 0;
    for (const auto& [rows, cols] : kShapes) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        ++call;
        const DeviceTensor x = upload(backend, input(call, rank, dtype, rows, cols).view);
        const HostTensor residual = input(call, 100, DType::kFloat32, rows, cols);
        const DeviceTensor device_residual = upload(backend, residual.view);
        const std::vector<float> weight = Random(9).floats(cols, -2, 2);
        const auto device_weight = upload(backend, weight);
        const DeviceTensor out = device_tensor(backend, dtype, {rows, cols});
        backend.all_reduce_add_rms_norm(out.view, device_residual.view, x.view,
                                        static_cast<float*>(device_weight->data()), 1e-5f);
        std::vector<float> total = sum(call, dtype, rows, cols);
        for (size_t i = 0; i < total.size(); ++i) total[i] += residual.view.f32()[i];
        // The sum of the ranks may be rounded on its way to the residual.
        const double rounded = world_size() > 1 ? world_size() * 2 * rounding(dtype) : 0;
        const HostTensor actual = download(backend, device_residual.view);
        expect_close(actual, total, 1e-6, rounded + 1e-6);
        expect_close(download(backend, out.view), reference::rms_norm(actual.view, weight, 1e-5f),
                     rounding(dtype) + 2e-6, 0);
      }
    }
  });
}

// A few rows and many go different ways, which must not round differently.
TEST_P(Communicators, WithDeterministicARowIsTheSameInAnyCompany) {
  deterministic_ = true;
  constexpr int64_t kRows = 600, kCols = 1024;
  on_all_ranks([&](int rank, Backend& backend) {
    const auto weight = upload(backend, Random(9).floats(kCols, -2, 2));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const HostTensor x = input(1, rank, dtype, kRows, kCols);
      const HostTensor residual = input(2, 100, DType::kFloat32, kRows, kCols);
      // The normed row 0 and the residual it is of.
      const auto first_of = [&](int64_t rows) {
        const DeviceTensor device_x = upload(backend, x.view.first_rows(rows));
        const DeviceTensor device_residual = upload(backend, residual.view.first_rows(rows));
        const DeviceTensor out = device_tensor(backend, dtype, {rows, kCols});
        backend.all_reduce_add_rms_norm(out.view, device_residual.view, device_x.view,
                                        static_cast<float*>(weight->data()), 1e-5f);
        return std::pair(download(backend, out.view.first_rows(1)).bytes,
                         download(backend, device_residual.view.first_rows(1)).bytes);
      };
      const auto alone = first_of(1), among_many = first_of(kRows);
      expect_same_bits(alone.first, among_many.first);
      expect_same_bits(alone.second, among_many.second);
    }
  });
}

TEST_P(Communicators, NormAllHeadsIsThatOfAllRanksHeads) {
  on_all_ranks([&](int rank, Backend& backend) {
    const int rows = 5, q_width = 24, k_width = 16, width = q_width + 2 * k_width;
    const int ranks = world_size();
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::vector<float> ones(q_width, 1);
      const HostTensor mine = input(1, rank, dtype, rows, width);
      const DeviceTensor x = upload(backend, mine.view);
      const DeviceTensor means = device_tensor(backend, DType::kFloat32, {rows, 2});
      const auto weight = upload(backend, ones);
      const auto* w = static_cast<float*>(weight->data());
      backend.norm_all_heads(x.view, means.view, {w, w, q_width, k_width, 1e-5f});
      std::vector<float> wanted;
      for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t row = i / width, col = i % width;
        const bool is_query = col < q_width;
        const int64_t begin = row * width + (is_query ? 0 : q_width);
        const int64_t count = is_query ? q_width : k_width;
        double squares = 0;
        for (int other = 0; other < ranks; ++other) {
          const HostTensor theirs = input(1, other, dtype, rows, width);
          for (int64_t j = begin; j < begin + count; ++j) squares += std::pow(theirs.at(j), 2);
        }
        const double rms = std::sqrt(squares / static_cast<double>(count * ranks) + 1e-5);
        wanted.push_back(
            static_cast<float>(col < q_width + k_width ? mine.at(i) / rms : mine.at(i)));
      }
      expect_close(download(backend, x.view), wanted, rounding(dtype) + 2e-6, 0);
    }
  });
}

// Whether ranks have a kernel for the tails of layers that they share: one that takes a whole GPU.
bool shares_tails([[maybe_unused]] const Case& test) {
#ifdef NANOVLLM_WITH_CUDA
  return test.device == "cuda" && !test.share_a_gpu && has_tail_kernels();
#else
  return false;
#endif
}

constexpr TailShape kTinyLayer = {64, 64, 160, 128};
constexpr TailShape kOddLayer = {1152, 640, 12288, 4968, true, Activation::kGelu};
constexpr TailShape kLastLayer = {8192, 256, 1152, 0};

TEST_P(Communicators, LayerTailIsWhatItsStepsAre) {
  std::vector<HostTensor> residuals(world_size());
  on_all_ranks([&](int rank, Backend& backend) {
    const bool is_shared = shares_tails(GetParam());
    for (const TailShape& shape : {kTinyLayer, kLargeLayer, kOddLayer, kLastLayer}) {
      if (!is_shared && shape.hidden_size > kTinyLayer.hidden_size) continue;
      Random own(rank + 1), common(50);
      TailFixture layer(backend, DType::kBFloat16, shape, own, common);
      for (const int rows : {1, 8, 3}) {
        layer.begin(rows, own, common);
        const bool is_done = layer.run();
        // Sums that are too large for everybody's lines go another way.
        const bool is_small =
            rows * shape.hidden_size * 2 <= (512 << 10) / std::max(1, world_size() - 1);
        EXPECT_EQ(is_done, is_shared && shape.hidden_size % 128 == 0 && is_small);
        if (!is_done) continue;
        residuals[rank] = download(backend, layer.residual.view);
        meet(rank);
        expect_same_bits(residuals[rank].bytes, residuals[0].bytes);
        layer.expect_what_steps_give();
        meet(rank);
      }
    }
  });
}

// Launches follow each other, and those of all-reduces, as quickly as the GPUs can.
TEST_P(Communicators, LayerTailsRepeatThemselvesInGraphs) {
  if (!shares_tails(GetParam())) GTEST_SKIP() << "takes the steps one by one";
  on_all_ranks([&](int rank, Backend& backend) {
    Random own(rank + 1), common(50);
    TailFixture large(backend, DType::kBFloat16, kLargeLayer, own, common);
    TailFixture odd(backend, DType::kBFloat16, kOddLayer, own, common);
    large.begin(1, own, common);
    odd.begin(8, own, common);
    const DeviceTensor x = upload(backend, input(1, rank, DType::kBFloat16, 2, 4096).view);
    const auto run = [&] {
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(large.run());
      EXPECT_TRUE(odd.run());
      backend.all_reduce(x.view);
      EXPECT_TRUE(large.run());
      EXPECT_TRUE(odd.run());
    };
    const auto restart = [&] {
      large.restart();
      odd.restart();
    };
    run();
    std::vector<HostTensor> first;
    for (const TailFixture* layer : {&large, &odd}) {
      first.push_back(download(backend, layer->residual.view));
      first.push_back(download(backend, layer->out));
    }
    restart();
    const auto graph = backend.capture(run);
    for (int i = 0; i < 100; ++i) backend.launch(*graph);
    restart();
    backend.launch(*graph);
    size_t i = 0;
    for (const TailFixture* layer : {&large, &odd}) {
      expect_same_bits(download(backend, layer->residual.view).bytes, first[i++].bytes);
      expect_same_bits(download(backend, layer->out).bytes, first[i++].bytes);
    }
  });
}

TEST_P(Communicators, AllGatherPutsRowsSideBySide) {
  on_all_ranks([&](int rank, Backend& backend) {
    int call = 0;
    for (const auto& [rows, cols] : kShapes) {
      ++call;
      const DeviceTensor x = upload(backend, input(call, rank, DType::kFloat32, rows, cols).view);
      const DeviceTensor out = device_tensor(backend, DType::kFloat32, {rows, cols * world_size()});
      backend.all_gather(out.view, x.view);
      const HostTensor actual = download(backend, out.view);
      for (int other = 0; other < world_size(); ++other) {
        const HostTensor part = input(call, other, DType::kFloat32, rows, cols);
        for (int64_t row = 0; row < rows; ++row) {
          const auto bytes = static_cast<size_t>(cols) * sizeof(float);
          expect_same_bits(actual.row(row).subspan(other * bytes, bytes), part.row(row));
        }
      }
    }
  });
}

TEST_P(Communicators, TheSmallestValueIsThatOfAllRanks) {
  on_all_ranks([&](int rank, Backend&) {
    for (int call = 0; call < 20; ++call) {
      const int64_t value = 100 + (rank * 5 + call) % 7;
      int64_t expected = 1000;
      for (int other = 0; other < world_size(); ++other) {
        expected = std::min<int64_t>(expected, 100 + (other * 5 + call) % 7);
      }
      EXPECT_EQ(group_->min_over_ranks(rank, value), expected);
    }
  });
}

TEST_P(Communicators, ARankThatFailsReleasesTheOthers) {
  for (const bool in_graph : {false, true}) {
    std::atomic<int> released{0};
    std::latch all_went_well(world_size());  // so far: a slow rank must not meet the failure here
    const auto work = [&](int rank, Backend& backend) {
      Random own(rank + 1), common(50);
      const bool has_tails = shares_tails(GetParam());
      TailFixture layer(backend, DType::kBFloat16, has_tails ? kLargeLayer : kTinyLayer, own,
                        common);
      layer.begin(3, own, common);
      const DeviceTensor x = upload(backend, input(1, rank, DType::kBFloat16, 2, 4096).view);
      const auto exchange = [&] {
        if (!has_tails || !layer.run()) backend.all_reduce(x.view);
      };
      exchange();
      backend.synchronize();
      group_->check();
      const auto graph = in_graph ? backend.capture(exchange) : nullptr;
      all_went_well.arrive_and_wait();
      if (rank == world_size() - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return group_->abort();
      }
      const auto start = std::chrono::steady_clock::now();
      try {
#ifdef NANOVLLM_WITH_CUDA
        // The devices wait, and not the threads.
        if (graph != nullptr) dynamic_cast<CudaBackend&>(backend).launch_alone(*graph);
#endif
        if (graph == nullptr) exchange();
        backend.synchronize();
        group_->check();
      } catch (const Error&) {
        ++released;
      }
      // Before it has lost its patience, after 30 s.
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(25));
    };
    EXPECT_THROW(on_all_ranks(work), Error);
    EXPECT_EQ(released, world_size() - 1);
    group_ = nullptr;
  }
  // Nobody has written to memory of a rank that was gone: the devices still work.
  on_all_ranks([](int, Backend& backend) { backend.synchronize(); });
}

#ifdef NANOVLLM_WITH_CUDA
TEST(CommunicatorGroup, ASecondOneOfSeveralCudaRanksIsRefused) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "this machine has 0 GPUs";
  auto first = std::make_unique<CudaCommunicatorGroup>(2, CudaCommunicatorGroup::kMostLineBytes, 0,
                                                       "the engine of one");
  const CudaCommunicatorGroup alone(1);
  try {
    const CudaCommunicatorGroup second(2);
    FAIL() << "no Error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(
        std::string(error.what()).find("an engine with several GPUs already (the engine of one)"),
        std::string::npos)
        << error.what();
  }
  first = nullptr;
  EXPECT_NO_THROW(const CudaCommunicatorGroup second(2));
}

TEST(CommunicatorGroup, MoreRanksThanGpusAreRefused) {
  const int num_devices = CudaBackend::device_count();
  try {
    make_communicator_group("cuda", num_devices + 1);
    FAIL() << "no Error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what())
                  .find(fmt::format("this machine has {}", counted(num_devices, "GPU"))),
              std::string::npos)
        << error.what();
  }
}
#endif

}  // namespace
}  // namespace nanovllm::test
