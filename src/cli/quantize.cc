// `nanovllm quantize`: a folder of a model in fewer bits.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/message.h"
#include "base/resource_limits.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/terminal.h"
#include "engine/load.h"
#include "io/rounded_folder.h"
#include "nanovllm/error.h"

namespace nanovllm::cli {
namespace {

struct QuantizeOptions {
  ModelOption model;
  std::string out;
  std::string format = "int8";
  int num_threads = 0;
  bool quiet = false;
};

struct Interrupted {};

RoundedFolder write_folder(const QuantizeOptions& options) {
  const bool shows_progress = !options.quiet && is_terminal(stderr);
  int64_t shown_percent = -1;
  const auto show = [&](int64_t done, int64_t total) {
    if (InterruptGuard::interrupted()) throw Interrupted();
    if (!shows_progress) return;
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total));
    const auto percent = static_cast<int64_t>(100 * share);
    if (percent == shown_percent) return;
    shown_percent = percent;
    print_message("\r\x1b[K{}{}", with_bar(options.out, share, fmt::format("{}%", percent)),
                  done == total ? "\n" : "");
  };
  const InterruptGuard guard;
  try {
    return write_rounded_folder(
        options.model.path, options.out, *parse_rounded_format(options.format),
        options.num_threads > 0 ? options.num_threads : usable_cpus(), show);
  } catch (const Interrupted&) {
    if (shows_progress) print_message("\n");
    throw;
  }
}

// The folder may be for other programs.
void tell_if_nobody_here_opens_it(const ModelOption& model) {
  std::error_code ignored;  // what is no folder is refused
  if (!std::filesystem::exists(model.path + "/config.json", ignored)) return;
  const std::string why = why_unsupported(model.path);
  if (why.empty()) return;
  print_message("nanovllm: {}: other programs may open what is written, nanovllm can't: {}\n",
                model.name, why);
}

int quantize(const QuantizeOptions& options) {
  if (!options.quiet) tell_if_nobody_here_opens_it(options.model);
  RoundedFolder folder;
  try {
    folder = write_folder(options);
  } catch (const Interrupted&) {
    print_error(fmt::format("interrupted; {} is as it was before", options.out));
    return kExitInterrupted;
  }
  if (folder.num_stacks > 0 && !options.quiet) {
    print_message(
        "nanovllm: {} of experts stay as they are, for compressed-tensors has no format for "
        "them; --quantization rounds them while they are loaded\n",
        counted(folder.num_stacks, "stack"));
  }
  if (folder.num_ungrouped > 0 && !options.quiet) {
    print_message("nanovllm: {} rows are no multiple of 32\n",
                  folder.num_ungrouped == 1 ? "1 matrix stays as it is, for its"
                                            : fmt::format("{} matrices stay as they are, for their",
                                                          folder.num_ungrouped));
  }
  fmt::print("{}: {} matri{} in {}, {}, {:.2f} bits a weight\n", options.out, folder.num_rounded,
             folder.num_rounded == 1 ? "x" : "ces", options.format, shown_bytes(folder.bytes),
             static_cast<double>(folder.bytes) * 8 /
                 static_cast<double>(std::max<int64_t>(1, folder.num_parameters)));
  return kExitOk;
}

}  // namespace

Command add_quantize(CLI::App& app) {
  auto options = std::make_shared<QuantizeOptions>();
  options->model.add_to(app, "model folder");
  app.add_option("out", options->out,
                 "the folder that is written; it must not be there, or be empty")
      ->required();
  app.add_option("--format", options->format,
                 "int8 or int4, in groups of 32 columns, or fp8, a scale a row; the head is int8")
      ->capture_default_str()
      ->check(CLI::IsMember({"int8", "int4", "fp8"}))
      ->option_text("NAME");
  app.add_option("--num-threads", options->num_threads,
                 "CPU threads; 0 = as many as affinity and cgroup limits allow")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_flag("-q,--quiet", options->quiet, "no progress display");
  app.footer(
      "Rounds the weights of a folder that is not quantised to nearest and writes them in the "
      "format of compressed-tensors, which transformers and vLLM read as well; the other files "
      "are copied. Embeddings, norms and routers stay. `--quantization int4` of the other "
      "commands makes the same codes while a model is loaded, without a folder.\n"
      "  nanovllm quantize Qwen/Qwen3-0.6B qwen3-int4 --format int4\n"
      "  nanovllm chat qwen3-int4");
  return [options] {
    options->model.find(options->quiet);
    return quantize(*options);
  };
}

}  // namespace nanovllm::cli
