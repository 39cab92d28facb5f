#include "engine/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/check.h"

namespace nanovllm {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : rng_(seed) {}

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  uint64_t id() { return (uint64_t{rng_()} << 32) | rng_(); }
  int32_t number() { return static_cast<int32_t>(rng_()); }
  double real() { return number() / 1024.0; }
  bool flag() { return pick(2) == 0; }
  std::string text() {
    std::string text(static_cast<size_t>(pick(20)), 0);
    for (char& c : text) c = static_cast<char>(pick(256));
    return text;
  }
  template <typename F>
  auto list(F item) {
    std::vector<decltype(item())> items;
    for (int i = pick(4); i > 0; --i) items.push_back(item());
    return items;
  }
  template <typename F>
  auto maybe(F item) {
    return flag() ? std::optional(item()) : std::nullopt;
  }
  std::vector<int32_t> ids() {
    return list([&] { return number(); });
  }

  StructuredOutputsParams structured_outputs() {
    const auto some_text = [&] { return maybe([&] { return text(); }); };
    return {.json = some_text(),
            .regex = some_text(),
            .choice = maybe([&] { return list([&] { return text(); }); }),
            .grammar = some_text(),
            .json_object = flag(),
            .structural_tag = some_text(),
            .disable_any_whitespace = flag(),
            .disable_additional_properties = flag(),
            .whitespace_pattern = some_text()};
  }
  SamplingParams params() {
    SamplingParams p;
    p.n = number();
    p.temperature = real();
    p.top_p = real();
    p.top_k = number();
    p.min_p = real();
    p.presence_penalty = real();
    p.frequency_penalty = real();
    p.repetition_penalty = real();
    for (const int32_t token : ids()) p.logit_bias[token] = static_cast<float>(pick(100));
    p.seed = maybe([&] { return id(); });
    p.max_tokens = number();
    p.min_tokens = number();
    p.ignore_eos = flag();
    p.stop = list([&] { return text(); });
    p.stop_token_ids = ids();
    p.allowed_token_ids = maybe([&] { return ids(); });
    p.bad_words = list([&] { return text(); });
    p.include_stop_str_in_output = flag();
    p.skip_special_tokens = flag();
    p.logprobs = maybe([&] { return number(); });
    p.prompt_logprobs = maybe([&] { return number(); });
    p.priority = number();
    p.thinking_token_budget = maybe([&] { return number(); });
    p.thinking_tags = maybe([&] { return ThinkingTags{ids(), ids(), number()}; });
    p.structured_outputs = maybe([&] { return structured_outputs(); });
    p.cache_salt = maybe([&] { return text(); });
    p.marked_token_ids = ids();
    p.output_kind = static_cast<RequestOutputKind>(pick(3));
    return p;
  }
  EngineCommand command() {
    switch (pick(3)) {
      case 0:
        return AddRequest{id(), ids(), params(), list([&] { return ids(); }), {}};
      case 1:
        return AbortRequest{id()};
      default:
        return Shutdown{flag()};
    }
  }

  EngineInfo info() {
    EngineInfo info;
    info.architecture = text();
    info.device = text();
    info.device_type = text();
    info.dtype = text();
    info.num_parameters = number();
    info.num_active_parameters = number();
    info.weight_bytes = number();
    info.mapped_weight_bytes = number();
    info.weight_formats = list([&] { return WeightFormat{text(), number(), number()}; });
    info.weight_layouts = list([&] {
      return LayoutOfWeights{text(), number(), number(), number()};
    });
    info.layers = list([&] { return text(); });
    info.plan = list([&] { return text(); });
    info.kv_bytes_per_token = number();
    info.kv_cache_bytes = number();
    info.kv_groups = list([&] { return text(); });
    info.num_states = number();
    info.num_kept_states = number();
    info.state_cache_bytes = number();
    info.state_slot_bytes = number();
    info.state_log_bytes = number();
    info.kv_windows = ids();
    info.sizing = text();
    info.num_kvcache_blocks = number();
    info.kvcache_block_size = number();
    info.max_num_batched_tokens = number();
    info.max_num_seqs = number();
    info.max_model_len = number();
    info.vocab_size = number();
    info.takes_priorities = pick(2) == 1;
    info.default_temperature_source = text();
    info.reasoning_parser = text();
    info.tool_parser = text();
    info.load_seconds = real();
    return info;
  }
  PositionLogprobs position() {
    return list([&] {
      return TokenLogprob{number(), static_cast<float>(pick(100)), number(),
                          maybe([&] { return text(); })};
    });
  }
  StopReason stop_reason() {
    switch (pick(3)) {
      case 0:
        return {};
      case 1:
        return number();
      default:
        return text();
    }
  }
  EngineEvent event() {
    switch (pick(5)) {
      case 0:
        return PromptLogprobs{id(), list([&] { return maybe([&] { return position(); }); })};
      case 1:
        return RequestDelta{id(),   number(),
                            text(), list([&] { return TokenMark{id(), number()}; }),
                            ids(),  list([&] { return position(); })};
      case 2:
        return RequestEnd{
            id(),     number(), static_cast<FinishReason>(pick(4)), stop_reason(), flag(),
            number(), number(), {real(), real(), real(), real()}};
      case 3:
        return RequestError{id(), static_cast<ErrorCode>(pick(8)), text()};
      default: {
        StepStats stats{number(), number(), number(), number(), number(), number(),
                        number(), number(), real(),   number(), number(), number(),
                        number(), number(), number(), number()};
        stats.num_accepted_per_pos = {number(), number()};
        return stats;
      }
    }
  }
  EngineReport report() {
    switch (pick(6)) {
      case 0:
        return EngineHello{info(), params(), text()};
      case 1:
        return EngineFault{static_cast<ErrorCode>(pick(8)), text()};
      case 2:
        return EngineProgress{id()};
      default:
        return list([&] { return event(); });
    }
  }

 private:
  std::mt19937 rng_;
};

template <typename T>
std::string frame(const T& value) {
  std::string bytes;
  append_frame(value, bytes);
  return bytes;
}

template <typename T>
ErrorCode error_of(std::string_view bytes) {
  T value;
  try {
    take_frame(bytes, value);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kInternal;
}

std::string with_size(std::string bytes, uint32_t size) {
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes;
}

// Complete frames come back equal; a frame cut anywhere waits for its rest, and one that claims to
// be complete is refused.
template <typename T>
void check_round_trip(const T& value) {
  const std::string bytes = frame(value);
  std::string_view rest = bytes;
  T back;
  ASSERT_TRUE(take_frame(rest, back));
  ASSERT_EQ(back, value);
  ASSERT_EQ(rest, "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    rest = std::string_view(bytes).substr(0, size);
    ASSERT_FALSE(take_frame(rest, back));
    ASSERT_EQ(rest.size(), size);
    if (size < 5) continue;
    const auto claimed = static_cast<uint32_t>(size - 5);
    ASSERT_EQ(error_of<T>(with_size(bytes.substr(0, size), claimed)), ErrorCode::kCorruptData);
  }
  const auto claimed = static_cast<uint32_t>(bytes.size() - 5 + 1);
  ASSERT_EQ(error_of<T>(with_size(bytes + '\0', claimed)), ErrorCode::kCorruptData);
}

TEST(Wire, GivesBackWhatWasWrittenAndRefusesAnyPartOfIt) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    check_round_trip(random.command());
    check_round_trip(random.report());
  }
}

TEST(Wire, ReadsFramesOneBehindTheOther) {
  std::string bytes;
  Random random(1);
  const EngineCommand first = random.command(), second = random.command();
  append_frame(first, bytes);
  append_frame(second, bytes);
  std::string_view rest = bytes;
  EngineCommand command;
  ASSERT_TRUE(take_frame(rest, command));
  EXPECT_EQ(command, first);
  ASSERT_TRUE(take_frame(rest, command));
  EXPECT_EQ(command, second);
  EXPECT_FALSE(take_frame(rest, command));
}

TEST(Wire, RefusesWhatIsNoFrame) {
  const std::string good = frame(EngineCommand(Shutdown{}));
  ASSERT_EQ(good.size(), 7u);  // size, version, which command, drain
  const auto changed = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return error_of<EngineCommand>(bytes);
  };
  EXPECT_EQ(changed(4, 99), ErrorCode::kCorruptData);  // another version
  EXPECT_EQ(changed(5, 3), ErrorCode::kCorruptData);   // the fourth of three commands
  EXPECT_EQ(changed(6, 2), ErrorCode::kCorruptData);   // neither true nor false
  EXPECT_EQ(error_of<EngineCommand>(with_size(good, kMaxFramePayload + 1)),
            ErrorCode::kCorruptData);
  std::string_view most;
  const std::string allowed = with_size(good, kMaxFramePayload);
  most = allowed;
  EngineCommand command;
  EXPECT_FALSE(take_frame(most, command));
  // The last error code, and the one behind it.
  std::string error = frame(EngineReport(EngineFault{ErrorCode::kUnavailable, ""}));
  const size_t code_at = error.size() - 5;
  EngineReport report;
  std::string_view rest = error;
  EXPECT_TRUE(take_frame(rest, report));
  ++error[code_at];
  EXPECT_EQ(error_of<EngineReport>(error), ErrorCode::kCorruptData);
}

// A list that claims four billion items takes no memory for them.
TEST(Wire, BelievesNoLengths) {
  std::string bytes = frame(EngineCommand(AddRequest{}));
  const size_t length_at = 5 + 1 + 8;
  for (size_t i = 0; i < 4; ++i) bytes[length_at + i] = '\xff';
  EXPECT_EQ(error_of<EngineCommand>(bytes), ErrorCode::kCorruptData);
}

TEST(Wire, SurvivesRandomDamage) {
  int num_refused = 0, num_read = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::string bytes = frame(random.report());
    for (int i = random.pick(3); i >= 0 && bytes.size() > 5; --i) {
      bytes[5 + random.pick(static_cast<int>(bytes.size()) - 5)] =
          static_cast<char>(random.pick(256));
    }
    std::string_view rest = bytes;
    EngineReport report;
    try {
      EXPECT_TRUE(take_frame(rest, report));
      ++num_read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 100);
  EXPECT_GT(num_read, 100);
}

}  // namespace
}  // namespace nanovllm
