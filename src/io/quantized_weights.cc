#include "io/quantized_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/coded_matrix.h"

namespace nanovllm {
namespace {

using Types = std::vector<std::string_view>;

Types floats() { return {"F32", "BF16", "F16"}; }

constexpr int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

bool contains(const Types& types, std::string_view type) {
  return std::ranges::find(types, type) != types.end();
}

BlockNumbers::Type number_type(std::string_view type) {
  using Type = BlockNumbers::Type;
  if (type == "F32") return Type::kFloat32;
  if (type == "BF16") return Type::kBFloat16;
  if (type == "F16") return Type::kFloat16;
  return type == "I8" ? Type::kInt8 : Type::kFp8;
}

// Reads one matrix from the tensors of its module.
class Reader {
 public:
  Reader(const RawTensors& tensors, const std::string& module, const QuantizationConfig& config,
         const WeightScheme& scheme)
      : tensors_(tensors),
        module_(module),
        config_(config),
        scheme_(scheme),
        in_word_(32 / scheme.num_bits),
        shift_(scheme.num_bits == 4 ? 3 : 2),
        coded_(std::make_unique<CodedMatrix>()) {
    coded_->name = module + ".weight";
  }

  // compressed-tensors 0.17.0, decompress() of the formats pack-quantized, int-quantized,
  // float-quantized, naive-quantized and nvfp4-pack-quantized: _dequantize() in
  // quantization/lifecycle/forward_helpers.py with float32 scales. FP8: transformers 5's
  // Fp8Dequantize and ModelOpt 0.47's FP8QTensor.
  QuantizedMatrix read_row_coded(const std::string& part) {
    const RawTensor& codes = get_matrix(part, {"I32", "I8", "U8", "F8_E4M3", "F8_E5M2"});
    if (codes.type == "F8_E5M2") {
      throw_error(ErrorCode::kUnsupported,
                  "{}: tensor {} is FP8 E5M2, which can't be loaded; take a model in E4M3",
                  codes.path, printable(coded_->name));
    }
    const bool is_fp4 = scheme_.is_float && scheme_.num_bits == 4;
    const std::string_view expected = is_fp4                    ? "U8"
                                      : scheme_.is_float        ? "F8_E4M3"
                                      : part == "weight_packed" ? "I32"
                                                                : "I8";
    if (codes.type != expected) fail(part, std::string(expected));
    coded_->rows = codes.shape[0];
    coded_->cols = codes.shape[1];
    coded_->codes = codes.bytes.data();
    coded_->row_bytes = codes.shape[1];
    coded_->values = scheme_.is_float ? &kFp8Codes : &kSignedCodes;
    if (expected == "I32") read_packed_integers(codes);
    if (is_fp4) {
      read_fp4();
    } else {
      read_scales(find("weight_scale_inv") ? "weight_scale_inv" : "weight_scale", floats());
    }
    if (find("weight_zero_point") || !scheme_.symmetric) read_zeros("weight_zero_point");
    read_blocks_of_cols("weight_g_idx");
    return finish(is_fp4 ? "NVFP4" : scheme_.is_float ? "FP8" : int_name());
  }

  // AWQ: AutoAWQ 0.2.9, dequantize_gemm() in awq/utils/packing_utils.py. GPTQ: GPTQModel 7.7,
  // dequantize_weight() in gptqmodel/nn_modules/qlinear/__init__.py, and for the first version's
  // zero points convert_gptq_v1_to_v2_format_module() in gptqmodel/utils/model.py, which adds to
  // whole words. The matrix is stored [columns, rows].
  QuantizedMatrix read_column_coded() {
    const bool is_awq = config_.method == QuantizationMethod::kAwq;
    const RawTensor& codes = get_matrix("qweight", {"I32"});
    const int64_t rows = codes.shape[1] * (is_awq ? in_word_ : 1);
    if (rows % in_word_ != 0) fail("qweight", fmt::format("a multiple of {} wide", in_word_));
    coded_->rows = rows;
    coded_->cols = codes.shape[0] * (is_awq ? 1 : in_word_);
    coded_->block_cols = scheme_.block_cols > 0 ? scheme_.block_cols : coded_->cols;
    coded_->words = {.data = codes.bytes.data(),
                     .col_stride = codes.shape[1],
                     .row_shift = is_awq ? shift_ : 0,
                     .col_shift = is_awq ? 0 : shift_,
                     .num_bits = scheme_.num_bits,
                     .is_awq_order = is_awq};
    const RawTensor& scales = get("scales", floats(), {num_blocks(), rows});
    coded_->scales = {.data = scales.bytes.data(),
                      .type = number_type(scales.type),
                      .row_stride = 1,
                      .col_stride = rows};
    const uint32_t ones = scheme_.num_bits == 4 ? 0x11111111 : 0x01010101;
    coded_->zero_words = {
        .data = get("qzeros", {"I32"}, {num_blocks(), rows / in_word_}).bytes.data(),
        .col_stride = rows / in_word_,
        .row_shift = shift_,
        .num_bits = scheme_.num_bits,
        .addend = config_.zeros_are_less_by_one ? ones : 0,
        .is_awq_order = is_awq};
    read_blocks_of_cols("g_idx");
    return finish((is_awq ? "AWQ " : "GPTQ ") + int_name());
  }

 private:
  const RawTensor* find(const std::string& part) {
    const auto it = tensors_.find(module_ + "." + part);
    if (it == tensors_.end()) return nullptr;
    if (std::ranges::find(parts_, it->first) == parts_.end()) parts_.push_back(it->first);
    return &it->second;
  }

  const RawTensor& get(const std::string& part, const Types& types) {
    const RawTensor* tensor = find(part);
    if (tensor == nullptr) {
      throw_error(
          ErrorCode::kCorruptData, "{}: tensor {}.{} is missing, without which {} can't be decoded",
          tensors_.at(parts_.front()).path, printable(module_), part, printable(parts_.front()));
    }
    if (!contains(types, tensor->type)) fail(part, fmt::format("{}", fmt::join(types, ", ")));
    return *tensor;
  }

  // Dimensions of 1 at the end may be left out, all of them if there is one number.
  const RawTensor& get(const std::string& part, const Types& types,
                       const std::vector<int64_t>& shape) {
    const RawTensor& tensor = get(part, types);
    std::vector<int64_t> padded = tensor.shape;
    padded.resize(std::max(padded.size(), shape.size()), 1);
    if (padded != shape) fail(part, fmt::format("[{}]", fmt::join(shape, ", ")));
    return tensor;
  }

  // Of two dimensions, neither of them 0: no size computed from them overflows, for they are
  // bounded by the file's.
  const RawTensor& get_matrix(const std::string& part, const Types& types) {
    const RawTensor& tensor = get(part, types);
    if (tensor.shape.size() != 2 || std::ranges::min(tensor.shape) < 1) fail(part, "a matrix");
    return tensor;
  }

  [[noreturn]] void fail(const std::string& part, const std::string& expected) const {
    const RawTensor& tensor = tensors_.at(module_ + "." + part);
    throw_error(ErrorCode::kCorruptData, "{}: tensor {}.{} is {} [{}], by {} it should be {}",
                tensor.path, printable(module_), part, tensor.type, fmt::join(tensor.shape, ", "),
                config_.where, expected);
  }

  std::string int_name() const { return fmt::format("INT{}", scheme_.num_bits); }
  int64_t num_blocks() const { return divide_up(coded_->cols, coded_->block_cols); }

  // As pack_to_int32() leaves them: codes and zero points are more by half their range.
  void read_packed_integers(const RawTensor& codes) {
    const RawTensor& shape = get("weight_shape", {"I64"}, {2});
    int64_t sizes[2] = {};
    std::memcpy(sizes, shape.bytes.data(), sizeof sizes);
    const int64_t most = codes.shape[1] * in_word_;
    if (sizes[0] != coded_->rows || sizes[1] > most || sizes[1] <= most - in_word_) {
      fail("weight_packed",
           fmt::format("of a shape for weight_shape's {} x {} codes", sizes[0], sizes[1]));
    }
    coded_->cols = sizes[1];
    coded_->row_bytes *= 4;
    coded_->num_bits = scheme_.num_bits;
    coded_->values = &kUnsignedCodes;
    coded_->zero = scheme_.num_bits == 4 ? 8 : 128;
  }

  // compressed-tensors divides scales by the global one. ModelOpt 0.47's NVFP4QTensor.dequantize()
  // multiplies them.
  void read_fp4() {
    const bool is_modelopt = config_.method == QuantizationMethod::kModelOpt;
    coded_->cols *= 2;
    coded_->num_bits = 4;
    coded_->values = is_modelopt ? &kModelOptFp4Codes : &kFp4Codes;
    const RawTensor& global =
        get(is_modelopt ? "weight_scale_2" : "weight_global_scale", {"F32"}, {1});
    coded_->global_scale = BlockNumbers{.data = global.bytes.data()}.at(0, 0);
    coded_->divides_by_global_scale = !is_modelopt;
    read_scales("weight_scale", {"F8_E4M3"});
  }

  void read_scales(const std::string& part, const Types& types) {
    const RawTensor& scales = get(part, types);
    const bool is_one = std::ranges::all_of(scales.shape, [](int64_t n) { return n == 1; });
    const bool all_rows = is_one || scheme_.block_rows == 0;
    coded_->block_cols = is_one || scheme_.block_cols == 0 ? coded_->cols : scheme_.block_cols;
    coded_->scales = {.data = scales.bytes.data(),
                      .type = number_type(scales.type),
                      .row_stride = num_blocks(),
                      .block_rows = all_rows ? coded_->rows : scheme_.block_rows};
    get(part, types, {divide_up(coded_->rows, coded_->scales.block_rows), num_blocks()});
  }

  void read_zeros(const std::string& part) {
    if (coded_->values == &kUnsignedCodes) {  // packed as the codes are, but along the rows
      coded_->zero_words = {
          .data =
              get(part, {"I32"}, {divide_up(coded_->rows, in_word_), num_blocks()}).bytes.data(),
          .row_stride = num_blocks(),
          .row_shift = shift_,
          .num_bits = scheme_.num_bits};
      return;
    }
    coded_->zeros = coded_->scales;
    coded_->zeros.type = BlockNumbers::Type::kInt8;
    const int64_t num_rows = divide_up(coded_->rows, coded_->scales.block_rows);
    coded_->zeros.data = get(part, {"I8"}, {num_rows, num_blocks()}).bytes.data();
  }

  // Which block every column belongs to. compressed-tensors' _process_group() sorts the columns by
  // it and cuts them into blocks of one size; where it is -1 anywhere, columns stay where they are.
  void read_blocks_of_cols(const std::string& part) {
    if (find(part) == nullptr) return;
    const RawTensor& tensor = get(part, {"I32"}, {coded_->cols});
    const bool is_compressed = config_.method == QuantizationMethod::kCompressedTensors;
    std::vector<int64_t> counts(static_cast<size_t>(num_blocks()));
    bool in_order = true, is_unset = false, fits = true;
    for (int64_t col = 0; col < coded_->cols; ++col) {
      int32_t block = 0;
      std::memcpy(&block, tensor.bytes.data() + col * 4, 4);
      in_order &= block == col / coded_->block_cols;
      is_unset |= block == -1;
      fits &= block >= 0 && block < num_blocks();
      if (fits)
        fits &= ++counts[static_cast<size_t>(block)] <= coded_->block_cols || !is_compressed;
    }
    if (in_order || (is_unset && is_compressed)) return;
    if (!fits) {
      fail(part, fmt::format("the numbers of {} groups{}", num_blocks(),
                             is_compressed ? " of one size" : ""));
    }
    coded_->block_of_col = tensor.bytes.data();
  }

  QuantizedMatrix finish(std::string format) {
    return {coded_->name, std::move(parts_), std::move(format),
            coded_->rows, coded_->cols,      std::move(coded_)};
  }

  const RawTensors& tensors_;
  const std::string& module_;
  const QuantizationConfig& config_;
  const WeightScheme& scheme_;
  const int64_t in_word_;  // codes in a word of 32 bits: 2^shift_
  const int shift_;
  std::vector<std::string> parts_;
  std::unique_ptr<CodedMatrix> coded_;
};

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::vector<QuantizedMatrix> find_quantized_matrices(const RawTensors& tensors,
                                                     const QuantizationConfig& config) {
  using Method = QuantizationMethod;
  const bool by_columns = config.method == Method::kAwq || config.method == Method::kGptq;
  std::vector<QuantizedMatrix> matrices;
  for (const auto& [name, tensor] : tensors) {
    const std::string part(last_part(name));
    const bool has_codes = by_columns ? part == "qweight"
                           : part == "weight_packed"
                               ? config.method == Method::kCompressedTensors
                               : part == "weight" && !contains(floats(), tensor.type);
    if (!has_codes || name == part) continue;
    const std::string module = name.substr(0, name.size() - part.size() - 1);
    if (part != "weight" && tensors.contains(module + ".weight")) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} is there, and {}.weight as well",
                  tensor.path, printable(name), printable(module));
    }
    const auto scheme = config.scheme_of(module);
    if (!scheme) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} is quantised, but by {} it is not",
                  tensor.path, printable(name), config.where);
    }
    Reader reader(tensors, module, config, *scheme);
    matrices.push_back(by_columns ? reader.read_column_coded() : reader.read_row_coded(part));
  }
  return matrices;
}

bool may_be_unread(std::string_view name, const RawTensor& tensor,
                   const QuantizationConfig& config) {
  const std::string_view part = last_part(name);
  if (config.method == QuantizationMethod::kGptq && part == "bias") {
    return contains(floats(), tensor.type) &&
           std::ranges::all_of(tensor.bytes, [](std::byte b) { return b == std::byte{}; });
  }
  return contains(
      {"input_scale", "input_global_scale", "input_zero_point", "activation_scale", "output_scale",
       "output_zero_point", "q_scale", "k_scale", "v_scale", "kv_scale", "k_zero_point",
       "v_zero_point", "q_global_scale", "k_global_scale", "v_global_scale"},
      part);
}

}  // namespace nanovllm
