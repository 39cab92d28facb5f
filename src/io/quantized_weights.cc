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

bool contains(const Types& types, std::string_view type) {
  return std::ranges::find(types, type) != types.end();
}

constexpr int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

// Of a module's matrix, for messages.
std::string place_of(const RawTensor& codes, const std::string& module) {
  return fmt::format("{}: tensor {}.weight", codes.path, printable(module));
}

// Reads one matrix from the tensors of its module.
class MatrixReader {
 public:
  MatrixReader(const RawTensors& tensors, const std::string& module,
               const QuantizationConfig& config, const WeightScheme& scheme)
      : tensors_(tensors),
        module_(module),
        config_(config),
        scheme_(scheme),
        words_(scheme.num_bits == 4 ? Type::kWordsOf4Bits : Type::kWordsOf8Bits),
        in_word_(32 / scheme.num_bits) {}

  // compressed-tensors 0.17.0, decompress() of the formats pack-quantized, int-quantized,
  // float-quantized, naive-quantized and nvfp4-pack-quantized: _dequantize() in
  // quantization/lifecycle/forward_helpers.py with float32 scales. FP8: transformers 5's
  // Fp8Dequantize and ModelOpt 0.47's FP8QTensor.
  QuantizedMatrix read_row_coded(const std::string& part) {
    const bool is_fp4 = scheme_.is_float && scheme_.num_bits == 4;
    const bool is_packed = !scheme_.is_float && part == "weight_packed";
    const char* type = is_fp4 ? "U8" : scheme_.is_float ? "F8_E4M3" : is_packed ? "I32" : "I8";
    const RawTensor& codes = get_matrix(part, type, is_fp4 ? 4 : 1);
    const int64_t stored_cols = codes.shape[1];
    coded_->rows = codes.shape[0];
    coded_->cols = stored_cols * (is_fp4 ? 2 : 1);
    coded_->codes = {.data = codes.bytes.data(),
                     .type = is_fp4 || is_packed ? words_ : Type::kBytes,
                     .row_stride = is_fp4 ? stored_cols / 4 : stored_cols,
                     .values = scheme_.is_float ? &kFp8Codes : &kSignedCodes};
    if (is_packed) read_packed_integers(codes);
    if (is_fp4) {
      read_fp4();
    } else {
      read_scales(find("weight_scale_inv") ? "weight_scale_inv" : "weight_scale", floats());
    }
    if (find("weight_zero_point") || !scheme_.symmetric) read_zeros(is_packed);
    read_blocks_of_cols("weight_g_idx");
    return finish(is_fp4 ? "NVFP4" : scheme_.is_float ? "FP8" : int_name());
  }

  // AWQ: AutoAWQ 0.2.9, dequantize_gemm() in awq/utils/packing_utils.py. GPTQ: GPTQModel 7.7,
  // dequantize_weight() in gptqmodel/nn_modules/qlinear/__init__.py, and for the first version's
  // zero points convert_gptq_v1_to_v2_format_module() in gptqmodel/utils/model.py, which adds to
  // whole words. The matrix is stored [columns, rows].
  QuantizedMatrix read_column_coded() {
    const bool is_awq = config_.method == QuantizationMethod::kAwq;
    const RawTensor& codes = get_matrix("qweight", "I32", is_awq ? 1 : in_word_);
    const int64_t width = codes.shape[1], rows = width * (is_awq ? in_word_ : 1);
    coded_->rows = rows;
    coded_->cols = codes.shape[0] * (is_awq ? 1 : in_word_);
    coded_->block_cols = scheme_.block_cols > 0 ? scheme_.block_cols : coded_->cols;
    coded_->codes = {
        .data = codes.bytes.data(), .type = words_, .row_stride = 1, .col_stride = width};
    if (is_awq) coded_->codes = words_of_rows(codes, width);
    const int64_t num_blocks = coded_->num_blocks();
    coded_->scales = plain(get("scales", floats(), {num_blocks, rows}));
    coded_->scales.row_stride = 1;
    coded_->scales.col_stride = rows;
    coded_->zeros =
        words_of_rows(get("qzeros", {"I32"}, {num_blocks, rows / in_word_}), rows / in_word_);
    if (config_.zeros_are_less_by_one) {
      coded_->zeros.addend = scheme_.num_bits == 4 ? 0x11111111 : 0x01010101;
    }
    read_blocks_of_cols("g_idx");
    return finish((is_awq ? "AWQ " : "GPTQ ") + int_name());
  }

 private:
  using Type = NumberGrid::Type;

  const RawTensor* find(const std::string& part) {
    const auto it = tensors_.find(module_ + "." + part);
    if (it == tensors_.end()) return nullptr;
    if (std::ranges::find(parts_, it->first) == parts_.end()) parts_.push_back(it->first);
    return &it->second;
  }

  // Dimensions of 1 at the end may be left out, all of them if there is one number.
  const RawTensor& get(const std::string& part, const Types& types,
                       const std::vector<int64_t>& shape = {}) {
    const RawTensor* tensor = find(part);
    if (tensor == nullptr) {
      throw_error(
          ErrorCode::kCorruptData, "{}: tensor {}.{} is missing, without which {} can't be decoded",
          tensors_.at(parts_.front()).path, printable(module_), part, printable(parts_.front()));
    }
    if (!contains(types, tensor->type)) fail(part, fmt::format("{}", fmt::join(types, ", ")));
    std::vector<int64_t> padded = tensor->shape;
    padded.resize(std::max(padded.size(), shape.size()), 1);
    if (!shape.empty() && padded != shape) fail(part, fmt::format("[{}]", fmt::join(shape, ", ")));
    return *tensor;
  }

  // Neither dimension is 0: no size computed from them overflows, for they are bounded by the
  // file's.
  const RawTensor& get_matrix(const std::string& part, const char* type, int64_t multiple) {
    const RawTensor& tensor = get(part, {type});
    const std::vector<int64_t>& shape = tensor.shape;
    if (shape.size() != 2 || std::ranges::min(shape) < 1 || shape[1] % multiple != 0) {
      fail(part, fmt::format("a matrix of rows that are a multiple of {} long", multiple));
    }
    return tensor;
  }

  [[noreturn]] void fail(const std::string& part, const std::string& expected) const {
    const RawTensor& tensor = tensors_.at(module_ + "." + part);
    const auto code = tensor.type == "F8_E5M2" ? ErrorCode::kUnsupported : ErrorCode::kCorruptData;
    throw_error(code, "{}: tensor {}.{} is {} [{}], by {} it should be {}", tensor.path,
                printable(module_), part, tensor.type, fmt::join(tensor.shape, ", "), config_.where,
                expected);
  }

  std::string int_name() const { return fmt::format("INT{}", scheme_.num_bits); }

  static NumberGrid plain(const RawTensor& tensor) {
    const Type type = tensor.type == "F32"    ? Type::kFloat32
                      : tensor.type == "BF16" ? Type::kBFloat16
                      : tensor.type == "F16"  ? Type::kFloat16
                                              : Type::kBytes;
    return {.data = tensor.bytes.data(),
            .type = type,
            .values = tensor.type == "I8" ? &kSignedCodes : &kFp8Codes};
  }

  // [columns, rows / in_word_] of AWQ's and GPTQ's.
  NumberGrid words_of_rows(const RawTensor& tensor, int64_t width) const {
    return {.data = tensor.bytes.data(),
            .type = words_,
            .row_stride = 1,
            .col_stride = width,
            .shared_rows = in_word_,
            .words_hold_rows = true,
            .is_awq_order = config_.method == QuantizationMethod::kAwq};
  }

  // As pack_to_int32() leaves them: codes and zero points are more by half their range.
  void read_packed_integers(const RawTensor& codes) {
    const RawTensor& shape = get("weight_shape", {"I64"}, {2});
    int64_t sizes[2] = {};
    std::memcpy(sizes, shape.bytes.data(), sizeof sizes);
    if (sizes[0] != codes.shape[0] || sizes[1] < 1 || sizes[1] > codes.shape[1] * in_word_ ||
        divide_up(sizes[1], in_word_) != codes.shape[1]) {
      fail("weight_packed",
           fmt::format("of a shape for weight_shape's {} x {} codes", sizes[0], sizes[1]));
    }
    coded_->cols = sizes[1];
    coded_->codes.values = &kUnsignedCodes;
    coded_->zero = scheme_.num_bits == 4 ? 8 : 128;
  }

  // compressed-tensors divides scales by the global one. ModelOpt 0.47's NVFP4QTensor.dequantize()
  // multiplies them.
  void read_fp4() {
    const bool is_modelopt = config_.method == QuantizationMethod::kModelOpt;
    coded_->codes.values = is_modelopt ? &kModelOptFp4Codes : &kFp4Codes;
    plain(get(is_modelopt ? "weight_scale_2" : "weight_global_scale", {"F32"}, {1}))
        .read(0, 0, 1, &coded_->global_scale);
    coded_->divides_by_global_scale = !is_modelopt;
    read_scales("weight_scale", {"F8_E4M3"});
  }

  void read_scales(const std::string& part, const Types& types) {
    const RawTensor& scales = get(part, types);
    const bool is_one = std::ranges::all_of(scales.shape, [](int64_t n) { return n == 1; });
    const bool all_rows = is_one || scheme_.block_rows == 0;
    coded_->block_cols = is_one || scheme_.block_cols == 0 ? coded_->cols : scheme_.block_cols;
    coded_->scales = plain(scales);
    coded_->scales.row_stride = coded_->num_blocks();
    coded_->scales.shared_rows = all_rows ? coded_->rows : scheme_.block_rows;
    get(part, types, {rows_of_blocks(), coded_->num_blocks()});
  }

  int64_t rows_of_blocks() const { return divide_up(coded_->rows, coded_->scales.shared_rows); }

  void read_zeros(bool is_packed) {
    const int64_t num_blocks = coded_->num_blocks();
    coded_->zeros =
        plain(get("weight_zero_point", {is_packed ? "I32" : "I8"},
                  {is_packed ? divide_up(coded_->rows, in_word_) : rows_of_blocks(), num_blocks}));
    coded_->zeros.row_stride = num_blocks;
    coded_->zeros.shared_rows = is_packed ? in_word_ : coded_->scales.shared_rows;
    if (!is_packed) return;
    coded_->zeros.type = words_;
    coded_->zeros.values = &kUnsignedCodes;
    coded_->zeros.words_hold_rows = true;
  }

  // Which block every column belongs to. Where compressed-tensors has -1 anywhere, columns stay
  // where they are.
  void read_blocks_of_cols(const std::string& part) {
    if (find(part) == nullptr) return;
    const RawTensor& tensor = get(part, {"I32"}, {coded_->cols});
    std::vector<int32_t> blocks(static_cast<size_t>(coded_->cols));
    std::memcpy(blocks.data(), tensor.bytes.data(), tensor.bytes.size());
    const bool is_compressed = config_.method == QuantizationMethod::kCompressedTensors;
    if (is_compressed && std::ranges::find(blocks, -1) != blocks.end()) return;
    const auto [least, most] = std::ranges::minmax(blocks);
    if (least < 0 || most >= coded_->num_blocks()) {
      fail(part, fmt::format("numbers of {} groups", coded_->num_blocks()));
    }
    for (int64_t col = 0; const int32_t block : blocks) {
      if (block != col++ / coded_->block_cols) {
        coded_->block_of_col = std::move(blocks);
        return;
      }
    }
  }

  QuantizedMatrix finish(std::string format) {
    coded_->place = place_of(tensors_.at(parts_.front()), module_);
    coded_->choose_layout();
    std::string no_layout_because = coded_->no_layout_because;
    return {.name = module_ + ".weight",
            .parts = std::move(parts_),
            .format = std::move(format),
            .rows = coded_->rows,
            .cols = coded_->cols,
            .decoder = std::move(coded_),
            .no_layout_because = std::move(no_layout_because)};
  }

  const RawTensors& tensors_;
  const std::string& module_;
  const QuantizationConfig& config_;
  const WeightScheme& scheme_;
  const Type words_;  // of several codes
  const int64_t in_word_;
  std::vector<std::string> parts_;
  std::unique_ptr<CodedMatrix> coded_ = std::make_unique<CodedMatrix>();
};

// Refuses a matrix that is there in two formats.
void check_is_alone(const RawTensors& tensors, const std::string& codes,
                    const std::string& module) {
  if (!tensors.contains(module + ".weight")) return;
  throw_error(ErrorCode::kCorruptData, "{}: tensor {} is there, and {}.weight as well",
              tensors.at(codes).path, printable(codes), printable(module));
}

// The stack whose codes are `name`, NAME_blocks [stack, rows, blocks, 16]: two codes in a byte, the
// lower bits first, and for every block of 32 a power of two (OCP Microscaling Formats 1.0).
QuantizedMatrix read_mxfp4(const RawTensors& tensors, const std::string& name,
                           const RawTensor& codes) {
  const std::string module = name.substr(0, name.rfind('_'));
  check_is_alone(tensors, name, module);
  std::vector<int64_t> shape = codes.shape;
  const auto scales = tensors.find(module + "_scales");
  const bool is_stack =
      codes.type == "U8" && shape.size() == 4 && shape.back() == 16 && std::ranges::min(shape) > 0;
  if (is_stack) shape.pop_back();
  if (!is_stack || scales == tensors.end() || scales->second.type != "U8" ||
      scales->second.shape != shape) {
    throw_error(ErrorCode::kCorruptData,
                "{}: tensor {} is no MXFP4: expected U8 [experts, rows, blocks, 16], and {}_scales "
                "of U8 [experts, rows, blocks]",
                codes.path, printable(name), printable(module));
  }
  auto coded = std::make_unique<CodedMatrix>();
  coded->place = place_of(codes, module);
  coded->rows = shape[0] * shape[1];
  coded->cols = shape[2] * 32;
  coded->block_cols = 32;
  coded->codes = {.data = codes.bytes.data(),
                  .type = NumberGrid::Type::kWordsOf4Bits,
                  .row_stride = shape[2] * 4,
                  .values = &kFp4Codes};
  coded->scales = {.data = scales->second.bytes.data(),
                   .type = NumberGrid::Type::kBytes,
                   .row_stride = shape[2],
                   .values = &kE8m0Codes};
  coded->choose_layout();
  QuantizedMatrix matrix = {.name = module + ".weight",
                            .parts = {name, scales->first},
                            .format = "MXFP4",
                            .rows = shape[1],
                            .cols = coded->cols,
                            .stack_size = shape[0],
                            .decoder = nullptr,
                            .no_layout_because = {}};
  matrix.decoder = std::move(coded);
  return matrix;
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::vector<QuantizedMatrix> find_quantized_matrices(const RawTensors& tensors,
                                                     const QuantizationConfig& config) {
  using Method = QuantizationMethod;
  const bool by_columns = config.method == Method::kAwq || config.method == Method::kGptq;
  std::vector<QuantizedMatrix> matrices;
  for (const auto& [name, tensor] : tensors) {
    if (config.method == Method::kMxfp4) {
      if (name.ends_with("_blocks")) matrices.push_back(read_mxfp4(tensors, name, tensor));
      continue;
    }
    const std::string part(last_part(name));
    const bool has_codes = by_columns ? part == "qweight"
                           : part == "weight_packed"
                               ? config.method == Method::kCompressedTensors
                               : part == "weight" && !contains(floats(), tensor.type);
    if (!has_codes || name == part) continue;
    const std::string module = name.substr(0, name.size() - part.size() - 1);
    if (part != "weight") check_is_alone(tensors, name, module);
    const auto scheme = config.scheme_of(module);
    if (!scheme) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} is quantised, but by {} it is not",
                  tensor.path, printable(name), config.where);
    }
    MatrixReader reader(tensors, module, config, *scheme);
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
