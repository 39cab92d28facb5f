#include "runner/decode_buckets.h"

#include <gtest/gtest.h>

namespace nanovllm {
namespace {

TEST(DecodeBuckets, BatchSizesAreNanoVllms) {
  EXPECT_EQ(DecodeBuckets(64, 4096, 256).batch_sizes(),
            (std::vector<int>{1, 2, 4, 8, 16, 32, 48, 64}));
}

TEST(DecodeBuckets, TheLargestStepFitsExactly) {
  EXPECT_EQ(DecodeBuckets(1, 4096, 256).batch_sizes(), (std::vector<int>{1}));
  EXPECT_EQ(DecodeBuckets(6, 4096, 256).batch_sizes(), (std::vector<int>{1, 2, 4, 6}));
  EXPECT_EQ(DecodeBuckets(20, 4096, 256).batch_sizes(), (std::vector<int>{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(DecodeBuckets(100'000, 4096, 256).batch_sizes().back(), 512);
}

TEST(DecodeBuckets, AStepGetsTheSmallestBatchThatHoldsIt) {
  const DecodeBuckets buckets(40, 4096, 256);
  EXPECT_EQ(buckets.find(1, 1)->num_seqs, 1);
  EXPECT_EQ(buckets.find(3, 1)->num_seqs, 4);
  EXPECT_EQ(buckets.find(9, 1)->num_seqs, 16);
  EXPECT_EQ(buckets.find(16, 1)->num_seqs, 16);
  EXPECT_EQ(buckets.find(33, 1)->num_seqs, 40);
  EXPECT_FALSE(buckets.find(41, 1));
}

TEST(DecodeBuckets, BlockTablesHaveRoomForTheLongestAndNoMoreThanAModelCanUse) {
  const DecodeBuckets short_context(4, 4000, 256);
  EXPECT_EQ(short_context.find(1, 1)->block_table_stride, 16);
  EXPECT_EQ(short_context.find(1, 16)->block_table_stride, 16);
  EXPECT_EQ(short_context.find(1, 16)->max_seq_len, 4000);
  const DecodeBuckets long_context(4, 5000, 16);  // 313 blocks
  EXPECT_EQ(long_context.find(1, 1)->block_table_stride, 64);
  EXPECT_EQ(long_context.find(1, 64)->block_table_stride, 64);
  EXPECT_EQ(long_context.find(1, 64)->max_seq_len, 1024);
  EXPECT_EQ(long_context.find(1, 65)->block_table_stride, 128);
  EXPECT_EQ(long_context.find(1, 300)->block_table_stride, 313);
  EXPECT_EQ(long_context.find(1, 300)->max_seq_len, 5000);
}

TEST(DecodeBuckets, NoneMeansNoPadding) { EXPECT_FALSE(DecodeBuckets().find(1, 1)); }

}  // namespace
}  // namespace nanovllm
