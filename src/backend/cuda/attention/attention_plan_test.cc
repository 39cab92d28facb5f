// Which kernels compute attention on GPUs of all sizes; needs no device.
#include "backend/cuda/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "backend/cuda/attention/attention_pieces.h"
#include "backend/cuda/device/device_traits_testing.h"

namespace nanovllm::cuda {
namespace {

struct AttentionGpu {
  const char* name;
  AttentionTraits traits;
};
const std::vector<AttentionGpu> kAttentionGpus = [] {
  std::vector<AttentionGpu> all;
  for (const Gpu& gpu : kGpus) all.push_back({gpu.name, attention_traits(gpu.traits, false)});
  return all;
}();
constexpr DType kBf16 = DType::kBFloat16;

ForwardBatch decodes(int count, int stride = 4) {
  return {.num_tokens = count,
          .num_seqs = count,
          .num_decodes = count,
          .max_query_len = 1,
          .max_seq_len = stride * 256,
          .block_table_stride = stride};
}
ForwardBatch prompts(int count, int tokens, int context = 0) {
  return {.num_tokens = count * tokens,
          .num_seqs = count,
          .max_query_len = tokens,
          .max_seq_len = context + tokens,
          .block_table_stride = (context + tokens + 255) / 256};
}
RopeParams rope_of_whole_heads(int head_dim, const float* norm = nullptr) {
  RopeParams rope;
  rope.rotary_dim = head_dim;
  rope.q_norm = rope.k_norm = norm;
  return rope;
}
AttentionShape heads_of(int heads, int kv_heads, int head_dim, DType dtype = kBf16) {
  return {dtype, heads, kv_heads, head_dim, 256};
}

TEST(CudaAttentionPlan, StreamsDecodesOfEachHeadSizeThatHasTensorCores) {
  for (const AttentionGpu& gpu : kAttentionGpus) {
    for (const int dim : {64, 96, 128, 256}) {
      for (const int group : {1, 2, 4, 8, 16}) {
        const AttentionPlan plan =
            plan_attention(heads_of(4 * group, 4, dim), decodes(32), gpu.traits);
        ASSERT_TRUE(plan.decodes) << gpu.name << ", heads of " << dim;
        EXPECT_EQ(plan.decodes->path, AttentionPath::kStream);
        EXPECT_LE(plan.decodes->shared_bytes, gpu.traits.block_bytes);
        EXPECT_LE(plan.decodes->num_blocks, gpu.traits.num_multiprocessors);
        EXPECT_EQ(plan.rest, PrefillChoice{}) << "nothing is left";
      }
    }
    for (const int dim : {8, 80, 112, 192}) {
      const AttentionPlan plan = plan_attention(heads_of(8, 4, dim), decodes(32), gpu.traits);
      EXPECT_FALSE(plan.decodes);
      EXPECT_EQ(plan.rest.path, AttentionPath::kGeneral);
    }
  }
}

// Of one decode of four blocks of 256 tokens: as many warps as have a ring of one tile at least,
// half of a head size's most where not all have, and then rings of two tiles where they fit.
TEST(CudaAttentionPlan, DividesDecodesByWhatTheDeviceHas) {
  using Numbers = std::array<int, 3>;  // warps, stages, blocks
  const auto numbers = [](const AttentionShape& shape, const ForwardBatch& batch,
                          const AttentionGpu& gpu) {
    const auto plan = plan_attention(shape, batch, gpu.traits).decodes;
    return plan ? Numbers{plan->num_warps, plan->stages, plan->num_blocks} : Numbers{};
  };
  const struct {
    AttentionShape shape;
    Numbers a100, small, hopper;  // small: 99 KiB a block
  } cases[] = {
      // 8 KV heads of 64 tiles are 64 blocks of 8 tiles, and one more for each that begins.
      {heads_of(16, 8, 128), {8, 2, 72}, {8, 1, 72}, {8, 2, 72}},
      {heads_of(16, 8, 64), {8, 2, 72}, {8, 2, 72}, {8, 2, 72}},
      {heads_of(8, 4, 256), {4, 2, 36}, {4, 1, 36}, {4, 2, 36}},
      // Sixteen heads of a group leave larger pieces, or are two units of work.
      {heads_of(64, 4, 128), {4, 2, 36}, {4, 1, 36}, {8, 1, 36}},
      {heads_of(64, 4, 256), {4, 1, 72}, {2, 2, 72}, {4, 2, 72}},
  };
  for (const AttentionGpu& gpu : kAttentionGpus) {
    for (const auto& [shape, a100, small, hopper] : cases) {
      const Numbers& expected =
          gpu.traits.has_wgmma                                                          ? hopper
          : gpu.traits.block_bytes == attention_traits(kA100.traits, false).block_bytes ? a100
                                                                                        : small;
      EXPECT_EQ(numbers(shape, decodes(1), gpu), expected)
          << gpu.name << ", " << shape.num_heads << " heads of " << shape.head_dim;
      EXPECT_EQ(numbers(shape, decodes(64), gpu)[2], gpu.traits.num_multiprocessors) << gpu.name;
    }
  }
}

TEST(CudaAttentionPlan, StoresOnTheWayWhereHeadsAllow) {
  static constexpr float kNorm = 1;
  for (const AttentionGpu& gpu : kAttentionGpus) {
    const auto path = [&](const AttentionShape& s, const RopeParams& rope,
                          const ForwardBatch& batch) {
      const auto choice = plan_store_and_attend(s, rope, batch, gpu.traits);
      EXPECT_TRUE(!choice || choice->path == AttentionPath::kStoreAndStream);
      return choice.has_value();
    };
    for (const int dim : {64, 128}) {
      for (const int count : {1, 8, 256, 16384}) {
        EXPECT_TRUE(path(heads_of(16, 8, dim), rope_of_whole_heads(dim), decodes(count, 1)));
        EXPECT_TRUE(
            path(heads_of(16, 8, dim), rope_of_whole_heads(dim, &kNorm), decodes(count, 1)));
      }
      EXPECT_FALSE(path(heads_of(16, 8, dim), rope_of_whole_heads(dim), decodes(16385, 1)));
      AttentionShape gated = heads_of(16, 8, dim);
      gated.has_gate = true;
      EXPECT_FALSE(path(gated, rope_of_whole_heads(dim), decodes(8)));
      EXPECT_TRUE(path(heads_of(64, 8, dim), rope_of_whole_heads(dim), decodes(8)));
      EXPECT_FALSE(
          path(heads_of(72, 8, dim), rope_of_whole_heads(dim), decodes(8)));  // groups of 9
      EXPECT_FALSE(path(heads_of(16, 8, dim), rope_of_whole_heads(dim / 2), decodes(8)));
      RopeParams one_norm = rope_of_whole_heads(dim);
      one_norm.q_norm = &kNorm;
      EXPECT_FALSE(path(heads_of(16, 8, dim), one_norm, decodes(8)));
      EXPECT_FALSE(
          path(heads_of(16, 8, dim, DType::kFloat32), rope_of_whole_heads(dim), decodes(8)));
    }
    for (const int dim : {96, 256}) {
      EXPECT_FALSE(path(heads_of(16, 8, dim), rope_of_whole_heads(dim), decodes(8)));
    }
    ForwardBatch mixed = decodes(8);
    mixed.num_tokens = 9;
    EXPECT_FALSE(path(heads_of(16, 8, 128), rope_of_whole_heads(128), mixed));
    EXPECT_FALSE(path(heads_of(16, 8, 128), rope_of_whole_heads(128), decodes(0)));
  }
}

TEST(CudaAttentionPlan, TakesTensorCoresForPromptsAndWarpgroupsOnHopper) {
  for (const AttentionGpu& gpu : kAttentionGpus) {
    const auto path = [&](const AttentionShape& s, const ForwardBatch& batch) {
      return plan_attention(s, batch, gpu.traits).rest.path;
    };
    const AttentionPath large = gpu.traits.has_wgmma ? AttentionPath::kWgmma : AttentionPath::kMma;
    for (const int dim : {64, 128, 256}) {
      EXPECT_EQ(path(heads_of(16, 8, dim), prompts(1, 4096)), large) << gpu.name;
      EXPECT_EQ(path(heads_of(16, 8, dim), prompts(16, 1024)), large) << gpu.name;
      EXPECT_EQ(path(heads_of(16, 8, dim), prompts(4, 8)), AttentionPath::kMma) << gpu.name;
      // Few rows, but so many keys that blocks share them.
      EXPECT_EQ(path(heads_of(16, 8, dim), prompts(1, 16, 8192)), large) << gpu.name;
    }
    EXPECT_EQ(path(heads_of(16, 8, 96), prompts(1, 4096)), AttentionPath::kMma);
    EXPECT_EQ(path(heads_of(16, 8, 80), prompts(1, 4096)), AttentionPath::kGeneral);
    EXPECT_EQ(path(heads_of(16, 8, 128, DType::kFloat32), prompts(1, 4096)),
              AttentionPath::kGeneral);
    EXPECT_EQ(long_prompt_path(heads_of(8, 8, 128), gpu.traits), large);
    EXPECT_EQ(long_prompt_path(heads_of(1, 1, 256), gpu.traits), large);
    EXPECT_EQ(long_prompt_path(heads_of(8, 8, 80), gpu.traits), AttentionPath::kGeneral);
  }
}

// Half of a chunk's rows a warp where that is too little work for all multiprocessors: 8 KV heads
// have a block of 128 rows each for 64 tokens of these groups of two.
TEST(CudaAttentionPlan, GivesWarpsMoreRowsWhereThereAreEnough) {
  const int enough[] = {896, 1024, 1408, 1088, 1088};  // tokens
  for (size_t i = 0; i < kAttentionGpus.size(); ++i) {
    AttentionTraits traits = kAttentionGpus[i].traits;
    traits.deterministic = true;  // Hopper has no other kernel then
    const auto tiles = [&](int dim, int tokens) {
      return plan_attention(heads_of(16, 8, dim), prompts(1, tokens), traits).rest.row_tiles;
    };
    for (const int dim : {64, 96, 128}) {
      EXPECT_EQ(tiles(dim, enough[i] - 1), 1) << kAttentionGpus[i].name;
      EXPECT_EQ(tiles(dim, enough[i]), 2) << kAttentionGpus[i].name;
    }
    EXPECT_EQ(tiles(256, 4096), 1) << kAttentionGpus[i].name;  // there are no others
    // Sequences of few rows leave half of a block's rows without work.
    EXPECT_EQ(plan_attention(heads_of(16, 8, 128), prompts(256, 32), traits).rest.row_tiles, 1);
    EXPECT_EQ(plan_attention(heads_of(16, 8, 128), prompts(256, 33), traits).rest.row_tiles, 2);
  }
}

// {parts, blocks} of warpgroups' kernel, in pieces of 128 rows, or of mma's.
TEST(CudaAttentionPlan, SharesKeysAmongBlocksOnHopperWherePiecesAreFew) {
  using Numbers = std::array<int, 2>;
  for (const Gpu& gpu : {kH100, kH200}) {
    const AttentionTraits traits = attention_traits(gpu.traits, false);
    const auto numbers = [&](int dim, const ForwardBatch& batch) {
      const PrefillChoice choice = plan_attention(heads_of(16, 8, dim), batch, traits).rest;
      return choice.path == AttentionPath::kWgmma ? Numbers{choice.parts, choice.num_blocks}
                                                  : Numbers{};
    };
    for (const int dim : {64, 128}) {
      EXPECT_EQ(numbers(dim, prompts(1, 4096)), (Numbers{1, 132}));
      EXPECT_EQ(numbers(dim, prompts(16, 1024)), (Numbers{1, 132}));
      EXPECT_EQ(numbers(dim, prompts(1, 256)), Numbers{});  // 32 pieces
      EXPECT_EQ(numbers(dim, prompts(1, 257)), (Numbers{1, 40}));
      EXPECT_EQ(numbers(dim, prompts(1, 16, 8192)), (Numbers{16, 128}));
      EXPECT_EQ(numbers(dim, prompts(1, 256, 8192)), (Numbers{4, 128}));
      EXPECT_EQ(numbers(dim, prompts(1, 16, 1008)), (Numbers{2, 16}));  // 4 tiles of keys each
      EXPECT_EQ(numbers(dim, prompts(1, 16, 1007)), Numbers{});
    }
    EXPECT_EQ(numbers(256, prompts(1, 16, 1008)), (Numbers{4, 32}));  // of smaller tiles
    EXPECT_EQ(numbers(256, prompts(1, 16, 496)), (Numbers{2, 16}));
    EXPECT_EQ(numbers(256, prompts(1, 16, 495)), Numbers{});
  }
}

TEST(CudaAttentionPlan, AMixedBatchIsDividedBehindItsDecodes) {
  for (const AttentionGpu& gpu : kAttentionGpus) {
    ForwardBatch batch = prompts(1, 2048);
    batch.num_decodes = 8;
    batch.num_seqs += 8;
    batch.num_tokens += 8;
    const AttentionPlan plan = plan_attention(heads_of(16, 8, 128), batch, gpu.traits);
    EXPECT_TRUE(plan.decodes);
    EXPECT_EQ(plan.rest, plan_attention(heads_of(16, 8, 128), prompts(1, 2048), gpu.traits).rest);
  }
}

// With one order of sums the kernels are those whose bits depend on a row's own sequence alone.
TEST(CudaAttentionPlan, AFixedOrderTakesOneKernelForAllRows) {
  for (const AttentionGpu& gpu : kAttentionGpus) {
    AttentionTraits traits = gpu.traits;
    traits.deterministic = true;
    for (const ForwardBatch& batch : {decodes(8), prompts(1, 4096), prompts(1, 16, 8192)}) {
      const AttentionPlan plan = plan_attention(heads_of(16, 8, 128), batch, traits);
      EXPECT_FALSE(plan.decodes);
      EXPECT_EQ(plan.rest.path, AttentionPath::kMma);
    }
    EXPECT_FALSE(
        plan_store_and_attend(heads_of(16, 8, 128), rope_of_whole_heads(128), decodes(8), traits));
  }
}

TEST(KeyPieces, EndAtFixedPositions) {
  int begin = 0;
  for (int i = 0; i < 40; ++i) {
    const int size = begin < 1024 ? 256 : begin < 8192 ? 512 : 2048;
    EXPECT_EQ(KeyPieces::begin_of(i), begin);
    EXPECT_EQ(KeyPieces::end_of(i), begin + size);
    EXPECT_EQ(KeyPieces::index_of(begin), i);
    EXPECT_EQ(KeyPieces::index_of(begin + size - 1), i);
    begin += size;
  }
}

ForwardBatch drafts(int count, int tokens, int stride = 4) {
  ForwardBatch batch = decodes(count, stride);
  batch.num_tokens = count * tokens;
  batch.num_decodes = tokens == 1 ? count : 0;
  batch.max_query_len = tokens;
  return batch;
}

TEST(CudaAttentionPlan, TakesPiecesWhereTheyAreFaster) {
  for (AttentionGpu gpu : kAttentionGpus) {
    const bool has = gpu.traits.has_wgmma;
    const auto are_taken = [&](int dim, const ForwardBatch& batch, int heads = 16) {
      const auto pieces = plan_attention(heads_of(heads, 8, dim), batch, gpu.traits).pieces;
      return pieces && pieces->num_seqs == batch.num_seqs;
    };
    for (const int dim : {80, 112}) {
      EXPECT_EQ(are_taken(dim, decodes(1)), has) << gpu.name;
      EXPECT_EQ(are_taken(dim, decodes(256)), has) << gpu.name;
      EXPECT_EQ(are_taken(dim, drafts(4, 8), 128), has) << gpu.name;
    }
    for (const int dim : {64, 96, 128, 256}) {
      EXPECT_FALSE(are_taken(dim, decodes(1))) << gpu.name << ": the stream is faster";
      EXPECT_EQ(are_taken(dim, drafts(1, 2)), has) << gpu.name;
      EXPECT_EQ(are_taken(dim, drafts(32, 4)), has) << gpu.name;
      EXPECT_FALSE(are_taken(dim, drafts(32, 5))) << gpu.name << ": many tokens";
      EXPECT_FALSE(are_taken(dim, drafts(32, 4), 64)) << gpu.name << ": more than a tile of rows";
      EXPECT_FALSE(are_taken(dim, drafts(1, 4, 1))) << gpu.name << ": one piece";
      EXPECT_FALSE(are_taken(dim, drafts(1, 4, 125))) << gpu.name << ": long pieces";
      ForwardBatch few_drafts = drafts(8, 4);
      few_drafts.num_decodes = 5;
      EXPECT_FALSE(are_taken(dim, few_drafts)) << gpu.name << ": the stream is for most";
    }
    gpu.traits.deterministic = true;
    EXPECT_FALSE(are_taken(80, decodes(8))) << gpu.name << ": one kernel for all rows";
  }
}

TEST(CudaAttentionPlan, TakesFewRowsInPiecesWhereThatIsAskedForOnHopper) {
  for (AttentionGpu gpu : kAttentionGpus) {
    gpu.traits.in_pieces = true;
    const auto pieces = [&](const AttentionShape& shape, const ForwardBatch& batch) {
      return plan_attention(shape, batch, gpu.traits).pieces;
    };
    for (const int dim : {64, 80, 96, 112, 128, 256}) {
      for (int tokens = 1; tokens <= kMostPieceTokens; ++tokens) {
        const AttentionPlan plan =
            plan_attention(heads_of(16, 8, dim), drafts(8, tokens), gpu.traits);
        ASSERT_EQ(plan.pieces.has_value(), gpu.traits.has_wgmma) << gpu.name;
        if (!plan.pieces) continue;
        EXPECT_EQ(plan.pieces->num_seqs, 8);
        EXPECT_FALSE(plan.decodes);
        EXPECT_EQ(plan.rest, PrefillChoice{}) << "nothing is left";
        EXPECT_GE(plan.pieces->stages, 2);
        EXPECT_LT(plan.pieces->shared_bytes, static_cast<size_t>(gpu.traits.block_bytes));
      }
    }
    EXPECT_FALSE(pieces(heads_of(16, 8, 128), drafts(8, kMostPieceTokens + 1)));
    EXPECT_FALSE(pieces(heads_of(16, 8, 72), decodes(8)));
    EXPECT_FALSE(pieces(heads_of(16, 8, 128, DType::kFloat32), decodes(8)));
    static constexpr float kNorm = 1;
    EXPECT_FALSE(plan_store_and_attend(heads_of(16, 8, 128), rope_of_whole_heads(128, &kNorm),
                                       decodes(8), gpu.traits));
    ForwardBatch mixed = prompts(1, 2048);
    mixed.num_decodes = 8;
    mixed.num_seqs += 8;
    mixed.num_tokens += 8;
    const AttentionPlan plan = plan_attention(heads_of(16, 8, 128), mixed, gpu.traits);
    EXPECT_EQ(plan.pieces ? plan.pieces->num_seqs : 8, 8);
    EXPECT_EQ(plan.rest, plan_attention(heads_of(16, 8, 128), prompts(1, 2048), gpu.traits).rest);
  }
}

// Of 16 query heads of a KV head and 8 tokens a quarter goes at once; sequences that could have
// more pieces than slots are for another launch.
TEST(CudaAttentionPlan, DividesPiecesByRowsAndSlots) {
  AttentionTraits traits = attention_traits(kH200.traits, false, true);
  const auto pieces = [&](const AttentionShape& shape, const ForwardBatch& batch) {
    return plan_attention(shape, batch, traits).pieces.value();
  };
  const PiecesChoice one = pieces(heads_of(32, 2, 128), drafts(3, 1));
  EXPECT_EQ(one.parts, 1);
  EXPECT_EQ(one.row_tiles, 1);
  EXPECT_EQ(one.num_warps, 1);
  EXPECT_EQ(one.stages, 32) << "all slices of a piece of 256 keys";
  EXPECT_EQ(one.num_blocks, 3 * 4 * 2) << "four pieces of 1,024 tokens";
  const PiecesChoice eight = pieces(heads_of(32, 2, 128), drafts(3, 8));
  EXPECT_EQ(eight.part_heads, 4);
  EXPECT_EQ(eight.parts, 4);
  EXPECT_EQ(eight.row_tiles, 2);
  EXPECT_EQ(pieces(heads_of(32, 8, 128), drafts(32, 8)).row_tiles, 2);
  EXPECT_EQ(pieces(heads_of(32, 8, 128), drafts(32, 8)).num_warps, 4);
  EXPECT_EQ(pieces(heads_of(16, 8, 128), drafts(8, 5)).num_warps, 2);
  const PiecesChoice many = pieces(heads_of(16, 8, 128), drafts(256, 1));
  EXPECT_EQ(many.num_warps, 8);
  EXPECT_EQ(many.stages, 4);
  EXPECT_EQ(many.launch_seqs, 256);
  // 40,000 tokens are 34 pieces of 8 heads of 264 words, with a counter each.
  EXPECT_EQ(pieces(heads_of(16, 8, 128), drafts(256, 1, 157)).launch_seqs,
            ((1 << 23) - 64) / (8 * (34 * 264 + 1)));
}

TEST(CudaAttentionPlan, ContextsOfMoreTilesThanNumbersHoldGoAlongWithPrompts) {
  // 16,384 sequences of 8 KV heads: of 2^30 - 1 tiles each has 8,191, of 16 a block 511 blocks.
  for (const AttentionGpu& gpu : kAttentionGpus) {
    const auto plan = [&](int stride) {
      return plan_attention(heads_of(16, 8, 128), decodes(16384, stride), gpu.traits);
    };
    EXPECT_TRUE(plan(511).decodes) << gpu.name;
    EXPECT_FALSE(plan(512).decodes) << gpu.name;
  }
}

TEST(CudaAttentionPlan, NothingAsksForMoreSharedMemoryThanThereIs) {
  for (const AttentionGpu& gpu : kAttentionGpus) {
    for (const int dim : {64, 96, 128, 256}) {
      for (const int count : {1, 100, 1000, 10000, 16384}) {
        const AttentionShape s = heads_of(16, 8, dim);
        const AttentionPlan plan = plan_attention(s, prompts(count, 4), gpu.traits);
        EXPECT_LE(plan.rest.shared_bytes, static_cast<size_t>(gpu.traits.block_bytes));
        const auto stored =
            plan_store_and_attend(s, rope_of_whole_heads(dim), decodes(count, 1), gpu.traits);
        EXPECT_TRUE(!stored || stored->shared_bytes <= gpu.traits.block_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace nanovllm::cuda
