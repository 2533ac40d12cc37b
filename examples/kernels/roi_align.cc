// ROIAlign, forward and backward, for XLA's foreign function interface. One sample of a region reads four pixels of the
// feature map; backward adds to the same four. Both walk the samples in the same order, by `for_each_sample`.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

struct Settings {
  double spatial_scale;
  int64_t sampling_ratio;
  bool aligned;
};

// Where a sample lies along one axis: two pixels and their weights; weights of zero outside of the map.
template <typename T>
struct Along {
  int64_t low, high;
  T weight_low, weight_high;
};

template <typename T>
Along<T> along(T at, int64_t size) {
  if (at < -1 || at > size) return {0, 0, 0, 0};
  at = std::max(at, T(0));
  const int64_t low = std::min<int64_t>(int64_t(at), size - 1);
  const int64_t high = std::min(low + 1, size - 1);
  const T part = high == low ? T(0) : at - T(low);
  return {low, high, 1 - part, part};
}

// Calls visit(bin row, bin column, y, x, weight) for every sample of a region (batch, x1, y1, x2, y2).
template <typename T, typename Visit>
void for_each_sample(const T* roi, int64_t height, int64_t width, int64_t rows, int64_t columns,
                     const Settings& settings, Visit visit) {
  const T scale = T(settings.spatial_scale), offset = settings.aligned ? T(0.5) : T(0);
  const T left = roi[1] * scale - offset, top = roi[2] * scale - offset;
  T w = roi[3] * scale - offset - left, h = roi[4] * scale - offset - top;
  if (!settings.aligned) {
    w = std::max(w, T(1));
    h = std::max(h, T(1));
  }
  const T bin_h = h / T(rows), bin_w = w / T(columns);
  const int64_t fixed = settings.sampling_ratio;
  const int64_t n_y = fixed > 0 ? fixed : int64_t(std::ceil(bin_h)), n_x = fixed > 0 ? fixed : int64_t(std::ceil(bin_w));
  const T weight = T(1) / T(std::max<int64_t>(n_y * n_x, 1));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n_y; ++i) {
      const Along<T> y = along(top + (T(r) + (T(i) + T(0.5)) / T(n_y)) * bin_h, height);
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t j = 0; j < n_x; ++j)
          visit(r, c, y, along(left + (T(c) + (T(j) + T(0.5)) / T(n_x)) * bin_w, width), weight);
    }
}

template <ffi::DataType D>
ffi::Error check(const ffi::Buffer<D>& rois, int64_t batch) {
  const auto* roi = rois.typed_data();
  for (int64_t k = 0; k < rois.dimensions()[0]; ++k)
    if (!(roi[5 * k] >= 0 && roi[5 * k] < batch))
      return ffi::Error::InvalidArgument("a region names an image that is not in the batch");
  return ffi::Error::Success();
}

template <ffi::DataType D>
ffi::Error forward(ffi::Buffer<D> input, ffi::Buffer<D> rois, double spatial_scale, int64_t sampling_ratio,
                   bool aligned, ffi::ResultBuffer<D> output) {
  using T = ffi::NativeType<D>;
  const auto in = input.dimensions(), out = output->dimensions();
  const int64_t channels = in[1], height = in[2], width = in[3], rows = out[2], columns = out[3];
  if (ffi::Error error = check(rois, in[0]); error.failure()) return error;
  std::fill_n(output->typed_data(), output->element_count(), T(0));
  for (int64_t k = 0; k < out[0]; ++k) {
    const T* roi = rois.typed_data() + 5 * k;
    for (int64_t c = 0; c < channels; ++c) {
      const T* map = input.typed_data() + (int64_t(roi[0]) * channels + c) * height * width;
      T* bins = output->typed_data() + (k * channels + c) * rows * columns;
      for_each_sample(roi, height, width, rows, columns, {spatial_scale, sampling_ratio, aligned},
                      [&](int64_t r, int64_t col, const Along<T>& y, const Along<T>& x, T weight) {
                        const T *upper = map + y.low * width, *lower = map + y.high * width;
                        bins[r * columns + col] +=
                            weight * (y.weight_low * (x.weight_low * upper[x.low] + x.weight_high * upper[x.high]) +
                                      y.weight_high * (x.weight_low * lower[x.low] + x.weight_high * lower[x.high]));
                      });
    }
  }
  return ffi::Error::Success();
}

template <ffi::DataType D>
ffi::Error backward(ffi::Buffer<D> grad_output, ffi::Buffer<D> rois, double spatial_scale, int64_t sampling_ratio,
                    bool aligned, ffi::ResultBuffer<D> grad_input) {
  using T = ffi::NativeType<D>;
  const auto in = grad_input->dimensions(), out = grad_output.dimensions();
  const int64_t channels = in[1], height = in[2], width = in[3], rows = out[2], columns = out[3];
  if (ffi::Error error = check(rois, in[0]); error.failure()) return error;
  std::fill_n(grad_input->typed_data(), grad_input->element_count(), T(0));
  for (int64_t k = 0; k < out[0]; ++k) {
    const T* roi = rois.typed_data() + 5 * k;
    for (int64_t c = 0; c < channels; ++c) {
      T* map = grad_input->typed_data() + (int64_t(roi[0]) * channels + c) * height * width;
      const T* bins = grad_output.typed_data() + (k * channels + c) * rows * columns;
      for_each_sample(roi, height, width, rows, columns, {spatial_scale, sampling_ratio, aligned},
                      [&](int64_t r, int64_t col, const Along<T>& y, const Along<T>& x, T weight) {
                        const T grad = weight * bins[r * columns + col];
                        T *upper = map + y.low * width, *lower = map + y.high * width;
                        upper[x.low] += grad * y.weight_low * x.weight_low;
                        upper[x.high] += grad * y.weight_low * x.weight_high;
                        lower[x.low] += grad * y.weight_high * x.weight_low;
                        lower[x.high] += grad * y.weight_high * x.weight_high;
                      });
    }
  }
  return ffi::Error::Success();
}

#define BINDING(T)                  \
  ffi::Ffi::Bind()                  \
      .Arg<ffi::Buffer<ffi::T>>()   \
      .Arg<ffi::Buffer<ffi::T>>()   \
      .Attr<double>("spatial_scale") \
      .Attr<int64_t>("sampling_ratio") \
      .Attr<bool>("aligned")        \
      .Ret<ffi::Buffer<ffi::T>>()

XLA_FFI_DEFINE_HANDLER_SYMBOL(roi_align_float32, forward<ffi::F32>, BINDING(F32));
XLA_FFI_DEFINE_HANDLER_SYMBOL(roi_align_float64, forward<ffi::F64>, BINDING(F64));
XLA_FFI_DEFINE_HANDLER_SYMBOL(roi_align_grad_float32, backward<ffi::F32>, BINDING(F32));
XLA_FFI_DEFINE_HANDLER_SYMBOL(roi_align_grad_float64, backward<ffi::F64>, BINDING(F64));
