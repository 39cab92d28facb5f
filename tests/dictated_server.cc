// `nanovllm serve` with a model that says what a script tells it: the server, its workers, engine,
// scheduler and prefix cache are the real ones, only the runner is not.
//   dictated_server MODEL --script FILE --prompts FILE [FLAG VALUE]...
// MODEL needs no weights. FILE is a JSON list, read again for each answer:
//   [{"when": "a text of the prompt", "say": "text", "ms": 5, "first_ms": 200, "die_at": 3}]
// The last entry whose `when` (by default "") is in the prompt is said: so an answer depends on its
// prompt alone, whichever worker gives it. Tags in `say` become the tokenizer's special tokens;
// where what is next is closed or banned, the first token that may come is said instead. `ms` is
// what a token takes, `first_ms` what the first one takes besides; a worker that is to draw the
// token `die_at` dies. What the model was asked is added to --prompts, a line of JSON each:
// {"ids": [...], "text": "..."}.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "engine/engine_core.h"
#include "io/file.h"
#include "models/load_config.h"
#include "nanovllm/tokenizer.h"
#include "server/fleet/worker.h"
#include "server/server.h"

namespace {

using namespace nanovllm;  // NOLINT(google-build-using-namespace)
using Ids = std::vector<int32_t>;

class Flags {
 public:
  Flags(int argc, char** argv, int first) {
    for (int i = first; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  }
  std::string text(const std::string& flag, const std::string& otherwise = "") const {
    const auto found = values_.find(flag);
    return found == values_.end() ? otherwise : found->second;
  }
  int number(const std::string& flag, int otherwise) const {
    return std::stoi(text(flag, std::to_string(otherwise)));
  }

 private:
  std::map<std::string, std::string> values_;
};

struct Answer {
  Ids ids;
  std::chrono::milliseconds token_time{}, first_token_time{};
  size_t die_at = SIZE_MAX;
};

class DictatedRunner final : public Runner {
 public:
  DictatedRunner(std::string script, std::string prompts, const std::string& model, int32_t eos,
                 int num_blocks, Progress& progress)
      : script_(std::move(script)),
        prompts_(std::move(prompts)),
        tokenizer_(Tokenizer::load(model)),
        eos_(eos),
        num_blocks_(num_blocks),
        progress_(progress) {}

  int num_kvcache_blocks() const override { return num_blocks_; }

  void submit(const StepInput& input) override {
    done_ = {};
    done_.results.resize(input.sequences.size());
    done_.sequences.resize(input.sequences.size());
    draws_.clear();
    for (size_t i = 0; i < input.sequences.size(); ++i) {
      if (input.sequences[i].sample) draws_.push_back(i);
    }
  }
  void draw(std::span<const SamplingRow> rows) override {
    std::chrono::milliseconds time{};
    for (size_t draw = 0; draw < rows.size(); ++draw) {
      const SamplingRow& row = rows[draw];
      const size_t at = row.output_ids.size();
      const Answer& answer = answer_to(row.prompt_ids, at);
      if (at >= answer.die_at) std::abort();
      SamplingResult& result = done_.results[draws_.at(draw)];
      result.token_id = row.forced_id >= 0       ? row.forced_id
                        : at < answer.ids.size() ? answer.ids[at]
                                                 : eos_;
      // Where that may not come, the first token that may.
      const auto may_come = [&](int32_t id) {
        return is_allowed(row, id) && std::ranges::find(row.banned_ids, id) == row.banned_ids.end();
      };
      if (row.forced_id < 0) {
        for (int32_t id = 0; !may_come(result.token_id) && id < tokenizer_->vocab_size(); ++id) {
          if (may_come(id)) result.token_id = id;
        }
      }
      if (row.num_logprobs >= 0) result.logprobs = {{result.token_id, -0.5f, 1}};
      done_.sequences[draws_[draw]].sampled = std::span(&result, 1);
      time = std::max(time, answer.token_time);
      if (at == 0) time = std::max(time, answer.token_time + answer.first_token_time);
    }
    std::this_thread::sleep_for(time);
    progress_.advance();
  }
  StepOutput collect() override { return std::move(done_); }
  void abandon() noexcept override {}

 private:
  // A request that another worker began has tokens already when it comes here.
  const Answer& answer_to(std::span<const int32_t> prompt, size_t num_said) {
    Answer& answer = answers_[Ids(prompt.begin(), prompt.end())];
    if (num_said > 0 && !answer.ids.empty()) return answer;
    const std::string text = tokenizer_->decode(prompt, false);
    if (num_said == 0) {
      const nlohmann::json asked = {{"ids", prompt}, {"text", text}};
      std::ofstream(prompts_, std::ios::app) << asked.dump() + "\n";
    }
    const auto script = nlohmann::json::parse(read_text_file(script_));
    for (const auto& entry : script) {
      if (text.find(entry.value("when", "")) == std::string::npos) continue;
      answer.ids = tokenizer_->encode(entry.value("say", ""), false);
      answer.ids.push_back(eos_);
      answer.token_time = std::chrono::milliseconds(entry.value("ms", 0));
      answer.first_token_time = std::chrono::milliseconds(entry.value("first_ms", 0));
      answer.die_at = entry.value("die_at", SIZE_MAX);
    }
    if (answer.ids.empty()) answer.ids = {eos_};
    return answer;
  }

  const std::string script_, prompts_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const int32_t eos_;
  const int num_blocks_;
  Progress& progress_;
  std::map<Ids, Answer> answers_;  // by prompt
  StepOutput done_;
  std::vector<size_t> draws_;  // which sequence each is for
};

LLMEngine dictated_engine(const std::string& model, const Flags& flags, Progress& progress) {
  const ModelConfig config = load_model_config(model);
  const int num_blocks = flags.number("--num-kvcache-blocks", 4096);
  EngineParts parts;
  parts.config.max_num_seqs = flags.number("--max-num-seqs", 256);
  parts.config.kvcache_block_size = flags.number("--kvcache-block-size", 256);
  parts.info.architecture = config.architecture;
  parts.info.device = "nothing, as it is dictated";
  parts.info.max_model_len = flags.number("--max-model-len", 32768);
  parts.info.vocab_size = static_cast<int>(config.vocab_size);
  parts.model_dir = model;
  parts.tokenizer = Tokenizer::load(model);
  parts.eos_token_ids = config.eos_token_ids;
  parts.default_sampling_params = config.default_sampling_params;
  parts.runner =
      std::make_unique<DictatedRunner>(flags.text("--script"), flags.text("--prompts"), model,
                                       config.eos_token_ids.at(0), num_blocks, progress);
  return LLMEngine(std::make_unique<EngineCore>(std::move(parts)));
}

int run_front(const std::string& model, const Flags& flags, std::vector<std::string> words) {
  server::ServeOptions options;
  options.model = model;
  options.served_model_names = {flags.text("--served-model-name", "dictated")};
  options.chat_template = flags.text("--chat-template");
  options.format = {flags.text("--reasoning-parser"), flags.text("--tool-call-parser")};
  options.http.port = flags.number("--port", 0);
  options.http.access_log = [](const std::string& line) { print_message("{}\n", line); };
  if (const std::string key = flags.text("--api-key"); !key.empty()) options.http.api_keys = {key};
  options.fleet.num_engines = flags.number("--data-parallel-size", 1);
  options.fleet.max_num_queued = flags.number("--max-queue-len", 1024);
  options.max_silence = std::chrono::milliseconds(flags.number("--max-silence-ms", 5000));
  options.enable_prompt_tokens_details = true;
  options.worker_arguments = std::move(words);
  return server::serve(std::move(options));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    const Flags flags(argc, argv, 2);
    const int socket = flags.number("--worker-fd", -1);
    if (socket < 0) return run_front(words.at(0), flags, words);
    return server::serve_engine(
        socket, [&](Progress& progress) { return dictated_engine(words.at(0), flags, progress); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "dictated_server: {}\n", error.what());
    return 1;
  }
}
