// Checkpoints in shards for tests, made of whole ones.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/testing.h"

namespace nanovllm::testing {

// Writes a folder's model.safetensors to `target` as shards with their index, one tensor here, the
// next one there. Returns the shape of each tensor.
inline std::map<std::string, std::vector<int64_t>> write_shards(const std::string& model_dir,
                                                                size_t num_shards,
                                                                const TempDir& target) {
  std::ifstream file(model_dir + "/model.safetensors", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const size_t data_begin = sizeof header_size + header_size;
  auto tensors = nlohmann::json::parse(bytes.substr(sizeof header_size, header_size));
  tensors.erase("__metadata__");

  std::vector<nlohmann::json> headers(num_shards, nlohmann::json::object());
  std::vector<std::string> contents(num_shards);
  nlohmann::json files;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : tensors.items()) {
    const size_t shard = shapes.size() % num_shards;
    const auto begin = tensor["data_offsets"][0].get<size_t>();
    const auto end = tensor["data_offsets"][1].get<size_t>();
    std::string& content = contents[shard];
    headers[shard][name] = tensor;
    headers[shard][name]["data_offsets"] = {content.size(), content.size() + end - begin};
    content.append(bytes, data_begin + begin, end - begin);
    files[name] = "model-" + std::to_string(shard) + ".safetensors";
    shapes[name] = tensor["shape"].get<std::vector<int64_t>>();
  }
  for (size_t shard = 0; shard < num_shards; ++shard) {
    target.write("model-" + std::to_string(shard) + ".safetensors",
                 safetensors_bytes(headers[shard].dump(), contents[shard]));
  }
  target.write("model.safetensors.index.json", nlohmann::json({{"weight_map", files}}).dump());
  return shapes;
}

}  // namespace nanovllm::testing
