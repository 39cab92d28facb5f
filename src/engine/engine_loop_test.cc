#include "nanovllm/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "engine/constraint_testing.h"
#include "engine/engine_test_support.h"
#include "grammar/grammar.h"
#include "nanovllm/chat.h"

namespace nanovllm {
namespace {

using namespace std::chrono_literals;

struct Answer {
  std::map<int, Ids> token_ids;  // by completion
  std::map<int, FinishReason> ends;
  std::optional<RequestError> error;
  bool over = false;
};

// A sink that takes down what it hears, and can be held up or made to throw.
class Hearing {
 public:
  EngineLoop::Sink sink() {
    return [this](std::vector<EngineEvent> events) { hear(std::move(events)); };
  }

  // Waits, so that a loop that answers nothing fails a test and does not hang it.
  template <typename F>
  void until(F condition) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return condition(answers_); }));
  }
  Answer answer(uint64_t id) {
    until([&](auto& answers) { return answers[id].over; });
    const std::lock_guard lock(mutex_);
    return answers_[id];
  }
  std::map<uint64_t, Answer> answers() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return waiting_; }));
  }
  void throw_at_next(int count) {
    const std::lock_guard lock(mutex_);
    num_throws_ = count;
  }

  std::function<void()> in_sink;  // called by the next call, once

 private:
  void hear(std::vector<EngineEvent>&& events) {
    std::unique_lock lock(mutex_);
    EXPECT_FALSE(events.empty());
    if (num_throws_ > 0) {
      --num_throws_;
      throw std::runtime_error("The listener has left.");
    }
    waiting_ = held_;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return !held_; }));
    waiting_ = false;
    if (in_sink) std::exchange(in_sink, nullptr)();
    for (size_t i = 0; i < events.size(); ++i) {
      if (std::holds_alternative<StepStats>(events[i])) {
        EXPECT_EQ(i + 1, events.size());
      }
      std::visit([this](const auto& event) { take(event); }, events[i]);
    }
    changed_.notify_all();
  }
  void take(const PromptLogprobs&) {}
  void take(const StepStats&) {}
  void take(const RequestDelta& delta) {
    Answer& answer = answers_[delta.id];
    EXPECT_FALSE(answer.over);
    EXPECT_FALSE(answer.ends.contains(delta.index));
    Ids& ids = answer.token_ids[delta.index];
    ids.insert(ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  }
  void take(const RequestEnd& end) {
    Answer& answer = answers_[end.id];
    EXPECT_FALSE(answer.over);
    EXPECT_TRUE(answer.ends.emplace(end.index, end.finish_reason).second);
    answer.over = end.last;
  }
  void take(const RequestError& error) {
    answers_[error.id].error = error;
    answers_[error.id].over = true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Answer> answers_;
  bool held_ = false, waiting_ = false;
  int num_throws_ = 0;
};

AddRequest add(uint64_t id, int num_tokens, int prompt_length = 9) {
  return {.id = id, .prompt_token_ids = prompt_of(prompt_length), .params = greedy(num_tokens)};
}

LLMEngine fake(const FakeEngineOptions& options = {.pipeline_depth = 1}) {
  return LLMEngine(make_fake_engine(options).core);
}

// The `count` steps from `first` on fail.
LLMEngine failing(int first, int count) {
  FakeEngine engine = make_fake_engine({.pipeline_depth = 1});
  engine.runner->fail_at_step = first;
  engine.runner->num_failures = count;
  return LLMEngine(std::move(engine.core));
}

void expect_complete(const Answer& answer, int num_tokens, int prompt_length = 9) {
  EXPECT_FALSE(answer.error);
  ASSERT_EQ(answer.ends.size(), 1u);
  EXPECT_EQ(answer.ends.at(0), FinishReason::kLength);
  EXPECT_EQ(answer.token_ids.at(0), greedy_tokens(prompt_of(prompt_length), num_tokens));
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kInternal;
}

TEST(EngineLoop, ServesManyThreads) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink(), 4);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&loop, t] {
      for (uint64_t i = 0; i < 10; ++i) {
        loop.submit(add(t * 10 + i, 5 + static_cast<int>(i), 3 + static_cast<int>(t)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t id = 0; id < 40; ++id) {
    expect_complete(hearing.answer(id), 5 + static_cast<int>(id % 10),
                    3 + static_cast<int>(id / 10));
  }
}

TEST(EngineLoop, LetsAnyThreadPrepareRequests) {
  Hearing hearing;
  EngineLoop loop(LLMEngine(make_fake_engine({.pipeline_depth = 1}, alphabet()).core),
                  hearing.sink());
  const ChatTemplate chat_template(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}j"
      "{% endif %}");
  const RequestPreparer preparer = loop.preparer(&chat_template);
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      const auto messages = nlohmann::ordered_json::parse(R"([{"role":"user","content":"b"}])");
      loop.submit(preparer.prepare(id, "bj", greedy(20)));
      loop.submit(preparer.prepare_chat(10 + id, messages, nullptr, nullptr, greedy(20)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint64_t id : {0, 1, 2, 3, 10, 11, 12, 13}) {
    EXPECT_EQ(hearing.answer(id).token_ids[0], greedy_tokens({1, 9}, 20));
  }
}

TEST(EngineLoop, TakesWhatItsPreparerHasChecked) {
  Hearing hearing;
  EngineLoop loop(LLMEngine(make_fake_engine({.seed = 5}, alphabet()).core), hearing.sink());
  const RequestPreparer preparer = loop.preparer();
  AddRequest request{.id = 3, .prompt_token_ids = {1, 2, 3}, .params = random(20)};
  request.params.output_kind = RequestOutputKind::kFinalOnly;  // which a loop ignores
  loop.submit(preparer.check(request));
  const Ids ids = hearing.answer(3).token_ids[0];
  EXPECT_EQ(ids.size(), 20u);
  request.id = 4;
  request.params.seed = default_seed(5, 3);  // which that one had
  loop.submit(request);
  EXPECT_EQ(hearing.answer(4).token_ids[0], ids);
  request.id = 5;
  request.previous_output_ids = {Ids(ids.begin(), ids.begin() + 5)};
  EXPECT_TRUE(loop.try_submit(preparer.check(request)));
  EXPECT_EQ(hearing.answer(5).token_ids[0], Ids(ids.begin() + 5, ids.end()));
}

// What another engine may do can be what this one can't.
TEST(EngineLoop, ChecksWhatWasCheckedForAnotherEngine) {
  Hearing hearing;
  EngineLoop loop(LLMEngine(make_fake_engine({}).core), hearing.sink());
  RequestPreparer other = loop.preparer();
  other.info.vocab_size = 60;
  loop.submit(other.check({.id = 1, .prompt_token_ids = {55}, .params = greedy(5)}));
  ASSERT_TRUE(hearing.answer(1).error);
  EXPECT_EQ(hearing.answer(1).error->message,
            "Token id 55 is out of vocabulary; the model knows 0 to 49.");
  const auto tokenizer = alphabet();
  other = loop.preparer();
  other.tokenizer = tokenizer.get();
  SamplingParams with_stop = greedy(5);
  with_stop.stop = {"b"};
  loop.submit(other.check({.id = 2, .prompt_token_ids = {5}, .params = with_stop}));
  ASSERT_TRUE(hearing.answer(2).error);
  EXPECT_EQ(hearing.answer(2).error->code, ErrorCode::kUnsupported);
  loop.submit(other.check({.id = 3, .prompt_token_ids = {5}, .params = greedy(5)}));
  EXPECT_EQ(hearing.answer(3).token_ids[0], greedy_tokens({5}, 5));
  // One that was used up is no request any more, and none can be changed where it is.
  static_assert(std::is_same_v<decltype(std::declval<CheckedRequest>().release()), AddRequest>);
  CheckedRequest used = loop.preparer().check({.prompt_token_ids = {5}, .params = greedy(5)});
  EXPECT_TRUE(used.is_for(loop.preparer()));
  const AddRequest taken = std::move(used).release();
  EXPECT_FALSE(used.is_for(loop.preparer()));  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(taken.prompt_token_ids, Ids{5});
}

TEST(EngineLoop, EndsEachCompletionOnce) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  AddRequest request = add(1, 30);
  request.params = random(30);
  request.params.n = 4;
  request.params.ignore_eos = false;
  loop.submit(request);
  const Answer answer = hearing.answer(1);
  EXPECT_FALSE(answer.error);
  EXPECT_EQ(answer.ends.size(), 4u);
  EXPECT_EQ(answer.token_ids.size(), 4u);
}

TEST(EngineLoop, RefusesWhatCanNotBeServedAndGoesOn) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  AddRequest wrong = add(7, 5);
  wrong.params.top_p = 2;
  loop.submit(wrong);
  loop.submit(AbortRequest{7});
  const Answer refused = hearing.answer(7);
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error->message, "top_p must be in (0, 1], got 2.0.");
  loop.submit(add(8, 5));
  expect_complete(hearing.answer(8), 5);
}

TEST(EngineLoop, EndsBothRequestsOfOneId) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 150));
  hearing.wait_until_held();
  loop.submit(add(1, 5));
  hearing.let_go();
  const Answer answer = hearing.answer(1);
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->message, "Two requests have the id 1 at once.");
  loop.submit(add(2, 5));
  expect_complete(hearing.answer(2), 5);
  EXPECT_EQ(hearing.answer(1).token_ids, answer.token_ids);
}

TEST(EngineLoop, AbortsARequest) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 150));
  loop.submit(add(2, 20));
  hearing.wait_until_held();
  loop.submit(AbortRequest{1});
  loop.submit(AbortRequest{99});
  hearing.let_go();
  const Answer answer = hearing.answer(1);
  EXPECT_FALSE(answer.error);
  EXPECT_EQ(answer.ends.at(0), FinishReason::kAbort);
  expect_complete(hearing.answer(2), 20);
}

// A slow sink holds the engine up, and the queue in front of it fills.
TEST(EngineLoop, SaysWhenItsQueueIsFull) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink(), 3);
  ErrorCode in_sink = ErrorCode::kIo;
  bool tried_in_sink = true;
  hearing.in_sink = [&] {
    tried_in_sink = loop.try_submit(add(90, 5));
    in_sink = code_of([&] { loop.submit(add(91, 5)); });
  };
  hearing.hold();
  loop.submit(add(0, 5));
  hearing.wait_until_held();
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(loop.try_submit(add(id, 5)));
  EXPECT_FALSE(loop.try_submit(add(92, 5)));
  std::thread waits([&] { loop.submit(add(4, 5)); });
  hearing.let_go();
  waits.join();
  for (uint64_t id = 0; id <= 4; ++id) expect_complete(hearing.answer(id), 5);
  EXPECT_FALSE(tried_in_sink);
  EXPECT_EQ(in_sink, ErrorCode::kInvalidArgument);
  EXPECT_EQ(hearing.answers().size(), 5u);
}

TEST(EngineLoop, TakesCommandsOfItsSink) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.in_sink = [&] { loop.submit(add(2, 7)); };
  loop.submit(add(1, 5));
  expect_complete(hearing.answer(1), 5);
  expect_complete(hearing.answer(2), 7);
}

TEST(EngineLoop, RunsCallsBehindTheCommandsBeforeThem) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  EXPECT_EQ(code_of([&] { loop.call([](LLMEngine& engine) { engine.start_trace("/no/t"); }); }),
            ErrorCode::kIo);
  loop.submit(add(1, 150));
  bool is_known = false;
  loop.call([&](LLMEngine& engine) { is_known = !engine.is_finished(); });
  EXPECT_TRUE(is_known || hearing.answers()[1].over);
  expect_complete(hearing.answer(1), 150);
  loop.submit(Shutdown{.drain = true});
  loop.wait();
  EXPECT_EQ(code_of([&] { loop.call([](LLMEngine&) {}); }), ErrorCode::kUnavailable);
}

// Whoever waits for one hears of the end.
TEST(EngineLoop, RunsCallsThatComeWhileItEnds) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 5));
  hearing.wait_until_held();
  loop.submit(Shutdown{.drain = false});
  std::thread ends([&] {
    std::this_thread::sleep_for(10ms);
    hearing.let_go();
  });
  bool ran = false;
  loop.call([&](LLMEngine&) { ran = true; });
  ends.join();
  EXPECT_TRUE(ran);
}

TEST(EngineLoop, DrainsBeforeItEnds) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 50));
  hearing.wait_until_held();
  loop.submit(add(2, 50));
  loop.submit(Shutdown{.drain = true});
  loop.submit(add(3, 5));
  hearing.let_go();
  loop.wait();
  expect_complete(hearing.answer(1), 50);
  expect_complete(hearing.answer(2), 50);
  EXPECT_EQ(hearing.answer(3).error->code, ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { loop.submit(add(4, 5)); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { loop.try_submit(add(4, 5)); }), ErrorCode::kUnavailable);
}

TEST(EngineLoop, EndsIdle) {
  Hearing hearing;
  for (const bool drain : {false, true}) {
    EngineLoop loop(fake(), hearing.sink());
    loop.submit(Shutdown{drain});
    loop.wait();
  }
  EXPECT_TRUE(hearing.answers().empty());
}

// What is cut off goes on elsewhere, without a seed under the same id.
TEST(EngineLoop, ShutsDownAtOnceAndAnotherOneGoesOn) {
  AddRequest request = add(5, 100);
  request.params = random(100);
  request.params.n = 2;
  Hearing whole, first, second;
  {
    EngineLoop loop(fake(), whole.sink());
    loop.submit(request);
    whole.answer(5);
  }
  {
    EngineLoop* self = nullptr;
    int num_calls = 0;
    EngineLoop loop(fake(), [&, sink = first.sink()](std::vector<EngineEvent> events) {
      sink(std::move(events));
      if (++num_calls != 30) return;
      self->submit(Shutdown{.drain = false});
      self->submit(add(6, 5));
    });
    self = &loop;
    loop.submit(request);
    loop.wait();
  }
  const Answer cut = first.answer(5);
  ASSERT_TRUE(cut.error);
  EXPECT_EQ(cut.error->code, ErrorCode::kUnavailable);
  EXPECT_EQ(first.answer(6).error->code, ErrorCode::kUnavailable);
  EXPECT_GT(cut.token_ids.at(1).size(), 10u);
  EngineLoop loop(fake(), second.sink());
  loop.submit(add(1, 5));  // another place in the queue
  request.previous_output_ids = {cut.token_ids.at(0), cut.token_ids.at(1)};
  loop.submit(request);
  const Answer rest = second.answer(5);
  for (const int i : {0, 1}) {
    Ids ids = cut.token_ids.at(i);
    ids.insert(ids.end(), rest.token_ids.at(i).begin(), rest.token_ids.at(i).end());
    EXPECT_EQ(ids, whole.answer(5).token_ids.at(i));
    EXPECT_EQ(rest.ends.at(i), whole.answer(5).ends.at(i));
  }
}

TEST(EngineLoop, TriesAStepThatFailedAgain) {
  Hearing hearing;
  EngineLoop loop(failing(3, 1), hearing.sink());
  for (uint64_t id = 0; id < 3; ++id) loop.submit(add(id, 20));
  for (uint64_t id = 0; id < 3; ++id) expect_complete(hearing.answer(id), 20);
}

TEST(EngineLoop, EndsItsRequestsWhenAStepFailsAgainAndServesLaterOnes) {
  Hearing hearing;
  EngineLoop loop(failing(3, 2), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 20));
  hearing.wait_until_held();
  loop.submit(add(2, 20));
  hearing.let_go();
  for (const uint64_t id : {1, 2}) {
    const Answer answer = hearing.answer(id);
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->code, ErrorCode::kInternal);
    EXPECT_EQ(answer.error->message, "The device is on fire.");
  }
  loop.submit(add(3, 20));
  expect_complete(hearing.answer(3), 20);
}

TEST(EngineLoop, EndsEveryRequestOfABrokenEngine) {
  Hearing hearing;
  EngineLoop loop(failing(0, 1000), hearing.sink());
  for (uint64_t id = 0; id < 5; ++id) {
    loop.submit(add(id, 5));
    EXPECT_EQ(hearing.answer(id).error->message, "The device is on fire.");
  }
}

// A step may read rows of a file that are corrupt, which a server must not call a bad request.
TEST(EngineLoop, BlamesNoRequestForAFileThatAStepCannotRead) {
  FakeEngine engine = make_fake_engine({.pipeline_depth = 1});
  engine.runner->fail_at_step = 0;
  engine.runner->num_failures = 2;
  engine.runner->failure = ErrorCode::kCorruptData;
  Hearing hearing;
  EngineLoop loop(LLMEngine(std::move(engine.core)), hearing.sink());
  loop.submit(add(1, 5));
  EXPECT_EQ(hearing.answer(1).error->code, ErrorCode::kIo);
}

TEST(EngineLoop, EndsItsRequestsWhenTheSinkThrows) {
  Hearing hearing;
  EngineLoop loop(fake(), hearing.sink());
  hearing.hold();
  loop.submit(add(1, 150));
  hearing.wait_until_held();
  AddRequest wrong = add(2, 5);
  wrong.prompt_token_ids.clear();
  loop.submit(wrong);  // its answer is in the list that is lost
  hearing.throw_at_next(1);
  hearing.let_go();
  for (const uint64_t id : {1, 2}) {
    const Answer answer = hearing.answer(id);
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->code, ErrorCode::kInternal);
    EXPECT_EQ(answer.error->message, "The listener has left.");
  }
  loop.submit(add(3, 5));
  expect_complete(hearing.answer(3), 5);
}

TEST(EngineLoop, SaysSoWhenTheSinkTakesNothingAtAll) {
  ::testing::internal::CaptureStderr();
  {
    Hearing hearing;
    EngineLoop loop(fake(), hearing.sink());
    hearing.hold();
    loop.submit(add(1, 150));
    hearing.wait_until_held();
    hearing.throw_at_next(2);
    hearing.let_go();
    loop.submit(Shutdown{.drain = true});
    loop.wait();
    EXPECT_FALSE(hearing.answers()[1].over);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "nanovllm: events of 1 request are lost: The listener has left.\n");
}

TEST(EngineLoop, IsDestroyedWhileItWorks) {
  for (int round = 0; round < 20; ++round) {
    Hearing hearing;
    {
      EngineLoop loop(fake(), hearing.sink());
      for (uint64_t id = 0; id < 10; ++id) loop.submit(add(id, 150));
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    }
    const auto answers = hearing.answers();
    ASSERT_EQ(answers.size(), 10u);
    for (const auto& [id, answer] : answers) EXPECT_TRUE(answer.over);
  }
}

TEST(EngineLoop, IsDestroyedWhileItsSinkWaits) {
  Hearing hearing;
  std::thread lets_go;
  {
    EngineLoop loop(fake(), hearing.sink());
    hearing.hold();
    loop.submit(add(1, 150));
    hearing.wait_until_held();
    loop.submit(add(2, 5));
    lets_go = std::thread([&] {
      std::this_thread::sleep_for(20ms);
      hearing.let_go();
    });
  }
  lets_go.join();
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(hearing.answer(id).error->code, ErrorCode::kUnavailable);
  }
}

TEST(EngineLoop, SaysNothingOfWhatRequestsAskFor) {
  AddRequest request = add(1, 5);
  request.params.bad_words = {"a\u00e9"};  // the alphabet has no such letter: it bans an a
  ::testing::internal::CaptureStderr();
  {
    Hearing hearing;
    EngineLoop loop(LLMEngine(make_fake_engine({}, alphabet()).core), hearing.sink());
    loop.submit(request);
    EXPECT_FALSE(hearing.answer(1).error);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(EngineLoop, RefusesToBeginWithoutItsParts) {
  Hearing hearing;
  EXPECT_EQ(code_of([&] { EngineLoop(fake(), {}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { EngineLoop(fake(), hearing.sink(), 0); }), ErrorCode::kInvalidArgument);
  LLMEngine busy = fake();
  busy.add_request(prompt_of(3), greedy(3));
  EXPECT_EQ(code_of([&] { EngineLoop(std::move(busy), hearing.sink()); }),
            ErrorCode::kInvalidArgument);
}

LLMEngine spelling() { return LLMEngine(make_fake_engine({}, short_texts()).core); }

AddRequest slow(uint64_t id, char first = 'a') {
  AddRequest request = add(id, 5);
  request.params.structured_outputs.emplace().regex = slow_regex(first);
  return request;
}

int32_t first_letter(const Answer& answer) { return answer.token_ids.at(0).at(0); }

TEST(EngineLoop, LetsOthersPassWhileAGrammarIsCompiled) {
  Hearing hearing, alone;
  EngineLoop loop(spelling(), hearing.sink());
  const auto begin = std::chrono::steady_clock::now();
  loop.submit(slow(1));
  loop.submit(add(2, 5));
  const auto submitted = std::chrono::steady_clock::now();
  expect_complete(hearing.answer(2), 5);
  EXPECT_FALSE(hearing.answers()[1].over);
  EXPECT_TRUE(hearing.answers()[1].token_ids.empty());
  const Answer answer = hearing.answer(1);
  EXPECT_LT(submitted - begin, (std::chrono::steady_clock::now() - begin) / 2);
  ASSERT_FALSE(answer.error) << answer.error->message;
  ASSERT_EQ(answer.token_ids.at(0).size(), 5u);
  const Ids with_an_a = {1, 24, 25};
  EXPECT_EQ(std::ranges::count(with_an_a, first_letter(answer)), 1);
  // The same as where it is known, and compiled before.
  EXPECT_FALSE(loop.preparer().must_compile(slow(3).params));
  loop.submit(slow(3));
  EXPECT_EQ(hearing.answer(3).token_ids, answer.token_ids);
  EngineLoop other(spelling(), alone.sink());
  other.submit(other.preparer().check(slow(1)));
  EXPECT_EQ(alone.answer(1).token_ids, answer.token_ids);
}

TEST(EngineLoop, RefusesWhatCanNotBeCompiledAndGoesOn) {
  Hearing hearing;
  EngineLoop loop(spelling(), hearing.sink());
  AddRequest wrong = add(1, 5);
  wrong.params.structured_outputs.emplace().regex = "(";
  loop.submit(wrong);
  ASSERT_TRUE(hearing.answer(1).error);
  EXPECT_EQ(hearing.answer(1).error->code, ErrorCode::kInvalidArgument);
  AddRequest untrue = slow(2);
  untrue.params.n = -1;
  loop.submit(untrue);
  EXPECT_EQ(hearing.answer(2).error->code, ErrorCode::kInvalidArgument);
  loop.submit(add(3, 5));
  expect_complete(hearing.answer(3), 5);
}

TEST(EngineLoop, AbortsWhatIsBeingCompiledOrWaitsForIt) {
  Hearing hearing;
  EngineLoop loop(spelling(), hearing.sink());
  AddRequest two = slow(1);
  two.params = random(5);
  two.params.n = 2;
  two.params.structured_outputs = slow(1).params.structured_outputs;
  loop.submit(two);
  loop.submit(slow(2, 'b'));
  loop.submit(slow(3, 'c'));
  loop.submit(AbortRequest{1});
  loop.submit(AbortRequest{2});
  const Answer first = hearing.answer(1), second = hearing.answer(2);
  EXPECT_FALSE(hearing.answers()[3].over);
  EXPECT_EQ(first.ends,
            (std::map<int, FinishReason>{{0, FinishReason::kAbort}, {1, FinishReason::kAbort}}));
  EXPECT_EQ(second.ends, (std::map<int, FinishReason>{{0, FinishReason::kAbort}}));
  EXPECT_TRUE(first.token_ids.empty() && second.token_ids.empty());
  // What is compiled of those comes to nobody who has their ids by then.
  EXPECT_EQ(first_letter(hearing.answer(3)), 3);  // a c
  EXPECT_TRUE(loop.preparer().must_compile(slow(2, 'b').params)) << "it was compiled for nobody";
}

TEST(EngineLoop, EndsBothRequestsOfOneIdWhileOneIsCompiled) {
  Hearing hearing;
  EngineLoop loop(spelling(), hearing.sink());
  loop.submit(slow(1));
  loop.submit(add(1, 5));
  EXPECT_EQ(hearing.answer(1).error->message, "Two requests have the id 1 at once.");
  loop.submit(slow(2, 'b'));
  EXPECT_FALSE(hearing.answer(2).error);
  EXPECT_TRUE(hearing.answers()[1].token_ids.empty());
}

TEST(EngineLoop, DrainsWhatIsBeingCompiled) {
  Hearing hearing;
  EngineLoop loop(spelling(), hearing.sink());
  loop.submit(slow(1));
  loop.submit(slow(2, 'b'));
  loop.submit(Shutdown{.drain = true});
  loop.submit(slow(3, 'c'));
  loop.wait();
  EXPECT_EQ(hearing.answer(1).token_ids.at(0).size(), 5u);
  EXPECT_EQ(hearing.answer(2).token_ids.at(0).size(), 5u);
  EXPECT_EQ(hearing.answer(3).error->code, ErrorCode::kUnavailable);
}

TEST(EngineLoop, EndsAtOnceWhileItCompiles) {
  for (const bool is_told : {true, false}) {
    Hearing hearing;
    {
      EngineLoop loop(spelling(), hearing.sink());
      loop.submit(slow(1));
      loop.submit(slow(2, 'b'));
      if (is_told) {
        loop.submit(Shutdown{.drain = false});
        loop.wait();
        EXPECT_TRUE(loop.preparer().must_compile(slow(2, 'b').params));
      }
    }
    for (const uint64_t id : {1, 2}) {
      ASSERT_TRUE(hearing.answers()[id].over);
      EXPECT_EQ(hearing.answer(id).error->code, ErrorCode::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace nanovllm
