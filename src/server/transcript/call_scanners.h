// The scanners of syntaxes that are not JSON; make_call_scanner chooses.
#pragma once

#include <memory>

#include "server/transcript/call_scanner.h"

namespace nanovllm::server {

std::unique_ptr<CallScanner> make_tagged_scanner(const TaggedSyntax& syntax,
                                                 const ToolTypes* types);
std::unique_ptr<CallScanner> make_pythonic_scanner();

}  // namespace nanovllm::server
