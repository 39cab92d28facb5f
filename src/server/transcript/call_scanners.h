// The syntaxes that are not JSON, and their scanners; make_call_scanner chooses.
#pragma once

#include <memory>

#include "server/transcript/call_scanner.h"

namespace nanovllm::server {

// Of Qwen3-Coder, and of GLM-4.5 and later.
inline constexpr TaggedSyntax kQwen3CoderCall = {.name_open = "<function=",
                                                 .name_close = ">",
                                                 .key_open = "<parameter=",
                                                 .key_close = ">",
                                                 .value_close = "</parameter>",
                                                 .close = "</function>",
                                                 .values_have_own_lines = true};

inline constexpr TaggedSyntax kGlmCall = {.key_open = "<arg_key>",
                                          .key_close = "</arg_key>",
                                          .value_open = "<arg_value>",
                                          .value_close = "</arg_value>"};

std::unique_ptr<CallScanner> make_tagged_scanner(const TaggedSyntax& syntax,
                                                 const ToolTypes* types);
std::unique_ptr<CallScanner> make_pythonic_scanner();

}  // namespace nanovllm::server
