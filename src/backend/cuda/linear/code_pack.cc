// Packing of codes into the tiles of code_layout.h.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "backend/cuda/linear/code_layout.h"

namespace nanovllm::cuda {
namespace {

constexpr int kPackedLanes = 32, kPairsOfStep = 4;

// The words of a unit that a lane's codes go into.
class UnitWords {
 public:
  UnitWords(CodeKind kind, char* unit) : kind_(kind), words_(reinterpret_cast<uint32_t*>(unit)) {}

  void put(int lane, int step, int pair, uint32_t first, uint32_t second) {
    const int place = kPairsOfStep * step + pair;
    switch (kind_) {
      case CodeKind::kTable4:
        low(lane, step) |= (first | second << 4) << 8 * pair;
        return;
      case CodeKind::k6: {
        const int shift = place % 8 * 2;
        words_[kLowWords + lane * 2 + step / 2] |= (first >> 4 | second >> 4 << 16) << shift;
        break;
      }
      case CodeKind::k5:
        words_[kLowWords + lane] |= (first >> 4 | second >> 4 << 16) << place;
        break;
      case CodeKind::k4:
        break;
      case CodeKind::kInt8:
      case CodeKind::kE4M3:
        words_[(step / 2 * kPackedLanes + lane) * 4 + step % 2 * 2 + pair / 2] |=
            (first | second << 16) << 8 * (pair % 2);
        return;
    }
    low(lane, step) |= (first & 15) << 4 * pair | (second & 15) << (16 + 4 * pair);
  }

 private:
  static constexpr int kLowWords = kPackedLanes * 4;
  uint32_t& low(int lane, int step) { return words_[lane * 4 + step]; }

  CodeKind kind_;
  uint32_t* words_;
};

// A tile's rows of the stacked pieces.
class TilePacker {
 public:
  explicit TilePacker(const CodePart& part)
      : part_(part),
        shape_(part.shape),
        columns_(shape_.num_units * kUnitColumns),
        codes_(static_cast<size_t>(kTileRows * columns_)) {
    const CodeFormat& format = *part.pieces[0].codes;
    first_group_ = part.pieces[0].first_col / format.group_columns;
    const int64_t end = part.pieces[0].first_col + shape_.in_features - 1;
    num_groups_ = end / format.group_columns + 1 - first_group_;
    scales_.resize(static_cast<size_t>(kTileRows * num_groups_));
  }

  void pack(int64_t tile, char* out) {
    read(tile);
    std::memset(out, 0, static_cast<size_t>(shape_.tile_bytes));
    for (int block = 0; block < shape_.num_blocks; ++block) {
      char* const at = out + int64_t{block} * shape_.block_bytes;
      if (!shape_.is_row_scaled) put_header(block, at);
      const int units = std::min(kBlockUnits, shape_.num_units - block * kBlockUnits);
      for (int unit = 0; unit < units; ++unit) {
        put_unit(block * kBlockUnits + unit, at + shape_.header_bytes + unit * shape_.unit_bytes);
      }
    }
  }

  // The rows' scales, [kTileRows].
  void pack_row_scales(int64_t tile, float* out) {
    for (int row = 0; row < kTileRows; ++row) {
      const auto [piece, in_piece] = row_of(tile * kTileRows + row);
      GroupScale scale;
      if (piece != nullptr) {
        piece->decoder->read_scales(piece->file_row(in_piece), first_group_, 1, &scale);
      }
      out[row] = scale.scale;
    }
  }

 private:
  // Row n of the tiles.
  StackedRow row_of(int64_t n) const {
    if (const int64_t rows = shape_.gated_rows; rows > 0) {
      const int64_t in_weight = n % rows, in_tile = in_weight % kTileRows;
      const int64_t output = in_weight / kTileRows * 8 + in_tile % 8;
      n += output + (in_tile < 8 ? 0 : rows / 2) - in_weight;
    }
    return find_row(part_.pieces, n);
  }

  void read(int64_t tile) {
    std::ranges::fill(codes_, uint8_t{0});
    std::ranges::fill(scales_, GroupScale{});
    for (int row = 0; row < kTileRows; ++row) {
      const auto [piece, in_piece] = row_of(tile * kTileRows + row);
      if (piece == nullptr) continue;
      piece->decoder->read_codes_and_scales(piece->file_row(in_piece), piece->first_col,
                                            shape_.in_features,
                                            &codes_[static_cast<size_t>(row * columns_)],
                                            &scales_[static_cast<size_t>(row * num_groups_)]);
    }
  }

  void put_unit(int unit, char* out) const {
    UnitWords words(shape_.kind, out);
    for (int lane = 0; lane < kPackedLanes; ++lane) {
      for (int step = 0; step < kUnitSteps; ++step) {
        for (int pair = 0; pair < kPairsOfStep; ++pair) {
          const int row = lane / 4 + pair % 2 * 8;
          const int column = unit * kUnitColumns + step * 16 + lane % 4 * 2 + pair / 2 * 8;
          const uint8_t* const codes = &codes_[static_cast<size_t>(row * columns_ + column)];
          words.put(lane, step, pair, codes[0], codes[1]);
        }
      }
    }
  }

  // Of a column of the part; zeros where K has ended.
  GroupScale scale_at(int row, int64_t column) const {
    if (column >= shape_.in_features) return {};
    const HostMatrix& piece = part_.pieces[0];
    const int64_t group = (piece.first_col + column) / piece.codes->group_columns - first_group_;
    return scales_[static_cast<size_t>(row * num_groups_ + group)];
  }

  char* put_number(char* at, float value) const {
    write_scale(shape_.scales, value, at);
    return at + size_of(shape_.scales);
  }

  // put(at, scale) of the rows r and r + 8 of each `columns` columns of a block.
  template <typename Put>
  char* put_all(int block, int columns, char* at, Put put) const {
    for (int first = 0; first < kBlockColumns; first += columns) {
      for (int i = 0; i < kTileRows; ++i) {
        const int row = i / 2 + i % 2 * 8;
        at = put(at, scale_at(row, int64_t{block} * kBlockColumns + first));
      }
    }
    return at;
  }

  void put_header(int block, char* at) const {
    const bool has_offsets = shape_.offsets != OffsetKind::kNone;
    const auto scale = [&](char* p, const GroupScale& s) { return put_number(p, s.scale); };
    const auto offset = [&](char* p, const GroupScale& s) { return put_number(p, s.offset); };
    at = put_all(block, shape_.super_columns, at, scale);
    if (has_offsets) at = put_all(block, shape_.super_columns, at, offset);
    if (!shape_.is_super) return;
    const auto put_byte = [](char* p, int8_t code) {
      *p = static_cast<char>(code);
      return p + 1;
    };
    const auto scale_code = [&](char* p, const GroupScale& s) { return put_byte(p, s.scale_code); };
    const auto offset_code = [&](char* p, const GroupScale& s) {
      return put_byte(p, s.offset_code);
    };
    at = put_all(block, shape_.group_columns, at, scale_code);
    if (has_offsets) put_all(block, shape_.group_columns, at, offset_code);
  }

  const CodePart& part_;
  const CodeShape& shape_;
  const int columns_;
  int64_t first_group_ = 0, num_groups_ = 0;  // of the file's, that the part has a share of
  std::vector<uint8_t> codes_;                // [kTileRows, columns_]
  std::vector<GroupScale> scales_;            // [kTileRows, num_groups_]
};

}  // namespace

void pack_codes(const CodePart& part, int64_t begin, int64_t count, char* out) {
  const CodeShape& shape = part.shape;
  TilePacker packer(part);
  std::vector<char> whole;
  // Items of equal sizes from `first` on, each made whole and copied as far as it is wanted.
  const auto copy_items = [&](int64_t first, int64_t item_bytes, auto make) {
    const int64_t items_end = first + item_bytes * shape.num_tiles;
    while (count > 0 && begin < items_end) {
      const int64_t item = (begin - first) / item_bytes, skipped = (begin - first) % item_bytes;
      whole.resize(static_cast<size_t>(item_bytes));
      make(item, whole.data());
      const int64_t n = std::min(count, item_bytes - skipped);
      std::memcpy(out, whole.data() + skipped, static_cast<size_t>(n));
      begin += n;
      out += n;
      count -= n;
    }
  };
  copy_items(0, shape.tile_bytes, [&](int64_t tile, char* at) { packer.pack(tile, at); });
  if (!shape.is_row_scaled) return;
  copy_items(shape.row_scales_offset(), kTileRows * 4, [&](int64_t tile, char* at) {
    packer.pack_row_scales(tile, reinterpret_cast<float*>(at));
  });
}

}  // namespace nanovllm::cuda
