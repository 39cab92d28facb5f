#include "runner/cache_groups.h"

#include <algorithm>
#include <map>

#include "base/message.h"
#include "ops/backend.h"

namespace nanovllm {
namespace {

using LayersByWindow = std::map<int, std::vector<int>>;

int groups_of(const LayersByWindow& kinds, int size) {
  int count = 0;
  for (const auto& [window, layers] : kinds) {
    count += (static_cast<int>(layers.size()) + size - 1) / size;
  }
  return count;
}

// Layers of a group.
int choose_size(const LayersByWindow& kinds) {
  size_t fewest = kinds.begin()->second.size();
  for (const auto& [window, layers] : kinds) fewest = std::min(fewest, layers.size());
  const int most_groups = std::max(kMostCacheGroups, static_cast<int>(kinds.size()));
  int size = static_cast<int>(fewest);
  while (groups_of(kinds, size) > most_groups) ++size;
  int best = size;  // the largest of those that leave the fewest places in all
  for (; size > 0 && groups_of(kinds, size) <= most_groups; --size) {
    if (size * groups_of(kinds, size) < best * groups_of(kinds, best)) best = size;
  }
  return best;
}

}  // namespace

std::vector<CacheGroup> group_layers(std::span<const int> windows, int context) {
  LayersByWindow kinds;  // those that see all come first
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] == kNoKeys) continue;
    const int window = windows[layer] < context ? windows[layer] : 0;
    kinds[window].push_back(static_cast<int>(layer));
  }
  std::vector<CacheGroup> groups;
  if (kinds.empty()) return groups;
  const int size = choose_size(kinds);
  for (const auto& [window, layers] : kinds) {
    const size_t first = groups.size();
    const size_t count = (layers.size() + size - 1) / size;
    groups.resize(first + count, {.window = window, .layers = {}});
    // In turns, so that each stage of a pipeline has about as many layers of each group.
    for (size_t i = 0; i < layers.size(); ++i) {
      groups[first + i % count].layers.push_back(layers[i]);
    }
  }
  return groups;
}

int num_layers_of(std::span<const CacheGroup> groups) {
  int num_layers = 0;
  for (const CacheGroup& group : groups) num_layers += static_cast<int>(group.layers.size());
  return num_layers;
}

int layers_in_block(std::span<const CacheGroup> groups) {
  size_t most = 0;
  for (const CacheGroup& group : groups) most = std::max(most, group.layers.size());
  return static_cast<int>(most);
}

std::vector<std::string> describe_groups(std::span<const CacheGroup> groups) {
  std::vector<std::string> lines;
  while (!groups.empty()) {
    const int window = groups.front().window;
    const auto end = std::ranges::find_if(
        groups, [&](const CacheGroup& group) { return group.window != window; });
    const auto count = static_cast<size_t>(end - groups.begin());
    const int num_layers = num_layers_of(groups.first(count));
    lines.push_back(fmt::format(
        "{} in {}: {}", counted(num_layers, "layer"), counted(count, "group"),
        window == 0 ? "all tokens are kept" : fmt::format("the last {} are kept", window)));
    groups = groups.subspan(count);
  }
  return lines;
}

std::vector<int> windows_of(std::span<const CacheGroup> groups) {
  std::vector<int> windows;
  for (const CacheGroup& group : groups) windows.push_back(group.window);
  return windows;
}

}  // namespace nanovllm
