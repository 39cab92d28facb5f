// Which layers of a model share a block table.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace nanovllm {

// Layers that see as much of the past as each other.
struct CacheGroup {
  // Tokens that they see, the newest included; 0 = all.
  int window = 0;
  // In the order of their places in a block.
  std::vector<int> layers;
};

// The groups of a model whose layers see `windows` (0 = all, kNoKeys = they are in no group), of
// texts of at most context tokens; a window that is no less sees all. Of all the layers of a model,
// not of a rank's stage, so that one table a group serves all ranks.
//
// Any group takes any block, so a block has as many places for layers as the largest group has
// layers. Layers of one window are cut into groups of as many as the window with the fewest layers
// has, so that none stay empty of it; of fewer if that leaves less empty in all; of more where
// there would be more groups, each of which has tables to upload, than kMostCacheGroups.
std::vector<CacheGroup> group_layers(std::span<const int> windows, int context);
inline constexpr int kMostCacheGroups = 8;

int num_layers_of(std::span<const CacheGroup> groups);
// Places for layers in a block.
int layers_in_block(std::span<const CacheGroup> groups);
// For people: a line for the groups that see alike.
std::vector<std::string> describe_groups(std::span<const CacheGroup> groups);
// CacheGroup::window of each.
std::vector<int> windows_of(std::span<const CacheGroup> groups);

}  // namespace nanovllm
