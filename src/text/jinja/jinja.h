// A small Jinja: the language of Hugging Face chat templates, with the output of Jinja2 as
// transformers sets it up (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, generation
// blocks).
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/budget.h"

namespace nanovllm::jinja {

struct Template;

struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // what strftime_now() shows; the time of the call when not set
};

// Immutable and thread-safe after construction.
class Program {
 public:
  // Throws Error(kCorruptData) with line and column for what Jinja could not compile.
  explicit Program(std::string_view source);
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  // variables: an object. Throws Error(kInvalidArgument) with line and column where Jinja would
  // raise, and when a limit is exceeded.
  std::string render(const nlohmann::ordered_json& variables,
                     const RenderOptions& options = {}) const;

 private:
  std::unique_ptr<Template> template_;
};

}  // namespace nanovllm::jinja
