#include "server/metrics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/testing.h"

namespace nanovllm::server {
namespace {

EngineInfo engine_info(int max_model_len = 4096) {
  EngineInfo info;
  info.dtype = "bfloat16";
  info.num_kvcache_blocks = 64;
  info.kvcache_block_size = 16;
  info.max_model_len = max_model_len;
  return info;
}

// Metrics of a fleet that is ready.
struct Begun : Metrics {
  explicit Begun(int num_engines = 1, int max_model_len = 4096, const std::string& name = "demo")
      : Metrics(name, num_engines) {
    begin(engine_info(max_model_len), {});
  }
};

// The value of a line, or -1 where there is none that begins so.
double value_of(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return -1;
}

struct Shape {
  std::string type;
  std::set<std::string> labels;
  std::vector<std::string> bounds;
  bool operator==(const Shape&) const = default;
};

// By name, the type, labels and bounds of what an exposition's first series of each shows.
std::map<std::string, Shape> shapes_of(const std::string& text) {
  std::map<std::string, Shape> shapes;
  std::istringstream lines(text);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      words >> name >> shapes[name].type;
    }
    if (line.starts_with("#")) continue;
    Shape& shape = shapes.at(name);
    EXPECT_TRUE(line.starts_with(name)) << line;
    const size_t open = line.find('{');
    std::istringstream labels(line.substr(open + 1, line.find('}') - open - 1));
    for (std::string label; std::getline(labels, label, ',');) {
      const std::string key = label.substr(0, label.find('='));
      const std::string value = label.substr(key.size() + 2, label.size() - key.size() - 3);
      if (key != "le") shape.labels.insert(key);
      if (key == "le") shape.bounds.push_back(value);
    }
  }
  return shapes;
}

std::map<std::string, Shape> shapes_of_vllm() {
  std::map<std::string, Shape> shapes;
  std::ifstream file(test::source_path("tests/data/vllm_metrics.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, label, labels;
    words >> name;
    Shape& shape = shapes[name];
    words >> shape.type >> labels;
    std::istringstream list(labels);
    while (std::getline(list, label, ',')) shape.labels.insert(label);
    while (words >> label) shape.bounds.push_back(label);
  }
  return shapes;
}

TEST(Metrics, HaveTheNamesLabelsAndBucketsOfVllm) {
  auto ours = shapes_of(Begun().text());
  auto expected = shapes_of_vllm();
  // What there is nothing of here.
  for (const char* name :
       {"vllm:engine_sleep_state", "vllm:external_prefix_cache_queries_total",
        "vllm:external_prefix_cache_hits_total", "vllm:mm_cache_queries_total",
        "vllm:mm_cache_hits_total", "vllm:prompt_tokens_cached_by_source_total"}) {
    EXPECT_EQ(expected.erase(name), 1) << name;
  }
  EXPECT_EQ(ours.erase("nanovllm_worker_restarts_total"), 1);
  const auto facts = ours.extract("vllm:cache_config_info");
  const auto all_facts = expected.extract("vllm:cache_config_info");
  for (const std::string& label : facts.mapped().labels) {
    EXPECT_TRUE(all_facts.mapped().labels.contains(label)) << label;
  }
  ASSERT_EQ(ours.size(), expected.size());
  for (const auto& [name, shape] : expected) {
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_EQ(ours[name].type, shape.type) << name;
    EXPECT_EQ(ours[name].labels, shape.labels) << name;
    EXPECT_EQ(ours[name].bounds, shape.bounds) << name;
  }
}

TEST(Metrics, BoundsOfLongModelsAreWrittenAsVllmWritesThem) {
  const auto bounds = shapes_of(Begun(1, 2'000'000).text())["vllm:request_prompt_tokens"].bounds;
  const std::vector<std::string> last = {"500000.0", "1e+06", "2e+06", "+Inf"};
  EXPECT_EQ(std::vector(bounds.end() - 4, bounds.end()), last);
}

TEST(Metrics, AreThereOnceTheFleetIsReady) {
  Metrics metrics("demo", 2);
  EXPECT_EQ(metrics.text(), "");
  metrics.begin(engine_info(), {});
  EXPECT_EQ(value_of(metrics.text(), R"(vllm:num_requests_running{engine="1",model_name="demo"})"),
            0);
}

TEST(Metrics, TellHowTheCacheIsSetUp) {
  const std::string text = Begun(2).text();
  EXPECT_NE(text.find("block_size=\"16\""), std::string::npos);
  EXPECT_NE(text.find("num_gpu_blocks=\"64\""), std::string::npos);
  EXPECT_NE(text.find("enable_prefix_caching=\"True\",engine=\"1\","
                      "gpu_memory_utilization=\"0.9\",kv_cache_memory_bytes=\"None\","
                      "kv_cache_size_tokens=\"1024\""),
            std::string::npos)
      << text;
}

TEST(Metrics, TellOfEachWorkersCacheWhatItIsNow) {
  Metrics metrics("demo", 3);
  const FleetObserver observer = metrics.observer();
  EngineInfo less = engine_info();
  less.num_kvcache_blocks = 32;
  observer.on_ready(1, less);  // before all are
  metrics.begin(engine_info(), {});
  const auto blocks = [&](int engine) {
    std::vector<int> found;
    std::istringstream lines(metrics.text());
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("vllm:cache_config_info{") ||
          line.find(fmt::format("engine=\"{}\"", engine)) == std::string::npos) {
        continue;
      }
      const std::string key = "num_gpu_blocks=\"";
      found.push_back(std::stoi(line.substr(line.find(key) + key.size())));
    }
    return found;
  };
  EXPECT_EQ(blocks(0), std::vector{64});
  EXPECT_EQ(blocks(1), std::vector{32});
  EXPECT_EQ(blocks(2), std::vector{64});
  less.num_kvcache_blocks = 16;
  observer.on_ready(2, less);  // it came back
  observer.on_ready(0, engine_info());
  EXPECT_EQ(blocks(0), std::vector{64});
  EXPECT_EQ(blocks(1), std::vector{32});
  EXPECT_EQ(blocks(2), std::vector{16});
}

// What was sent again by an engine that had room for it to one that has not.
TEST(Metrics, AskForNoFewerThanNoTokens) {
  Begun metrics(1, 4);
  AddRequest request{.prompt_token_ids = {1, 2, 3, 4, 5}};
  metrics.on_end(0, request, {.finish_reason = FinishReason::kAbort}, true);
  metrics.on_end(-1, request, {.finish_reason = FinishReason::kAbort}, true);
  request.prompt_token_ids = {1, 2, 3};
  metrics.on_end(0, request, {.finish_reason = FinishReason::kLength}, false);
  const std::string text = metrics.text();
  const auto value = [&](const char* name) {
    return value_of(text, fmt::format("vllm:request_params_max_tokens_{}{{engine=\"0\","
                                      "model_name=\"demo\"}}",
                                      name));
  };
  EXPECT_EQ(value("count"), 3);
  EXPECT_EQ(value("sum"), 1);
}

TEST(Metrics, CountRestartsOfEachWorkerFromTheBeginning) {
  Metrics metrics("demo", 2);
  const FleetObserver observer = metrics.observer();
  observer.on_restart(1);
  EXPECT_EQ(metrics.text(), "");
  metrics.begin(engine_info(), {});
  observer.on_restart(1);
  const std::string text = metrics.text();
  const auto restarts = [&](int engine) {
    return value_of(
        text,
        fmt::format("nanovllm_worker_restarts_total{{engine=\"{}\",model_name=\"demo\"}}", engine));
  };
  EXPECT_EQ(restarts(0), 0);
  EXPECT_EQ(restarts(1), 2);
}

TEST(Metrics, TellOfDraftsWhereThereAreSome) {
  EXPECT_EQ(Begun().text().find("spec_decode"), std::string::npos);
  Metrics metrics("demo", 1);
  EngineConfig config;
  config.speculative_config = R"({"method": "suffix"})";
  metrics.begin(engine_info(), config);
  StepStats step;
  step.num_drafts = 3;
  step.num_draft_tokens = 7;
  step.num_accepted_per_pos = {3, 1};
  metrics.observer().on_step(0, step);
  metrics.observer().on_step(0, step);
  const std::string text = metrics.text();
  const auto value = [&](const char* name, const char* label = "") {
    return value_of(text, fmt::format("vllm:spec_decode_{}{{engine=\"0\",model_name=\"demo\"{}}}",
                                      name, label));
  };
  EXPECT_EQ(value("num_drafts_total"), 6);
  EXPECT_EQ(value("num_draft_tokens_total"), 14);
  EXPECT_EQ(value("num_accepted_tokens_total"), 8);
  EXPECT_EQ(value("num_accepted_tokens_per_pos_total", ",position=\"0\""), 6);
  EXPECT_EQ(value("num_accepted_tokens_per_pos_total", ",position=\"1\""), 2);
  EXPECT_EQ(value("num_accepted_tokens_per_pos_total", ",position=\"2\""), -1);
}

TEST(Metrics, TellOfStatesWhereThereAreSome) {
  EXPECT_EQ(Begun().text().find("state_usage"), std::string::npos);
  Metrics metrics("demo", 1);
  EngineInfo info = engine_info();
  info.num_states = 6;
  metrics.begin(info, {});
  const auto usage = [&] {
    return value_of(metrics.text(), R"(nanovllm_state_usage_perc{engine="0",model_name="demo"})");
  };
  StepStats step;
  step.num_used_states = 3;
  step.num_total_states = 6;
  metrics.on_step(0, step);
  EXPECT_EQ(usage(), 0.5);
  metrics.on_idle(0);
  EXPECT_EQ(usage(), 0);
}

TEST(Metrics, EscapeTheModelsName) {
  const std::string text = Begun(1, 4096, "a\\b\"c\nd").text();
  EXPECT_NE(text.find(R"(model_name="a\\b\"c\nd"})"), std::string::npos);
  const std::string bound = Begun(1, 4096, R"(a,le="1")").text();
  EXPECT_NE(bound.find(R"(model_name="a,le=\"1\"",le="1.0"})"), std::string::npos);
}

TEST(Metrics, ShowTheLastStepAndAddUpAll) {
  Begun metrics(2);
  const FleetObserver observer = metrics.observer();
  StepStats step;
  step.num_prefill_tokens = 30;
  step.num_running = 3;
  step.num_waiting = 4;
  step.num_used_blocks = 16;
  step.num_total_blocks = 64;
  step.num_preemptions = 1;
  step.num_prompt_tokens = 40;
  step.num_generation_tokens = 2;
  step.num_prefix_cache_queries = 40;
  step.num_prefix_cache_hits = 10;
  observer.on_step(1, step);
  step.num_running = 2;
  observer.on_step(1, step);
  const std::string text = metrics.text();
  const auto value = [&](const char* name) {
    return value_of(text, fmt::format("vllm:{}{{engine=\"1\",model_name=\"demo\"}}", name));
  };
  EXPECT_EQ(value("num_requests_running"), 2);
  EXPECT_EQ(value("num_requests_waiting"), 4);
  EXPECT_EQ(value("kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(value("num_preemptions_total"), 2);
  EXPECT_EQ(value("prompt_tokens_total"), 80);
  EXPECT_EQ(value("prompt_tokens_cached_total"), 20);
  EXPECT_EQ(value("generation_tokens_total"), 4);
  EXPECT_EQ(value("prefix_cache_queries_total"), 80);
  EXPECT_EQ(value("prefix_cache_hits_total"), 20);
  EXPECT_EQ(value("iteration_tokens_total_sum"), 64);
  EXPECT_EQ(value("iteration_tokens_total_count"), 2);
  const auto source = [&](const char* name) {
    return value_of(text, fmt::format("vllm:prompt_tokens_by_source_total{{engine=\"1\","
                                      "model_name=\"demo\",source=\"{}\"}}",
                                      name));
  };
  EXPECT_EQ(source("local_compute"), 60);
  EXPECT_EQ(source("local_cache_hit"), 20);
  EXPECT_EQ(value_of(text, R"(vllm:prompt_tokens_total{engine="0",model_name="demo"})"), 0);

  observer.on_idle(1);
  EXPECT_EQ(value_of(metrics.text(), R"(vllm:num_requests_running{engine="1",model_name="demo"})"),
            0);
  EXPECT_EQ(value_of(metrics.text(), R"(vllm:prompt_tokens_total{engine="1",model_name="demo"})"),
            80);
}

TEST(Metrics, ComputedTokensNeverGoBack) {
  Begun metrics;
  const auto computed = [&] {
    return value_of(metrics.text(),
                    "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"demo\","
                    "source=\"local_compute\"}");
  };
  StepStats step;
  step.num_prompt_tokens = 100;
  metrics.on_step(0, step);
  EXPECT_EQ(computed(), 100);
  step.num_prompt_tokens = 0;
  step.num_prefix_cache_hits = 30;  // of a prompt that takes several steps
  metrics.on_step(0, step);
  EXPECT_EQ(computed(), 100);
  step.num_prompt_tokens = 50;
  step.num_prefix_cache_hits = 0;
  metrics.on_step(0, step);
  EXPECT_EQ(computed(), 120);
}

TEST(Metrics, ValueOnABoundBelongsToItsBucket) {
  Begun metrics;
  for (const double seconds : {0.01, 0.0101, 0.025, 81.0}) metrics.on_tokens(0, false, seconds);
  metrics.on_tokens(0, true, 0.5);
  const std::string text = metrics.text();
  const auto count = [&](const char* bound) {
    return value_of(text, fmt::format("vllm:inter_token_latency_seconds_bucket{{engine=\"0\","
                                      "model_name=\"demo\",le=\"{}\"}}",
                                      bound));
  };
  EXPECT_EQ(count("0.01"), 1);
  EXPECT_EQ(count("0.025"), 3);
  EXPECT_EQ(count("80.0"), 3);
  EXPECT_EQ(count("+Inf"), 4);
  const char* first = "vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"demo\"}";
  EXPECT_EQ(value_of(text, first), 0.5);
}

TEST(Metrics, CountCompletionsAndRequestsThatEnd) {
  Begun metrics;
  AddRequest request;
  request.prompt_token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
  request.params.n = 2;
  request.params.max_tokens = kAsManyAsFit;
  RequestEnd end;
  end.finish_reason = FinishReason::kStop;
  end.num_cached_tokens = 6;
  end.num_preemptions = 3;
  end.metrics = {.time_to_first_step = 1,
                 .time_to_first_token = 3,
                 .time_to_last_token = 7,
                 .time_to_finish = 8};
  request.previous_output_ids = {{1, 2, 3, 4, 5}, {1}};
  metrics.on_end(0, request, end, false);
  end.finish_reason = FinishReason::kLength;
  end.index = 1;
  end.last = true;
  metrics.on_end(0, request, end, false);
  metrics.on_queue_full();
  const FleetObserver observer = metrics.observer();
  request = {.prompt_token_ids = {1, 2}};
  request.params.max_tokens = 3;
  end = {.finish_reason = FinishReason::kAbort};
  observer.on_end(-1, request, end, false);  // before an engine took it
  observer.on_end(0, request, end, true);
  const std::string text = metrics.text();
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    EXPECT_EQ(value_of(text, fmt::format("vllm:request_success_total{{engine=\"0\","
                                         "finished_reason=\"{}\",model_name=\"demo\"}}",
                                         reason)),
              1)
        << reason;
  }
  const auto sum = [&](const char* name) {
    return value_of(text, fmt::format("vllm:{}_sum{{engine=\"0\",model_name=\"demo\"}}", name));
  };
  EXPECT_EQ(sum("e2e_request_latency_seconds"), 16);
  EXPECT_EQ(sum("request_queue_time_seconds"), 2);
  EXPECT_EQ(sum("request_prefill_time_seconds"), 4);
  EXPECT_EQ(sum("request_decode_time_seconds"), 8);
  EXPECT_EQ(sum("request_inference_time_seconds"), 12);
  EXPECT_EQ(sum("request_time_per_output_token_seconds"), 1);
  EXPECT_EQ(sum("request_num_preemptions"), 6);
  EXPECT_EQ(sum("request_prompt_tokens"), 20);
  EXPECT_EQ(sum("request_prefill_kv_computed_tokens"), 8);
  EXPECT_EQ(sum("request_generation_tokens"), 6);
  EXPECT_EQ(sum("request_params_max_tokens"), 2 * 4088 + 2 * 3);
  EXPECT_EQ(sum("request_params_n"), 2);  // of requests
  EXPECT_EQ(sum("request_max_num_generation_tokens"), 5);
  EXPECT_EQ(value_of(text,
                     "vllm:admission_rejections_total{model_name=\"demo\","
                     "reason=\"max_num_queued_reqs\"}"),
            1);
}

TEST(Metrics, CanBeReadWhileTheyAreCounted) {
  Begun metrics(2);
  std::atomic<bool> done = false;
  std::vector<std::thread> engines;
  for (const int engine : {0, 1}) {
    engines.emplace_back([&, engine] {
      StepStats step;
      step.num_prompt_tokens = 1;
      for (int i = 0; i < 1000; ++i) {
        metrics.on_tokens(engine, false, 0.1);
        metrics.on_step(engine, step);
      }
    });
  }
  std::thread reader([&] {
    double before = 0;
    while (!done) {
      const double now =
          value_of(metrics.text(), R"(vllm:prompt_tokens_total{engine="0",model_name="demo"})");
      EXPECT_GE(now, before);
      before = now;
    }
  });
  for (std::thread& engine : engines) engine.join();
  done = true;
  reader.join();
  EXPECT_EQ(value_of(metrics.text(), R"(vllm:prompt_tokens_total{engine="1",model_name="demo"})"),
            1000);
}

}  // namespace
}  // namespace nanovllm::server
