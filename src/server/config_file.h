// `--config FILE`: flags from a YAML file.
#pragma once

#include <string>
#include <vector>

namespace nanovllm::server {

// The words of a command line with the flags of the file that its --config names in front of its
// own, so that what is typed wins. Keys are flags' names, with dashes or underscores; true, yes
// and on turn a flag on, false, no and off turn it off, a list is several values, a map its JSON;
// `model` is MODEL, unless the command line has one first. Throws Error where the file can't be
// read or holds anything else.
std::vector<std::string> with_config_file(std::vector<std::string> words);
// The file that --config names; empty = none.
std::string path_of_config(std::vector<std::string> words);

}  // namespace nanovllm::server
