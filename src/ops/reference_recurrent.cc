// The gated delta rule row by row, without chunks; see reference.h.
#include <cmath>

#include "ops/reference.h"

namespace nanovllm::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class GatedDeltaRows {
 public:
  GatedDeltaRows(const Tensor& in, const GatedDelta& core) : in_(in), core_(core) {}

  // [T, value_dim] of one value head.
  std::vector<double> head(int h) const {
    const int64_t dk = core_.key_dim, dv = core_.value_dim;
    const int64_t keys = core_.num_key_heads * dk, key = core_.key_head_of(h) * dk;
    std::vector<double> state(static_cast<size_t>(dk * dv)), result;
    for (int64_t t = 0; t < in_.rows(); ++t) {
      std::vector<double> q = channels(t, key, dk);
      std::vector<double> k = channels(t, keys + key, dk);
      const std::vector<double> v = channels(t, 2 * keys + h * dv, dv);
      normalise(q, 1 / std::sqrt(static_cast<double>(dk)));
      normalise(k, 1);
      const int64_t z = core_.num_channels();
      const int64_t b = z + core_.num_value_heads * dv, a = b + core_.num_value_heads;
      const double beta = core_.beta_scale * sigmoid(number(t, b + h));
      const double g = core_.decay[h] * std::log1p(std::exp(number(t, a + h) + core_.dt_bias[h]));
      for (double& element : state) element *= std::exp(g);
      std::vector<double> o(static_cast<size_t>(dv));
      for (int64_t j = 0; j < dv; ++j) {
        double read = 0;
        for (int64_t i = 0; i < dk; ++i) read += state[i * dv + j] * k[i];
        for (int64_t i = 0; i < dk; ++i) state[i * dv + j] += k[i] * beta * (v[j] - read);
        for (int64_t i = 0; i < dk; ++i) o[j] += state[i * dv + j] * q[i];
      }
      double squares = 0;
      for (const double value : o) squares += value * value;
      const double rms = std::sqrt(squares / static_cast<double>(dv) + core_.out_norm.eps);
      for (int64_t j = 0; j < dv; ++j) {
        const double gate = number(t, z + h * dv + j);
        result.push_back(o[j] / rms * core_.out_norm.weight[j] * gate * sigmoid(gate));
      }
    }
    return result;
  }

 private:
  double number(int64_t row, int64_t column) const {
    return element(in_, row * in_.row_size() + column);
  }
  std::vector<double> channels(int64_t row, int64_t first, int64_t count) const {
    std::vector<double> values;
    for (int64_t c = first; c < first + count; ++c) {
      double sum = 0;
      for (int j = 0; j < core_.conv_width; ++j) {
        const int64_t from = row - (core_.conv_width - 1) + j;
        if (from >= 0) sum += core_.conv_weight[j * core_.num_channels() + c] * number(from, c);
      }
      values.push_back(sum * sigmoid(sum));
    }
    return values;
  }
  static void normalise(std::vector<double>& x, double scale) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value *= scale / std::sqrt(squares + 1e-6);
  }

  const Tensor& in_;
  const GatedDelta& core_;
};

}  // namespace

std::vector<float> gated_delta(const Tensor& in, const GatedDelta& core) {
  const int64_t dv = core.value_dim, width = core.num_value_heads * dv;
  std::vector<float> out(static_cast<size_t>(in.rows() * width));
  for (int h = 0; h < core.num_value_heads; ++h) {
    const std::vector<double> head = GatedDeltaRows(in, core).head(h);
    for (int64_t t = 0; t < in.rows(); ++t) {
      for (int64_t j = 0; j < dv; ++j) {
        out[t * width + h * dv + j] = static_cast<float>(head[t * dv + j]);
      }
    }
  }
  return out;
}

}  // namespace nanovllm::reference
