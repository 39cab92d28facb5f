// What the engine itself costs: steps with a runner that computes nothing. The time of an iteration
// is one step's scheduling, input, token handling, text and outputs for all its sequences.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_core.h"

namespace nanovllm {
namespace {

constexpr int kPromptLength = 64;
constexpr const char* kTokenizer = NANOVLLM_SOURCE_DIR "/models/demo";

// Samples a fixed round of ids at once.
class IdleRunner : public Runner {
 public:
  int num_kvcache_blocks() const override { return 1 << 16; }
  void submit(const StepInput& input) override {
    done_.results.reserve(input.sequences.size());
    done_.sequences.reserve(input.sequences.size());
    for (const SequenceInput& sequence : input.sequences) {
      SequenceOutput& output = done_.sequences.emplace_back();
      if (!sequence.sample) continue;
      done_.results.emplace_back().token_id = next_++ % 1000 + 100;
      output.sampled = std::span(&done_.results.back(), 1);
    }
  }
  void draw(std::span<const SamplingRow> /*rows*/) override {}
  StepOutput collect() override { return std::move(done_); }
  void abandon() noexcept override {}

 private:
  StepOutput done_;
  int32_t next_ = 0;
};

EngineParts parts_of(int block_size, bool with_text) {
  EngineParts parts;
  parts.config.max_num_seqs = 1024;
  parts.config.kvcache_block_size = block_size;
  parts.info.max_model_len = 1 << 20;
  parts.info.vocab_size = 4096;
  parts.model_dir = "idle";
  parts.runner = std::make_unique<IdleRunner>();
  if (with_text) parts.tokenizer = Tokenizer::load(kTokenizer);
  return parts;
}

std::vector<int32_t> prompt_of(int length, int first, int step = 1) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) ids[i] = (first + i * step) % 4096;
  return ids;
}

// Arguments: sequences, block size, output kind, text or token ids only.
void decode(benchmark::State& state) {
  const auto num_sequences = static_cast<int>(state.range(0));
  EngineCore core(parts_of(static_cast<int>(state.range(1)), state.range(3) != 0));
  SamplingParams params;
  params.max_tokens = 1 << 20;
  params.output_kind = static_cast<RequestOutputKind>(state.range(2));
  for (int i = 0; i < num_sequences; ++i) {
    core.add_request(prompt_of(kPromptLength, i * 7), params);
  }
  for (int i = 0; i < 4; ++i) core.step();
  for (auto _ : state) benchmark::DoNotOptimize(core.step());
}

// One step takes in `sequences` prompts of `length` tokens, all of them cached or none.
void admit(benchmark::State& state) {
  const auto num_sequences = static_cast<int>(state.range(0));
  const auto length = static_cast<int>(state.range(1));
  const bool cached = state.range(2) != 0;
  EngineParts parts = parts_of(256, false);
  parts.config.max_num_batched_tokens = num_sequences * length;
  EngineCore core(std::move(parts));
  SamplingParams params;
  params.max_tokens = 1;
  params.output_kind = RequestOutputKind::kFinalOnly;
  int round = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (!cached) ++round;
    std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(num_sequences));
    for (int i = 0; i < num_sequences; ++i) {
      prompts[i] = prompt_of(length, i * 13, 1 + round % 4096);
    }
    state.ResumeTiming();
    for (auto& prompt : prompts) core.add_request(std::move(prompt), params);
    while (!core.is_finished()) core.step();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences * length);
}

constexpr auto kCumulative = static_cast<int64_t>(RequestOutputKind::kCumulative);
constexpr auto kDelta = static_cast<int64_t>(RequestOutputKind::kDelta);
constexpr auto kFinalOnly = static_cast<int64_t>(RequestOutputKind::kFinalOnly);

BENCHMARK(decode)
    ->ArgNames({"sequences", "block_size", "output_kind", "text"})
    ->Args({16, 256, kDelta, 1})
    ->Args({256, 256, kFinalOnly, 0})
    ->Args({256, 16, kFinalOnly, 0})
    ->Args({256, 256, kFinalOnly, 1})
    ->Args({256, 256, kDelta, 0})
    ->Args({256, 256, kDelta, 1})
    ->Args({1024, 256, kDelta, 1})
    ->Unit(benchmark::kMicrosecond);

// Copies all that was generated so far each time: grows with the length.
BENCHMARK(decode)
    ->Name("decode_cumulative")
    ->ArgNames({"sequences", "block_size", "output_kind", "text"})
    ->Args({256, 256, kCumulative, 1})
    ->Iterations(512)
    ->Unit(benchmark::kMicrosecond);

BENCHMARK(admit)
    ->ArgNames({"sequences", "length", "cached"})
    ->Args({256, 1024, 0})
    ->Args({256, 1024, 1})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace nanovllm

BENCHMARK_MAIN();
