#include "engine/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/testing.h"
#include "engine/fake_runner.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

class Trace : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  nlohmann::json read() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return nlohmann::json::parse(text.str());
  }

  FakeEngine make(int pipeline_depth = 0, int num_blocks = 64) const {
    return make_fake_engine({.num_blocks = num_blocks,
                             .max_num_batched_tokens = 16,
                             .pipeline_depth = pipeline_depth,
                             .trace_file = path_});
  }

  static void add(FakeEngine& engine, int32_t first, int max_tokens) {
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    params.max_tokens = max_tokens;
    engine.core->add_request(std::vector<int32_t>(6, first), params);
  }

  const std::string path_ =
      (fs::temp_directory_path() / ("nanovllm_trace_" + std::to_string(::getpid()) + ".json"))
          .string();
};

TEST_F(Trace, TellsStepsBlocksAndTheLifeOfEachRequest) {
  for (const int depth : {0, 1}) {
    FakeEngine engine = make(depth, 5);
    add(engine, 3, 9);
    add(engine, 4, 9);  // both need four blocks in the end, so that one is preempted
    while (!engine.core->is_finished()) engine.core->step();
    engine.core->finish_trace();

    std::map<std::string, std::vector<std::string>> lives;  // begins and ends by request
    std::map<std::string, int> open;
    int64_t num_batched = 0, last_step_end = 0;
    int num_counters = 0, num_preemptions = 0;
    for (const auto& event : read()) {
      const std::string kind = event["ph"];
      if (kind == "b" || kind == "e") {
        const std::string name = event["name"];
        lives[event["id"]].push_back((kind == "b" ? "+" : "-") + name);
        open[event["id"]] += kind == "b" ? 1 : -1;
      } else if (kind == "X") {
        for (const auto& part : event["args"]["batch"]) num_batched += part["new"].get<int64_t>();
        num_preemptions += event["args"]["preemptions"].get<int>();
        EXPECT_GE(event["ts"].get<int64_t>(), last_step_end);  // steps do not overlap
        last_step_end = event["ts"].get<int64_t>() + event["dur"].get<int64_t>();
      } else if (kind == "C") {
        ++num_counters;
        if (event["args"].contains("used")) {
          EXPECT_EQ(event["args"]["used"].get<int>() + event["args"]["free"].get<int>(), 5);
        }
      }
    }
    EXPECT_EQ(num_batched, engine.runner->num_computed_tokens);
    EXPECT_EQ(num_counters, 2 * engine.runner->num_steps);
    EXPECT_EQ(num_preemptions, 1);
    for (const auto& [id, count] : open) EXPECT_EQ(count, 0) << id;
    EXPECT_EQ(lives["0.0"],
              (std::vector<std::string>{"+request 0.0", "+queued", "-queued", "+prefill",
                                        "-prefill", "+decode", "-decode", "-request 0.0"}));
    EXPECT_EQ(lives["1.0"], (std::vector<std::string>{
                                "+request 1.0", "+queued", "-queued", "+prefill", "-prefill",
                                "+decode", "-decode", "+preempted", "-preempted", "+prefill",
                                "-prefill", "+decode", "-decode", "-request 1.0"}));
  }
}

TEST_F(Trace, TellsOfStatesWhereThereAreSome) {
  FakeEngine engine = make_fake_engine({.states = {.num_slots = 4, .num_logs = 2, .chunk = 4}});
  engine.core->start_trace(path_);
  add(engine, 3, 2);
  while (!engine.core->is_finished()) engine.core->step();
  engine.core->finish_trace();
  int num_counters = 0;
  for (const auto& event : read()) {
    if (event["name"] != "states") continue;
    ++num_counters;
    EXPECT_EQ(event["args"], (nlohmann::json{{"used", 1}, {"free", 1}}));
  }
  EXPECT_EQ(num_counters, engine.runner->num_steps);
}

// Requests that run when it starts begin in it as what they are.
TEST_F(Trace, HoldsWhatComesBetweenItsStartAndItsEnd) {
  for (const int depth : {0, 1}) {
    FakeEngine engine = make_fake_engine({.pipeline_depth = depth});
    add(engine, 3, 20);
    engine.core->step();
    engine.core->start_trace(path_);
    engine.core->step();
    engine.core->step();
    add(engine, 4, 2);
    engine.core->finish_trace();
    const nlohmann::json events = read();
    while (!engine.core->is_finished()) engine.core->step();
    EXPECT_EQ(read(), events);
    std::vector<std::string> life;
    int num_steps = 0;
    for (const auto& event : events) {
      const std::string kind = event["ph"];
      if (kind == "b" || kind == "e") {
        life.push_back(
            fmt::format("{}{}", kind == "b" ? '+' : '-', event["name"].get<std::string>()));
      }
      if (kind == "X") {
        ++num_steps;
        EXPECT_GE(event["ts"].get<int64_t>(), 0);
      }
    }
    EXPECT_EQ(life,
              (std::vector<std::string>{"+request 0.0", "+decode", "+request 1.0", "+queued"}));
    EXPECT_EQ(num_steps, 2);
  }
}

TEST_F(Trace, AnotherOneTakesThePlaceOfTheOneThatRuns) {
  FakeEngine engine = make();
  const std::string other = path_ + ".2";
  add(engine, 3, 2);
  engine.core->step();
  engine.core->start_trace(other);
  const nlohmann::json first = read();
  while (!engine.core->is_finished()) engine.core->step();
  engine.core->start_trace(path_);  // anew
  EXPECT_EQ(read().size(), 2u);     // names
  engine.core->finish_trace();
  EXPECT_GT(first.size(), 2u);
  EXPECT_GT(fs::file_size(other), fs::file_size(path_));
  fs::remove(other);
  EXPECT_THROW(engine.core->start_trace("/nowhere/trace.json"), Error);
  engine.core->finish_trace();
}

TEST_F(Trace, IsValidJsonAtAnyMoment) {
  FakeEngine engine = make();
  for (int i = 0; i < 10; ++i) add(engine, i + 1, 150);
  size_t num_events = read().size();
  EXPECT_GT(num_events, 0u);
  bool grew = false;
  for (int i = 0; i < test::full_or_reduced(400, 150) && !engine.core->is_finished(); ++i) {
    engine.core->step();
    const size_t now = read().size();
    grew = grew || now > num_events;
    num_events = now;
  }
  EXPECT_TRUE(grew);
  engine.core->abort_request(3);
  engine.core.reset();  // in the middle of everything
  EXPECT_GT(read().size(), num_events);
}

TEST_F(Trace, AFolderThatIsNotThereIsToldAtOnce) {
  try {
    make_fake_engine({.trace_file = "/nowhere/trace.json"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_STREQ(error.what(),
                 "The trace file /nowhere/trace.json can't be created: No such file or directory.");
  }
}

TEST_F(Trace, AFullDiskIsToldOnceAtTheEnd) {
  FakeEngine engine = make_fake_engine({.trace_file = "/dev/full"});
  add(engine, 3, 20);
  while (!engine.core->is_finished()) engine.core->step();
  try {
    engine.core->finish_trace();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_STREQ(error.what(), "The trace file /dev/full is incomplete: No space left on device.");
  }
  engine.core->finish_trace();  // told already
}

TEST_F(Trace, ADiskThatFillsUpLeavesWhatWasWrittenBefore) {
  FakeEngine engine = make();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{100000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  for (int i = 0; i < 10; ++i) add(engine, i + 1, 150);
  while (!engine.core->is_finished()) engine.core->step();
  EXPECT_THROW(engine.core->finish_trace(), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_GT(read().size(), 100u);
  EXPECT_LE(fs::file_size(path_), 100000u);
}

}  // namespace
}  // namespace nanovllm
