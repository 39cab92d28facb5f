// A worker for the tests of the server: `nanovllm serve`'s, or one with an engine that is made to
// fail.
//   server_worker_driver model MODEL [FLAG VALUE]...
//   server_worker_driver fake [FLAG VALUE]...
//   server_worker_driver fails MESSAGE
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/engine_test_support.h"
#include "server/fleet/fleet.h"
#include "server/fleet/worker.h"

namespace {

using namespace nanovllm;  // NOLINT(google-build-using-namespace)

class Flags {
 public:
  Flags(int argc, char** argv, int first) {
    for (int i = first; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  }
  int number(const std::string& flag, int otherwise) const {
    const auto found = values_.find(flag);
    return found == values_.end() ? otherwise : std::stoi(found->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

LLMEngine fake_engine(const Flags& flags, Progress& progress) {
  FakeEngineOptions options;
  options.num_blocks = flags.number("--num-kvcache-blocks", options.num_blocks);
  options.max_num_seqs = flags.number("--max-num-seqs", options.max_num_seqs);
  options.pipeline_depth = 1;
  FakeEngine engine = make_fake_engine(options, alphabet());
  engine.runner->deadly_id = flags.number("--deadly-id", -1);
  engine.runner->step_time = std::chrono::microseconds(flags.number("--step-us", 0));
  engine.runner->progress = &progress;
  engine.runner->pieces_of_step = flags.number("--pieces-of-step", 1);
  engine.runner->fail_at_step = flags.number("--fail-at-step", -1);
  engine.runner->num_failures = 1000;
  return LLMEngine(std::move(engine.core));
}

EngineConfig config(const Flags& flags) {
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = 1;
  config.max_model_len = 512;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = flags.number("--num-kvcache-blocks", 512);
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  const std::string& what = arguments.at(1);
  const Flags flags(argc, argv, what == "fake" ? 2 : 3);
  const int socket = flags.number("--worker-fd", -1);
  if (what == "model") {
    return server::run_worker(socket, flags.number("--worker-index", 0), arguments.at(2),
                              config(flags));
  }
  return server::serve_engine(socket, [&](Progress& progress) {
    for (int i = 0; i < flags.number("--pieces-of-load", 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      progress.advance();
    }
    if (what == "fails") throw_error(ErrorCode::kOutOfMemory, "{}", arguments.at(2));
    return fake_engine(flags, progress);
  });
}
