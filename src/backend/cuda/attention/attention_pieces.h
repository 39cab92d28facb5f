// The one order in which attention adds up keys, for kernels that promise bits which depend on a
// row's own sequence alone: pieces of keys that end at fixed positions, in each piece tiles of
// tile_keys() keys with one running maximum, the pieces' sums put together in the order of their
// positions.
#pragma once

namespace nanovllm::cuda {

// Query tokens of a sequence that share its keys, at most.
constexpr int kMostPieceTokens = 8;

// Short contexts are cut finer, so that few sequences have work for many multiprocessors. Every
// piece is a multiple of each tile.
struct KeyPieces {
  static constexpr int kShort = 256, kMiddle = 512, kLong = 2048;
  static constexpr int kShortEnd = 1024, kMiddleEnd = 8192;  // positions
  static constexpr int kNumShort = kShortEnd / kShort;
  static constexpr int kNumMiddle = (kMiddleEnd - kShortEnd) / kMiddle;

  // Of a position >= 0.
  static constexpr int index_of(int position) {
    if (position < kShortEnd) return position / kShort;
    if (position < kMiddleEnd) return kNumShort + (position - kShortEnd) / kMiddle;
    return kNumShort + kNumMiddle + (position - kMiddleEnd) / kLong;
  }
  static constexpr int begin_of(int index) {
    if (index < kNumShort) return index * kShort;
    if (index < kNumShort + kNumMiddle) return kShortEnd + (index - kNumShort) * kMiddle;
    return kMiddleEnd + (index - kNumShort - kNumMiddle) * kLong;
  }
  static constexpr int end_of(int index) { return begin_of(index + 1); }
};

// Keys of a tile, by head size: 64 KiB of keys and values of the largest heads of either.
constexpr int tile_keys(int head_dim) { return head_dim <= 128 ? 128 : 64; }

}  // namespace nanovllm::cuda
