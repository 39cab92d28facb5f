// What the environment says about the hub, under the names that huggingface_hub gave it.
#pragma once

#include <string>

namespace nanovllm::hub {

struct Settings {
  std::string cache;         // folder
  std::string endpoint;      // "https://huggingface.co", without / at its end
  std::string shown;         // the same in messages, without a password
  std::string token;         // empty = none
  std::string token_source;  // "HF_TOKEN" or the path of a file
  bool offline = false;
};

// Throws Error(kInvalidArgument) for an endpoint or a token that can't be one.
Settings read_settings();

}  // namespace nanovllm::hub
