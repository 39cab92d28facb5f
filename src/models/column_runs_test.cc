// Runs of columns are the columns that they are of, in codes and in numbers.
#include "models/column_runs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "io/gguf_testing.h"
#include "io/weight_store.h"

namespace nanovllm {
namespace {

using testing::GgufWriter;
using testing::TempDir;

constexpr int64_t kNumRows = 3, kColumns = 256, kGroup = 32;  // of Q8_0

// A Q8_0 matrix of random codes, and of a scale of its own for each group.
std::string random_blocks() {
  std::mt19937 random(5);
  std::string bytes;
  for (int64_t i = 0; i < kNumRows * kColumns / kGroup; ++i) {
    bytes.push_back(static_cast<char>(i));
    bytes.push_back('\x30');  // a float16 near 0.13
    for (int64_t k = 0; k < kGroup; ++k) bytes.push_back(static_cast<char>(random()));
  }
  return bytes;
}

class ColumnRunsOfCodes : public ::testing::Test {
 protected:
  ColumnRunsOfCodes()
      : path_(dir_.write("model.gguf", GgufWriter()
                                           .add("general.architecture", std::string("llama"))
                                           .tensor("lm.w", GgufWriter::kQ8_0, {kNumRows, kColumns},
                                                   random_blocks())
                                           .bytes())),
        weights_(path_) {
    matrix_ = {.rows = kNumRows,
               .cols = kColumns,
               .row_stride = kColumns,
               .decoder = weights_.get("lm.w", {kNumRows, kColumns}).decoder};
  }

  // Of the second row, the elements that runs should have.
  std::vector<float> expected(int64_t first, int64_t width, int64_t stride, int64_t count) const {
    std::vector<float> row(kColumns), picked;
    read_elements(matrix_, 1, 0, kColumns, DType::kFloat32, row.data());
    for (int64_t i = 0; i < count; ++i) {
      picked.push_back(row[static_cast<size_t>(first + i / width * stride + i % width)]);
    }
    return picked;
  }

  const TempDir dir_;
  const std::string path_;
  const WeightStore weights_;
  HostMatrix matrix_;
};

TEST_F(ColumnRunsOfCodes, AreTheColumnsOfEachRunWhereverReadingBegins) {
  for (const int64_t width : {8, 32, 64}) {
    const ColumnRuns runs(matrix_, width, width, 2 * width);
    const int64_t count = (kColumns - width) / (2 * width) * width;
    const std::vector<float> all = expected(width, width, 2 * width, count);
    for (const int64_t begin : {int64_t{0}, int64_t{5}, width}) {
      std::vector<float> read(static_cast<size_t>(count - begin));
      runs.decode(1, begin, count - begin, read.data());
      EXPECT_EQ(read, std::vector<float>(all.begin() + begin, all.end())) << width << ", " << begin;
    }
  }
}

TEST_F(ColumnRunsOfCodes, KeepCodesWhereTheyAreWholeGroups) {
  const ColumnRuns runs(matrix_, 32, 32, 64);
  ASSERT_NE(runs.code_format(), nullptr);
  EXPECT_EQ(*runs.code_format(), *matrix_.decoder->code_format());
  std::vector<uint8_t> codes(96), whole(kColumns);
  std::vector<GroupScale> scales(3), all_scales(kColumns / kGroup);
  runs.read_codes_and_scales(1, 0, 96, codes.data(), scales.data());
  matrix_.decoder->read_codes_and_scales(1, 0, kColumns, whole.data(), all_scales.data());
  for (size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(codes[i], whole[32 + i / 32 * 64 + i % 32]) << i;
  }
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(scales[i], all_scales[1 + 2 * i]) << i;
  EXPECT_EQ(ColumnRuns(matrix_, 16, 32, 64).code_format(), nullptr);
  EXPECT_EQ(ColumnRuns(matrix_, 32, 16, 64).code_format(), nullptr);
}

TEST(ColumnRuns, OfPlainNumbersHaveNoCodes) {
  const std::vector<float> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17};
  const ColumnRuns runs(
      {.data = numbers.data(), .dtype = DType::kFloat32, .rows = 2, .cols = 8, .row_stride = 8}, 1,
      2, 4);
  EXPECT_EQ(runs.code_format(), nullptr);
  std::vector<float> row(4);
  runs.decode(1, 0, 4, row.data());
  EXPECT_EQ(row, (std::vector<float>{11, 12, 15, 16}));
}

}  // namespace
}  // namespace nanovllm
