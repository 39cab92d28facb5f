// The properties that the engine builds on: what a sequence gets depends on nothing but itself.
// Over the tiny checkpoints of tests/goldens, whose numbers the tests of models check.
#include "runner/model_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/testing.h"
#include "io/testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;
using nanovllm::testing::error_of;
using nanovllm::testing::golden_dir;

constexpr int kBlockSize = 16;
constexpr int kNumBlocks = 64;

EngineConfig small_config(const std::string& dtype, int num_threads) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = dtype;
  config.num_threads = num_threads;
  config.kvcache_block_size = kBlockSize;
  config.num_kvcache_blocks = kNumBlocks;
  config.max_num_seqs = 16;
  config.max_num_batched_tokens = 512;
  return config;
}

std::unique_ptr<Runner> load(const std::string& name, const EngineConfig& config) {
  EngineInfo info;
  return make_model_runner(load_model_config(golden_dir(name)), config, info);
}

Ids random_ids(int count, uint32_t seed) {
  std::mt19937 rng(seed);
  Ids ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 380);
  return ids;
}

// A block table in which each group has a block of its own in the place of each of `blocks`, but
// for those that no token from `first_new` on sees.
Ids table_of(const Ids& blocks, std::span<const int> windows, int first_new) {
  Ids table;
  for (int row = 0; row < std::ssize(blocks); ++row) {
    for (int group = 0; group < std::ssize(windows); ++group) {
      const int window = windows[group];
      const bool is_seen = window == 0 || (row + 1) * kBlockSize > first_new - window + 1;
      table.push_back(is_seen ? blocks[row] + group * kNumBlocks : -1);
    }
  }
  return table;
}

// A sequence as the engine would keep it, computed `chunk` tokens a step.
struct Request {
  Ids token_ids;
  Ids blocks;
  int chunk = 1 << 20;
  int kv_write_begin = 0;
  SamplingRow sampling = {.temperature = 0, .num_logprobs = 8};
  int num_prompt_logprobs = -1;

  int num_prompt_tokens = static_cast<int>(token_ids.size());
  int num_computed = 0;
  std::vector<SamplingResult> sampled = {};
  std::vector<SamplingResult> prompt_logprobs = {};
  Ids table = {};

  SequenceInput input(std::span<const int> windows) {
    const int total = static_cast<int>(token_ids.size());
    table = table_of(blocks, windows, num_computed);
    SequenceInput in{.token_ids = token_ids,
                     .num_computed_tokens = num_computed,
                     .num_new_tokens = std::min(chunk, total - num_computed),
                     .kv_write_begin = kv_write_begin,
                     .block_table = table};
    in.sample = in.num_computed_tokens + in.num_new_tokens == total;
    if (num_prompt_logprobs >= 0) {
      in.prompt_logprobs_begin = 1;
      in.prompt_logprobs_end = num_prompt_tokens;
      in.num_prompt_logprobs = num_prompt_logprobs;
    }
    return in;
  }
  SamplingRow row() const {
    SamplingRow row = sampling;
    row.position = token_ids.size();
    row.prompt_ids = std::span(token_ids).first(num_prompt_tokens);
    row.output_ids = std::span(token_ids).subspan(num_prompt_tokens);
    return row;
  }
  void take(const SequenceOutput& output, int num_new_tokens) {
    num_computed += num_new_tokens;
    for (const SamplingResult& r : output.prompt_logprobs) prompt_logprobs.push_back(r);
    for (const SamplingResult& r : output.sampled) {
      token_ids.push_back(r.token_id);
      sampled.push_back(r);
    }
  }
};

// One step for all of them, decodes first as the scheduler sends them.
void step(Runner& runner, std::vector<Request*> requests) {
  const auto windows = runner.kv_windows();
  std::stable_partition(requests.begin(), requests.end(),
                        [&](Request* r) { return r->input(windows).num_new_tokens == 1; });
  StepInput input;
  std::vector<SamplingRow> rows;
  for (Request* r : requests) {
    input.sequences.push_back(r->input(windows));
    if (input.sequences.back().sample) rows.push_back(r->row());
  }
  runner.submit(input);
  runner.draw(rows);
  const StepOutput output = runner.collect();
  ASSERT_EQ(output.sequences.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(output.sequences[i].sampled.size(), input.sequences[i].sample ? 1U : 0U);
    requests[i]->take(output.sequences[i], input.sequences[i].num_new_tokens);
  }
}

void generate(Runner& runner, Request& request, size_t num_tokens) {
  while (request.sampled.size() < num_tokens) step(runner, {&request});
}

Ids block_range(int begin, int end) {
  Ids blocks;
  for (int b = begin; b < end; ++b) blocks.push_back(b);
  return blocks;
}

// The same bits, not merely close.
void expect_same(const std::vector<SamplingResult>& results,
                 const std::vector<SamplingResult>& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].token_id, expected[i].token_id) << "token " << i;
    ASSERT_EQ(results[i].logprobs.size(), expected[i].logprobs.size());
    for (size_t k = 0; k < results[i].logprobs.size(); ++k) {
      EXPECT_EQ(results[i].logprobs[k].token_id, expected[i].logprobs[k].token_id);
      EXPECT_EQ(results[i].logprobs[k].logprob, expected[i].logprobs[k].logprob) << "token " << i;
    }
  }
}

struct Case {
  std::string checkpoint;
  std::string dtype;
};

class ModelRunnerEqualities : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kPromptTokens = 61;
  static constexpr size_t kNewTokens = 12;

  Request request() const {
    return {.token_ids = random_ids(kPromptTokens, 1), .blocks = block_range(0, 8)};
  }
  std::unique_ptr<Runner> runner(int num_threads = 1) const {
    EngineConfig config = small_config(GetParam().dtype, num_threads);
    config.num_kvcache_blocks = 3 * kNumBlocks;  // no checkpoint here has more groups of layers
    return load(GetParam().checkpoint, config);
  }
};

TEST_P(ModelRunnerEqualities, ChunkSizesChangeNothing) {
  const auto r = runner();
  Request whole = request();
  whole.num_prompt_logprobs = 4;
  generate(*r, whole, kNewTokens);
  EXPECT_EQ(whole.prompt_logprobs.size(), kPromptTokens - 1U);
  for (const int chunk : {1, 2, 7, 16, 60}) {
    SCOPED_TRACE(::testing::Message() << "chunks of " << chunk);
    Request chunked = request();
    chunked.chunk = chunk;
    chunked.num_prompt_logprobs = 4;
    generate(*r, chunked, kNewTokens);
    expect_same(chunked.sampled, whole.sampled);
    expect_same(chunked.prompt_logprobs, whole.prompt_logprobs);
  }
}

TEST_P(ModelRunnerEqualities, WhichBlocksASequenceHasChangesNothing) {
  const auto r = runner();
  Request first = request();
  generate(*r, first, kNewTokens);
  Request other = request();
  other.blocks = {63, 5, 40, 8, 0, 22};
  generate(*r, other, kNewTokens);
  expect_same(other.sampled, first.sampled);
}

TEST_P(ModelRunnerEqualities, BatchMatesChangeNothing) {
  const auto r = runner();
  Request alone = request();
  generate(*r, alone, kNewTokens);
  // Mates before and behind it, prompts and decodes, that come and go.
  std::vector<Request> mates;
  for (int m = 0; m < 5; ++m) {
    mates.push_back({.token_ids = random_ids(1 + 23 * m, 100 + m),
                     .blocks = block_range(8 + 8 * m, 16 + 8 * m),
                     .chunk = 9 + m});
  }
  Request together = request();
  together.chunk = 10;
  for (int i = 0; together.sampled.size() < kNewTokens; ++i) {
    std::vector<Request*> batch;
    for (int m = 0; m < 5; ++m) {
      if (m == 2) batch.push_back(&together);
      if ((i + m) % 3 != 0) batch.push_back(&mates[m]);
    }
    step(*r, batch);
  }
  expect_same(together.sampled, alone.sampled);
}

TEST_P(ModelRunnerEqualities, ThreadsChangeNothing) {
  Request one = request();
  one.num_prompt_logprobs = 2;
  generate(*runner(1), one, kNewTokens);
  for (const int num_threads : {2, 3}) {
    Request more = request();
    more.num_prompt_logprobs = 2;
    generate(*runner(num_threads), more, kNewTokens);
    expect_same(more.sampled, one.sampled);
    expect_same(more.prompt_logprobs, one.prompt_logprobs);
  }
}

TEST_P(ModelRunnerEqualities, RecomputingAStoredTokenWritesNothing) {
  const auto r = runner();
  Request first = request();
  first.token_ids.resize(48);
  first.num_prompt_tokens = 48;
  generate(*r, first, 1);
  // A fully cached prompt computes its last token again, in blocks that others read.
  Request cached = request();
  cached.token_ids.resize(48);
  cached.num_prompt_tokens = 48;
  cached.num_computed = 47;
  cached.kv_write_begin = 48;
  cached.blocks = {0, 1, 2, 30, 31};
  // Were position 47 written, this would spoil the first sequence's block.
  Request spoiler = cached;
  spoiler.token_ids[47] = (cached.token_ids[47] + 1) % 380;
  step(*r, {&spoiler});
  generate(*r, cached, kNewTokens);
  generate(*r, first, kNewTokens);
  expect_same(cached.sampled, first.sampled);
}

std::vector<Case> all_cases() {
  const auto checkpoints = test::full_or_reduced<std::vector<const char*>>(
      {"llama2", "llama3", "llama_biases", "llama_linear", "mistral_window", "qwen2_tied",
       "qwen2_window", "qwen3_odd_vocab", "qwen3_tied", "qwen3_yarn"},
      {"llama2", "llama_biases", "mistral_window", "qwen3_odd_vocab"});
  std::vector<Case> cases;
  for (const char* checkpoint : checkpoints) {
    for (const char* dtype : {"bfloat16", "float32"}) cases.push_back({checkpoint, dtype});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Goldens, ModelRunnerEqualities, ::testing::ValuesIn(all_cases()),
                         [](const auto& one) {
                           return one.param.checkpoint + "_" + one.param.dtype;
                         });

TEST(ModelRunner, PromptLogprobsOfManyRowsComeInSeveralHeadProducts) {
  const auto r = load("qwen3_tied", small_config("auto", 1));
  const auto score = [&](int chunk) {
    Request request{.token_ids = random_ids(300, 3),
                    .blocks = block_range(0, 20),
                    .chunk = chunk,
                    .num_prompt_logprobs = 0};
    generate(*r, request, 1);
    return request.prompt_logprobs;
  };
  const std::vector<SamplingResult> whole = score(300);  // more than two buffers of logits
  ASSERT_EQ(whole.size(), 299U);
  const Ids ids = random_ids(300, 3);
  for (int i = 0; i < 299; ++i) {
    EXPECT_EQ(whole[i].token_id, ids[i + 1]);
    ASSERT_EQ(whole[i].logprobs.size(), 1U);
    EXPECT_LT(whole[i].logprobs[0].logprob, 0);
  }
  expect_same(score(128), whole);
  expect_same(score(50), whole);
}

TEST(ModelRunner, SeededSamplesDependOnSeedAndPositionAlone) {
  const auto r = load("llama3", small_config("auto", 2));
  const auto draw = [&](uint64_t seed, int chunk) {
    Request request{.token_ids = random_ids(40, 5), .blocks = block_range(0, 8), .chunk = chunk};
    request.sampling = {.temperature = 2, .top_p = 0.95f, .repetition_penalty = 1.1f, .seed = seed};
    generate(*r, request, 20);
    return request.token_ids;
  };
  EXPECT_EQ(draw(1, 40), draw(1, 7));
  EXPECT_NE(draw(1, 40), draw(2, 40));
}

TEST(ModelRunner, ProgressAdvancesWhileItLoadsAndWithEachLayer) {
  const ModelConfig model = load_model_config(golden_dir("llama2"));
  Progress progress;
  EngineInfo info;
  const auto runner =
      make_model_runner(model, small_config("auto", 2), info, nullptr, 0, &progress);
  const uint64_t when_loaded = progress.count();
  EXPECT_GT(when_loaded, 0u);
  Request request{.token_ids = random_ids(100, 1), .blocks = block_range(0, 8)};
  step(*runner, {&request});
  EXPECT_GE(progress.count(), when_loaded + model.num_hidden_layers);
}

// Of Llama's layers, 3 of hidden size 64 with 4 heads of 16 and an MLP of 160.
TEST(ModelRunner, GuessesWhatStepsCostByTheOperationsOfTheLayers) {
  const StepCost cost = load("llama2", small_config("auto", 1))->step_cost();
  EXPECT_TRUE(cost.is_guess);
  const double flops_per_token = 3 * 2 * (4 * 64 * 64 + 3 * 64 * 160), flops_per_pair = 3 * 4 * 64;
  EXPECT_DOUBLE_EQ(cost.per_token / cost.per_pair, flops_per_token / flops_per_pair);
}

TEST(ModelRunner, InfoSaysWhatWasLoaded) {
  EngineInfo info;
  const auto r = make_model_runner(load_model_config(golden_dir("qwen3_odd_vocab")),
                                   small_config("auto", 1), info);
  EXPECT_EQ(info.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(info.device.substr(0, 5), "cpu (");
  EXPECT_EQ(info.device_type, "cpu");
  EXPECT_EQ(info.dtype, "bfloat16");
  EXPECT_EQ(info.vocab_size, 389);
  EXPECT_EQ(info.max_model_len, 512);
  EXPECT_EQ(info.kvcache_block_size, kBlockSize);
  EXPECT_EQ(info.num_kvcache_blocks, kNumBlocks);
  EXPECT_EQ(r->num_kvcache_blocks(), kNumBlocks);
  EXPECT_EQ(info.kv_bytes_per_token, 2 * 2 * 1 * 64 * 2);  // layers, K and V, heads, dim, bfloat16
  EXPECT_EQ(info.kv_cache_bytes, info.kv_bytes_per_token * kBlockSize * kNumBlocks);
  EXPECT_GT(info.num_parameters, 100'000);
  EXPECT_GE(info.weight_bytes, info.num_parameters * 3 / 2);
  EXPECT_LE(info.weight_bytes, info.num_parameters * 4);
  EXPECT_GT(info.load_seconds, 0);
}

TEST(ModelRunner, MaxModelLenIsAtMostWhatTheModelWasMadeFor) {
  const auto max_model_len = [&](int asked, const std::string& name = "qwen3_tied") {
    const ModelConfig model = load_model_config(golden_dir(name));
    EngineConfig config = small_config("auto", 1);
    config.max_model_len = asked;
    EngineInfo info;
    make_model_runner(model, config, info);
    return info.max_model_len;
  };
  EXPECT_EQ(max_model_len(511), 511);
  EXPECT_EQ(max_model_len(512), 512);
  EXPECT_EQ(max_model_len(1024, "llama_linear"), 1024);  // 512, stretched by two
  for (const auto& [asked, name] : {std::pair{513, "qwen3_tied"}, {1025, "llama_linear"}}) {
    const Error error = error_of([&, asked = asked, name = name] { max_model_len(asked, name); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(fmt::format("max_model_len is {}, but", asked)),
              std::string::npos)
        << error.what();
  }
}

// As a worker comes back that is told how many blocks the one before it had.
TEST(ModelRunner, UnaskedMaxModelLenIsWhatTheKvCacheHoldsAndComesOutOfItsBlocksAgain) {
  const ModelConfig model = load_model_config(golden_dir("qwen3_tied"));
  const auto load_info = [&](const EngineConfig& config) {
    EngineInfo info;
    make_model_runner(model, config, info);
    return info;
  };
  EngineConfig config = small_config("auto", 1);
  config.max_model_len = -1;
  config.num_kvcache_blocks = -1;
  const EngineInfo whole = load_info(config);
  EXPECT_EQ(whole.max_model_len, 512);
  EXPECT_EQ(whole.sizing.substr(0, 43), "max_model_len is 512 (the model's own), and")
      << whole.sizing;
  config.kv_cache_memory = 12 * kBlockSize * whole.kv_bytes_per_token;
  const EngineInfo lowered = load_info(config);
  EXPECT_EQ(lowered.num_kvcache_blocks, 12);
  EXPECT_EQ(lowered.max_model_len, 12 * kBlockSize + 1);
  for (const EngineInfo& first : {whole, lowered}) {
    config.kv_cache_memory.reset();
    config.num_kvcache_blocks = first.num_kvcache_blocks;
    const EngineInfo again = load_info(config);
    EXPECT_EQ(again.num_kvcache_blocks, first.num_kvcache_blocks);
    EXPECT_EQ(again.max_model_len, first.max_model_len);
  }
}

TEST(ModelRunner, DtypeAutoIsTheCheckpointsAndBfloat16ForHalfPrecision) {
  ModelConfig model = load_model_config(golden_dir("qwen3_tied"));
  const auto dtype = [&](DType of_checkpoint, const std::string& asked) {
    model.dtype = of_checkpoint;
    EngineInfo info;
    make_model_runner(model, small_config(asked, 1), info);
    return info.dtype;
  };
  EXPECT_EQ(dtype(DType::kBFloat16, "auto"), "bfloat16");
  EXPECT_EQ(dtype(DType::kFloat16, "auto"), "bfloat16");
  EXPECT_EQ(dtype(DType::kFloat32, "auto"), "float32");
  EXPECT_EQ(dtype(DType::kFloat32, "bfloat16"), "bfloat16");
  EXPECT_EQ(dtype(DType::kBFloat16, "float32"), "float32");
}

TEST(ModelRunner, KvCacheThatDoesNotFitIsRefusedInBytes) {
  EngineConfig config = small_config("auto", 1);
  config.num_kvcache_blocks = 100'000'000;
  const Error error = error_of([&] { load("qwen3_odd_vocab", config); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(std::string(error.what()).find("100000000 blocks needs 819200000000 bytes"),
            std::string::npos)
      << error.what();
}

TEST(ModelRunner, BlockTablesBeyondReasonAreRefusedByTheFlagsThatMakeThem) {
  ModelConfig model = load_model_config(golden_dir("llama2"));
  model.max_position_embeddings = 1 << 24;
  EngineConfig config = small_config("float32", 1);
  config.max_num_seqs = 1 << 16;
  config.max_model_len = 1 << 24;
  EngineInfo info;
  const Error error = error_of([&] { make_model_runner(model, config, info); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("max_num_seqs 65536"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("max_model_len 16777216"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("kvcache_block_size 16"), std::string::npos);
}

// What was given as blocks bounds what steps need besides the KV cache.
TEST(ModelRunner, BlockTablesAreNoLongerThanTheBlocksGiven) {
  ModelConfig model = load_model_config(golden_dir("llama2"));
  model.max_position_embeddings = 1 << 16;
  EngineConfig config = small_config("float32", 1);
  config.max_num_seqs = 1 << 19;  // times 4096 blocks are too many, times 9 are not
  config.num_kvcache_blocks = 8;
  EngineInfo info;
  const auto runner = make_model_runner(model, config, info);
  EXPECT_EQ(info.max_model_len, 8 * kBlockSize + 1);
  EXPECT_EQ(info.sizing,
            "max_model_len is 129 (what the KV cache holds of 65536 tokens, the model's own), and "
            "the KV cache has 128 tokens (num_kvcache_blocks)");
  config.num_kvcache_blocks = 4096;
  const Error error = error_of([&] { make_model_runner(model, config, info); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
}

TEST(ModelRunner, AFolderWithoutWeightsIsRefused) {
  ModelConfig model = load_model_config(golden_dir("qwen3_tied"));
  const nanovllm::testing::TempDir empty;
  model.model_dir = empty.path();
  EngineInfo info;
  const Error error = error_of([&] { make_model_runner(model, small_config("auto", 1), info); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace nanovllm
