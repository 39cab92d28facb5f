#include "soak_workload.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace nanovllm {

namespace {

constexpr size_t kNumRemembered = 4;

}  // namespace

SoakWorkload::SoakWorkload(const SoakLimits& limits, std::vector<SoakRequest> texts, uint64_t seed)
    : limits_(limits), texts_(std::move(texts)), rng_(seed) {}

double SoakWorkload::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(rng_() >> 11) * 0x1p-53;
}

// Short ones as often as long ones, whatever the scale.
int SoakWorkload::log_uniform(int low, int high) {
  const double value = low * std::pow(static_cast<double>(high) / low, uniform(0, 1));
  return std::clamp(static_cast<int>(std::lround(value)), low, high);
}

int SoakWorkload::arrivals() {
  if (--steps_left_ <= 0) {
    weather_ = static_cast<Weather>(pick(3));
    steps_left_ = log_uniform(4, 200);
  }
  switch (weather_) {
    case Weather::kBurst:
      return one_in(4) ? 1 + pick(1 + limits_.max_num_seqs / 4) : 0;
    case Weather::kSteady:
      return one_in(8) ? 1 + pick(1 + limits_.max_num_seqs / 32) : 0;
    case Weather::kQuiet:
      break;
  }
  return 0;
}

void SoakWorkload::remember(std::vector<int32_t> ids) {
  if (remembered_.size() < kNumRemembered) {
    remembered_.push_back(std::move(ids));
  } else {
    remembered_[static_cast<size_t>(pick(kNumRemembered))] = std::move(ids);
  }
}

// Often around the ends of blocks and at the longest that is possible, where mistakes live.
int SoakWorkload::prompt_length() {
  const int longest = limits_.max_num_tokens() - 1;
  if (one_in(64)) return longest;
  if (!one_in(8)) return log_uniform(1, longest);
  const int num_blocks = 1 + pick(std::max(1, longest / limits_.block_size));
  return std::clamp(num_blocks * limits_.block_size + pick(3) - 1, 1, longest);
}

std::vector<int32_t> SoakWorkload::prompt() {
  const auto longest = static_cast<size_t>(limits_.max_num_tokens() - 1);
  auto length = static_cast<size_t>(prompt_length());
  std::vector<int32_t> ids;
  if (!remembered_.empty() && one_in(2)) {
    ids = remembered_[static_cast<size_t>(pick(static_cast<int>(remembered_.size())))];
    if (one_in(2)) ids.resize(std::min(ids.size(), length));
    ids.resize(std::min(ids.size(), longest));
    if (one_in(4)) return ids;
    length = std::min(ids.size() + length, longest);
  }
  while (ids.size() < length) ids.push_back(token());
  return ids;
}

void SoakWorkload::draw_distribution(SamplingParams& p) {
  p.temperature = one_in(3) ? 0 : uniform(0.01, 2);
  if (p.temperature > 0 && one_in(5)) p.n = 2 + pick(3);
  if (one_in(2)) p.seed = rng_();
  if (one_in(3)) p.top_k = log_uniform(1, limits_.vocab_size);
  if (one_in(3)) p.top_p = uniform(0.05, 1);
  if (one_in(4)) p.min_p = uniform(0, 1);
  if (one_in(4)) p.presence_penalty = uniform(-2, 2);
  if (one_in(4)) p.frequency_penalty = uniform(-2, 2);
  if (one_in(4)) p.repetition_penalty = uniform(0.5, 2);
  if (one_in(8)) {
    for (int i = pick(8); i >= 0; --i) p.logit_bias[token()] = static_cast<float>(uniform(-9, 9));
  }
  if (!texts_.empty() && one_in(8)) p.bad_words = {"e", "the end"};
}

void SoakWorkload::draw_end(SamplingParams& p) {
  p.ignore_eos = !one_in(4);
  if (one_in(4)) p.min_tokens = pick(std::min(p.max_tokens, limits_.max_num_tokens()) + 1);
  if (one_in(4)) {
    for (int i = pick(64); i >= 0; --i) p.stop_token_ids.push_back(token());
  }
  if (!texts_.empty() && one_in(8)) {
    p.stop = {"e", "the end"};
    p.include_stop_str_in_output = one_in(2);
  }
  p.skip_special_tokens = !one_in(4);
}

SamplingParams SoakWorkload::params(int num_prompt_tokens) {
  SamplingParams p;
  // Mostly long outputs of short prompts: those that are let in together outgrow the memory.
  const int room = limits_.max_num_tokens() - num_prompt_tokens;
  p.max_tokens = one_in(4) ? log_uniform(1, room) : 1 + pick(room);
  // The model's length ends these.
  if (limits_.max_model_len <= limits_.kv_tokens && one_in(16)) {
    p.max_tokens = std::numeric_limits<int>::max();
  }
  draw_distribution(p);
  draw_end(p);
  if (one_in(4)) p.logprobs = pick(21);
  if (one_in(8)) p.prompt_logprobs = pick(6);
  p.output_kind = output_kind();
  return p;
}

SoakRequest SoakWorkload::request() {
  SoakRequest request;
  if (!texts_.empty() && one_in(8)) {
    request = texts_[static_cast<size_t>(pick(static_cast<int>(texts_.size())))];
  } else {
    request.ids = prompt();
  }
  request.params = params(static_cast<int>(request.ids.size()));
  return request;
}

SoakRequest SoakWorkload::bad_request() {
  using Spoil = std::function<void(SoakRequest&)>;
  static const std::vector<Spoil> kSpoils = {
      [](SoakRequest& r) { r.ids.clear(); },
      [](SoakRequest& r) { r.ids.back() = -1; },
      [](SoakRequest& r) { r.params.temperature = -1; },
      [](SoakRequest& r) { r.params.temperature = std::nan(""); },
      [](SoakRequest& r) { r.params.top_p = 0; },
      [](SoakRequest& r) { r.params.top_k = -2; },
      [](SoakRequest& r) { r.params.min_p = 1.5; },
      [](SoakRequest& r) { r.params.presence_penalty = 3; },
      [](SoakRequest& r) { r.params.repetition_penalty = 0; },
      [](SoakRequest& r) { r.params.n = 0; },
      [](SoakRequest& r) { r.params.max_tokens = 0; },
      [](SoakRequest& r) {
        r.params.max_tokens = 1;
        r.params.min_tokens = 2;
      },
      [](SoakRequest& r) { r.params.logprobs = 21; },
      [](SoakRequest& r) { r.params.prompt_logprobs = -2; },
      [](SoakRequest& r) { r.params.stop_token_ids = {-5}; },
      [](SoakRequest& r) { r.params.stop = {""}; },
      [](SoakRequest& r) {
        r.params.temperature = 0;
        r.params.n = 2;
      },
  };
  SoakRequest bad;
  bad.ids = prompt();
  bad.params = params(static_cast<int>(bad.ids.size()));
  switch (pick(4)) {
    case 0:  // too long for the model or for the KV cache
      bad.ids.resize(static_cast<size_t>(limits_.max_num_tokens()) + 1 + pick(100));
      break;
    case 1:
      bad.ids[static_cast<size_t>(pick(static_cast<int>(bad.ids.size())))] = limits_.vocab_size;
      break;
    default:
      kSpoils[static_cast<size_t>(pick(static_cast<int>(kSpoils.size())))](bad);
  }
  return bad;
}

std::vector<SoakRequest> SoakWorkload::probes() const {
  std::vector<SoakRequest> probes;
  const int longest = limits_.max_num_tokens();
  for (const int length : {1, limits_.block_size, longest / 4, longest / 2, longest - 8}) {
    SoakRequest& probe = probes.emplace_back();
    const int num_prompt_tokens = std::clamp(length, 1, longest - 8);
    for (int i = 0; i < num_prompt_tokens; ++i) {
      probe.ids.push_back((i * 31 + length) % std::min(limits_.vocab_size, 1000));
    }
    probe.params.temperature = 0;
    probe.params.max_tokens = std::min(64, longest - num_prompt_tokens);
    probe.params.ignore_eos = true;
    probe.params.logprobs = 2;
  }
  return probes;
}

}  // namespace nanovllm
