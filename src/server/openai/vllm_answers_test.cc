// What vLLM 0.32 answered (tests/data/vllm_answers.jsonl, by tools/record_vllm_answers.py) beside
// what is answered here, with the demo model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "base/testing.h"
#include "nanovllm/engine_loop.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

constexpr float kTolerance = 0.02F;  // of a log-probability: both compute in another order

// An engine that answers one call at a time.
class DemoEngine {
 public:
  DemoEngine()
      : dir_(test::source_path("models/demo")),
        tokenizer_(Tokenizer::load(dir_)),
        template_(ChatTemplate::load(dir_)),
        loop_(LLMEngine(dir_, config()), [this](std::vector<EngineEvent> events) {
          const std::scoped_lock lock(mutex_);
          steps_.push_back(std::move(events));
          changed_.notify_one();
        }) {
    served_.names = {"demo"};
    served_.preparer = loop_.preparer(template_.get());
    served_.defaults = loop_.default_sampling_params();
    served_.system_fingerprint = "fp";
  }

  const ServedModel& served() const { return served_; }

  // Runs all requests of a call; what on_events() and finish() gave.
  std::string run(ApiCall& call) {
    std::string text;
    for (size_t i = 0; i < call.requests.size(); ++i) {
      call.requests[i].id = i;
      loop_.submit(call.requests[i]);
    }
    while (!call.is_over()) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !steps_.empty(); });
      std::map<size_t, std::vector<EngineEvent>> batches;
      for (EngineEvent& event : steps_.front()) {
        const auto prompt = std::visit(
            [](const auto& it) -> std::optional<size_t> {
              if constexpr (requires { it.id; }) return it.id;
              return std::nullopt;
            },
            event);
        if (prompt) batches[*prompt].push_back(std::move(event));
      }
      steps_.pop_front();
      lock.unlock();
      for (const auto& [prompt, events] : batches) text += call.on_events(prompt, events);
    }
    return text + call.finish();
  }

 private:
  static EngineConfig config() {
    EngineConfig config;
    config.max_model_len = 256;
    config.dtype = "float32";
    return config;
  }

  std::string dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<EngineEvent>> steps_;  // that were not looked at
  ServedModel served_;
  EngineLoop loop_;
};

struct Reply {
  int status = 200;
  std::string body = {};  // JSON or a stream
  bool is_stream = false;
};

Reply answer(DemoEngine& engine, const std::string& path, const std::string& body) {
  const ServedModel& served = engine.served();
  try {
    if (path == "/tokenize") return {.body = tokenize_body(body, served)};
    if (path == "/detokenize") return {.body = detokenize_body(body, served)};
    if (path == "/v1/models") return {.body = models_body(served)};
    const auto call = path == "/v1/completions" ? parse_completion(body, served, "7")
                                                : parse_chat(body, served, "7");
    const bool is_stream = call->stream;
    return {.body = engine.run(*call), .is_stream = is_stream};
  } catch (const ApiError& error) {
    return {.status = error.status(),
            .body = error_body(error.status(), error.what(), error.param())};
  }
}

const std::set<std::string> kVolatile = {"id", "created", "system_fingerprint", "root"};

// The first difference, with the way to it; empty = none. Without `values` the shape alone counts.
std::string difference(const Json& ours, const Json& theirs, bool values, const std::string& path) {
  const auto differ = [&] {
    return fmt::format("{}: {} beside {}", path, ours.dump(), theirs.dump());
  };
  if (ours.is_number() && theirs.is_number()) {
    const bool close = std::abs(ours.get<double>() - theirs.get<double>()) <=
                       (theirs.is_number_float() ? kTolerance : 0);
    return close || !values ? "" : differ();
  }
  if (ours.type() != theirs.type()) return differ();
  if (ours.is_object()) {
    std::vector<std::string> our_names, their_names;
    for (const auto& [name, value] : ours.items()) our_names.push_back(name);
    for (const auto& [name, value] : theirs.items()) their_names.push_back(name);
    if (values && our_names != their_names) return differ();
    for (const auto& [name, value] : ours.items()) {
      if (kVolatile.contains(name) || !theirs.contains(name)) continue;
      const std::string found = difference(value, theirs[name], values, path + '.' + name);
      if (!found.empty()) return found;
    }
    return {};
  }
  if (ours.is_array()) {
    if (values && ours.size() != theirs.size()) return differ();
    for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
      const std::string found =
          difference(ours[i], theirs[i], values, fmt::format("{}[{}]", path, i));
      if (!found.empty()) return found;
    }
    return {};
  }
  return ours == theirs || !values ? "" : differ();
}

// Where we answer otherwise, by a part of the body.
const std::vector<std::string> kOtherwise = {
    R"("n": null)",                        // here the default
    R"("content": null)",                  // here an empty text, whoever says it
    R"("text": "b"})",                     // here behind "a" without a line break
    R"("stream": "yes")",                  // here no boolean
    R"("best_of": 2)",                     // here refused, there ignored
    R"("priority": 1})",                   // here refused, there ignored in spite of its help
    R"("stream": true, "stop": ["girl"])"  // here only what may begin a stop text is held back
};

// Streams of several choices side by side: whose chunk comes first is chance.
Json by_choice(Json chunks) {
  std::ranges::stable_sort(chunks.get_ref<Json::array_t&>(), {}, [](const Json& chunk) {
    const bool has_choice =
        chunk.is_object() && chunk.contains("choices") && !chunk["choices"].empty();
    return has_choice ? chunk["choices"][0]["index"].get<int>() : 1000;
  });
  return chunks;
}

TEST(VllmAnswers, AreOurs) {
  DemoEngine engine;
  std::ifstream file(test::source_path("tests/data/vllm_answers.jsonl"));
  int num_same = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    const std::string path = record["path"], body = record["body"];
    const bool is_ours = record["method"] == "POST" || path == "/v1/models";
    const bool is_otherwise = std::ranges::any_of(
        kOtherwise, [&](const std::string& part) { return body.find(part) != std::string::npos; });
    if (!is_ours || is_otherwise) continue;
    const Reply reply = answer(engine, path, body);
    EXPECT_EQ(reply.status, record["status"]) << path << ' ' << body << ' ' << reply.body;
    if (reply.status != 200 || record["status"] != 200) {
      num_same += reply.status == record["status"];
      continue;
    }
    const bool is_random = body.find("\"seed\"") != std::string::npos;
    const Json ours = reply.is_stream ? by_choice(chunks_of(reply.body)) : Json::parse(reply.body);
    const Json theirs = reply.is_stream ? by_choice(record["chunks"]) : record["answer"];
    const std::string found = difference(ours, theirs, !is_random, "");
    EXPECT_EQ(found, "") << path << ' ' << body;
    num_same += found.empty();
  }
  EXPECT_GT(num_same, 150);
}

}  // namespace
}  // namespace nanovllm::server
