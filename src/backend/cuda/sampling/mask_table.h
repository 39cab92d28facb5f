// Where masks of allowed tokens lie on the device, so that one which comes again is not sent again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "ops/backend.h"

namespace nanovllm::cuda {

// A step's masks get a place each, the one that was used least recently as a rule. The kernels of
// earlier steps may still read what lay there: who writes to a place does so in the order of the
// stream.
class MaskTable {
 public:
  // 19 MB for 151,936 tokens: the states of grammars that 256 sequences come by again and again.
  static constexpr size_t kMinPlaces = 1024;

  explicit MaskTable(Backend& backend) : backend_(backend) {}

  // Room for the masks of a step, at most `num_masks` of `mask_words` words. Takes the memory with
  // the first of them. Returns where place 0 is. A table that grows, and one for masks of another
  // size, has forgotten all keys.
  uint32_t* begin_step(size_t num_masks, size_t mask_words);
  // The place of the mask with that key (see SamplingRow::allowed_key). A new one is yet to be
  // written there.
  struct Place {
    int32_t index;
    bool is_new;
  };
  Place place(uint64_t key);
  // Masks without a key will not come again.
  void end_step();

 private:
  struct Entry {
    int32_t index;
    uint64_t key;  // 0 = none
  };
  using Entries = std::list<Entry>;

  Backend& backend_;
  std::unique_ptr<Buffer> memory_;
  size_t mask_words_ = 0;
  Entries entries_;  // the one used last in front
  std::unordered_map<uint64_t, Entries::iterator> by_key_;
  size_t num_placed_ = 0;  // in this step
};

}  // namespace nanovllm::cuda
