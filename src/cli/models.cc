// `nanovllm pull`, `nanovllm list` and `nanovllm rm`: the models of the cache.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/message.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/terminal.h"
#include "hub/inventory.h"
#include "hub/name.h"
#include "hub/settings.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kNameHelp =
    "OWNER/MODEL, with @REVISION or, of GGUF, :TYPE behind it; or the address of its page";

void print_models(bool as_json) {
  const std::string cache = hub::read_settings().cache;
  const std::vector<hub::CachedModel> models = hub::list_models(cache);
  if (models.empty()) {
    print_message("nanovllm: no models in {}; nanovllm pull Qwen/Qwen3-0.6B fetches one\n", cache);
  }
  size_t width = 0;
  for (const hub::CachedModel& model : models) width = std::max(width, model.name.size());
  for (const hub::CachedModel& model : models) {
    if (as_json) {
      const nlohmann::ordered_json line = {{"name", model.name},
                                           {"bytes", model.num_bytes},
                                           {"complete", model.is_complete},
                                           {"path", model.path}};
      fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("{:<{}}  {:>8}{}\n", model.name, width, shown_bytes(model.num_bytes),
                 model.is_complete ? "" : "  not complete: pull it again");
    }
  }
}

}  // namespace

Command add_pull(CLI::App& app) {
  struct Options {
    std::string name;
    bool quiet = false;
  };
  auto options = std::make_shared<Options>();
  app.add_option("name", options->name, kNameHelp)->required();
  app.add_flag("-q,--quiet", options->quiet, "no progress display");
  app.footer(
      "Pulls what is missing, and what has changed on the hub since, into the cache that Hugging "
      "Face's own libraries use (~/.cache/huggingface/hub), and prints the path of the model. An "
      "interrupted pull goes on where it ended. Of a repository with safetensors these and the "
      "texts beside them are pulled; of one with GGUF files that of TYPE, or Q4_K_M. Where the "
      "hub can't be reached or refuses, the copy in the cache is used, and a line says why.\n"
      "Environment: HF_HUB_CACHE or HF_HOME (where the cache is), HF_TOKEN (else what hf auth "
      "login wrote), HF_ENDPOINT (a mirror), HF_HUB_OFFLINE=1, https_proxy.\n"
      "Exit status: 0 done, 1 error, 2 usage, 130 interrupted.\n"
      "  nanovllm pull Qwen/Qwen3-0.6B\n"
      "  nanovllm pull Qwen/Qwen3-0.6B-GGUF:Q8_0");
  return [options] {
    hub::expect_name(options->name);
    fmt::print("{}\n", pull(options->name, {.update = true}, options->quiet));
    return kExitOk;
  };
}

Command add_list(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "a JSON object a line, with the path");
  return [json] {
    print_models(*json);
    return kExitOk;
  };
}

Command add_remove(CLI::App& app) {
  auto names = std::make_shared<std::vector<std::string>>();
  app.add_option("name", *names, kNameHelp)->required();
  app.footer(
      "Without @REVISION or :TYPE, all that there is of OWNER/MODEL; an address with a revision "
      "or a GGUF file in it names that. Files that other revisions have too stay for those.");
  return [names] {
    for (const std::string& name : *names) {
      const int64_t bytes = hub::remove_model(hub::read_settings().cache, name);
      fmt::print("{}: removed, {} are free again\n", name, shown_bytes(bytes));
    }
    return kExitOk;
  };
}

}  // namespace nanovllm::cli
