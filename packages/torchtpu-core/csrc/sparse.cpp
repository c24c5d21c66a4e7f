// SPDX-License-Identifier: Apache-2.0
// Sparse layouts: a sparse tensor on the device is made of dense ones on the device. PyTorch's own
// kernels that only arrange these (construction, components, conversions, functions of the values)
// are registered here for the backend's sparse keys; `runtime/sparse.py` adds the sums and products,
// and what is in neither place runs on the host (fallback.cpp).
#include <ATen/NativeFunctions.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

namespace native = at::native;
using at::Tensor;

std::optional<c10::Device> place(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor.device()) : std::nullopt;
}

std::optional<c10::Device> place(const std::optional<c10::Device>& device) { return device; }

std::optional<c10::Device> place(const at::ITensorListRef& tensors) {
  return tensors.empty() ? std::nullopt : place(Tensor(*tensors.begin()));
}

template <class Other>
std::optional<c10::Device> place(const Other&) {
  return std::nullopt;
}

// A kernel of PyTorch, called on the device of its first tensor: a sparse tensor is made on the
// current one. PyTorch's own registrations of these kernels come with such a guard.
template <class Kernel, Kernel* kernel>
struct OnDevice;

template <class Result, class... Args, Result (*kernel)(Args...)>
struct OnDevice<Result(Args...), kernel> {
  static Result call(Args... args) {
    std::optional<c10::Device> device;
    ((device = device.has_value() ? device : place(args)), ...);
    const c10::OptionalDeviceGuard guard(device);
    return kernel(std::forward<Args>(args)...);
  }
};

#define ON_DEVICE(kernel) TORCH_FN((OnDevice<decltype(kernel), kernel>::call))

// Functions that keep zero: they act on the values alone.
#define TORCHTPU_SPARSE_UNARY(_) \
  _(abs) _(asin) _(asinh) _(atan) _(atanh) _(ceil) _(deg2rad) _(erf) _(erfinv) _(expm1) \
  _(floor) _(frac) _(log1p) _(rad2deg) _(round) _(sgn) _(sign) _(sin) _(sinh) _(sqrt) \
  _(tan) _(tanh) _(trunc)

#define TORCHTPU_COO_UNARY(name)                         \
  m.impl(#name, ON_DEVICE(native::name##_sparse));        \
  m.impl(#name "_", ON_DEVICE(native::name##_sparse_));   \
  m.impl(#name ".out", ON_DEVICE(native::name##_sparse_out));

#define TORCHTPU_CSR_UNARY(name)                            \
  m.impl(#name, ON_DEVICE(native::name##_sparse_csr));       \
  m.impl(#name "_", ON_DEVICE(native::name##_sparse_csr_));  \
  m.impl(#name ".out", ON_DEVICE(native::name##_sparse_csr_out));

Tensor coo_to_coo(const Tensor& self, int64_t sparse_dim) {
  return native::sparse_coo_to_sparse(self, sparse_dim);
}

Tensor coo_to_layout(const Tensor& self, std::optional<at::Layout> layout,
                     at::OptionalIntArrayRef blocksize, std::optional<int64_t> dense_dim) {
  return native::sparse_coo_to_sparse(self, layout, blocksize, dense_dim);
}

Tensor compressed_to_coo(const Tensor& self, int64_t sparse_dim) {
  return native::sparse_compressed_to_sparse(self, sparse_dim);
}

Tensor compressed_to_layout(const Tensor& self, std::optional<at::Layout> layout,
                            at::OptionalIntArrayRef blocksize, std::optional<int64_t> dense_dim) {
  return native::sparse_compressed_to_sparse(self, layout, blocksize, dense_dim);
}

Tensor dense_to_coo(const Tensor& self, int64_t sparse_dim) {
  return native::dense_to_sparse(self, sparse_dim);
}

Tensor dense_to_layout(const Tensor& self, std::optional<at::Layout> layout,
                       at::OptionalIntArrayRef blocksize, std::optional<int64_t> dense_dim) {
  return native::dense_to_sparse(self, layout, blocksize, dense_dim);
}

Tensor coo_mm(const Tensor& self, const Tensor& other) { return native::_sparse_mm(self, other); }

Tensor coo_div(const Tensor& self, const Tensor& other) { return native::div_sparse(self, other); }

Tensor& coo_div_(Tensor& self, const Tensor& other) { return native::div_sparse_(self, other); }

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  TORCHTPU_SPARSE_UNARY(TORCHTPU_COO_UNARY)
  m.impl("_coalesced_", ON_DEVICE(native::_coalesced_sparse_));
  m.impl("_dimI", ON_DEVICE(native::sparse_dim_sparse));
  m.impl("_dimV", ON_DEVICE(native::dense_dim_sparse));
  m.impl("_indices", ON_DEVICE(native::_indices_sparse));
  m.impl("_nnz", ON_DEVICE(native::_nnz_sparse));
  m.impl("_sparse_coo_tensor_with_dims", ON_DEVICE(native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         ON_DEVICE(native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_sparse_broadcast_to", ON_DEVICE(native::sparse_broadcast_to));
  m.impl("_to_sparse", ON_DEVICE(coo_to_layout));
  m.impl("_to_sparse.sparse_dim", ON_DEVICE(coo_to_coo));
  m.impl("_to_sparse_bsc", ON_DEVICE(native::coo_to_sparse_bsc));
  m.impl("_to_sparse_bsr", ON_DEVICE(native::coo_to_sparse_bsr));
  m.impl("_to_sparse_csc", ON_DEVICE(native::coo_to_sparse_csc));
  m.impl("_to_sparse_csr", ON_DEVICE(native::coo_to_sparse_csr));
  m.impl("_values", ON_DEVICE(native::_values_sparse));
  m.impl("add.Tensor", ON_DEVICE(native::add_sparse));
  m.impl("add_.Tensor", ON_DEVICE(native::add_sparse_));
  m.impl("any", ON_DEVICE(native::any_sparse));
  m.impl("cat", ON_DEVICE(native::cat_sparse));
  m.impl("clone", ON_DEVICE(native::clone_sparse));
  m.impl("copy_", ON_DEVICE(native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", ON_DEVICE(native::copy_sparse_));
  m.impl("dense_dim", ON_DEVICE(native::dense_dim_sparse));
  m.impl("div.Tensor", ON_DEVICE(coo_div));
  m.impl("div_.Tensor", ON_DEVICE(coo_div_));
  m.impl("empty.memory_format", ON_DEVICE(native::empty_sparse));
  m.impl("empty_like", ON_DEVICE(native::empty_like_sparse_coo));
  m.impl("indices", ON_DEVICE(native::indices_sparse));
  m.impl("is_coalesced", ON_DEVICE(native::is_coalesced_sparse));
  m.impl("isinf", ON_DEVICE(native::isinf_sparse));
  m.impl("isneginf", ON_DEVICE(native::isneginf_sparse));
  m.impl("isneginf.out", ON_DEVICE(native::isneginf_sparse_out));
  m.impl("isposinf", ON_DEVICE(native::isposinf_sparse));
  m.impl("isposinf.out", ON_DEVICE(native::isposinf_sparse_out));
  m.impl("isnan", ON_DEVICE(native::isnan_sparse));
  m.impl("mm", ON_DEVICE(coo_mm));
  m.impl("mul.Tensor", ON_DEVICE(native::mul_sparse));
  m.impl("mul_.Tensor", ON_DEVICE(native::mul_sparse_));
  m.impl("mv", ON_DEVICE(native::mv_sparse));
  m.impl("nan_to_num", ON_DEVICE(native::nan_to_num_sparse));
  m.impl("nan_to_num_", ON_DEVICE(native::nan_to_num_sparse_));
  m.impl("nan_to_num.out", ON_DEVICE(native::nan_to_num_sparse_out));
  m.impl("narrow_copy", ON_DEVICE(native::narrow_copy_sparse));
  m.impl("neg", ON_DEVICE(native::neg_sparse));
  m.impl("neg_", ON_DEVICE(native::neg_sparse_));
  m.impl("neg.out", ON_DEVICE(native::neg_out_sparse));
  m.impl("permute", ON_DEVICE(native::permute_sparse_coo));
  m.impl("pow.Tensor_Scalar", ON_DEVICE(native::pow_sparse_scalar));
  m.impl("pow.Tensor_Scalar_out", ON_DEVICE(native::pow_out_sparse_scalar));
  m.impl("relu", ON_DEVICE(native::relu_sparse));
  m.impl("relu_", ON_DEVICE(native::relu_sparse_));
  m.impl("resize_as_sparse_", ON_DEVICE(native::resize_as_sparse_));
  m.impl("signbit", ON_DEVICE(native::signbit_sparse));
  m.impl("signbit.out", ON_DEVICE(native::signbit_sparse_out));
  m.impl("sparse_dim", ON_DEVICE(native::sparse_dim_sparse));
  m.impl("sparse_resize_", ON_DEVICE(native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", ON_DEVICE(native::sparse_resize_and_clear_));
  m.impl("sub.Tensor", ON_DEVICE(native::sub_sparse));
  m.impl("sub_.Tensor", ON_DEVICE(native::sub_sparse_));
  m.impl("sub.out", ON_DEVICE(native::sub_out_sparse));
  m.impl("sum", ON_DEVICE(native::sum_coo));
  m.impl("sum.dim_IntList", ON_DEVICE(native::sum_sparse_coo));
  m.impl("threshold_backward", ON_DEVICE(native::threshold_backward_sparse));
  m.impl("unsqueeze", ON_DEVICE(native::unsqueeze_sparse));
  m.impl("values", ON_DEVICE(native::values_sparse));
  m.impl("zero_", ON_DEVICE(native::zero_sparse_));
  m.impl("zeros.out", ON_DEVICE(native::zeros_sparse_out));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  TORCHTPU_SPARSE_UNARY(TORCHTPU_CSR_UNARY)
  m.impl("_conj_physical", ON_DEVICE(native::conj_physical_sparse_csr));
  m.impl("_nnz", ON_DEVICE(native::_nnz_sparse_csr));
  m.impl("angle", ON_DEVICE(native::angle_sparse_csr));
  m.impl("_to_sparse", ON_DEVICE(compressed_to_layout));
  m.impl("_to_sparse.sparse_dim", ON_DEVICE(compressed_to_coo));
  m.impl("ccol_indices", ON_DEVICE(native::ccol_indices_sparse_csr));
  m.impl("clone", ON_DEVICE(native::clone_sparse_compressed));
  m.impl("col_indices", ON_DEVICE(native::col_indices_sparse_csr));
  m.impl("copy_", ON_DEVICE(native::copy_sparse_compressed_));
  m.impl("crow_indices", ON_DEVICE(native::crow_indices_sparse_csr));
  m.impl("dense_dim", ON_DEVICE(native::dense_dim_sparse_csr));
  m.impl("empty.memory_format", ON_DEVICE(native::empty_sparse_compressed));
  m.impl("empty_like", ON_DEVICE(native::empty_like_sparse_csr));
  m.impl("fill_.Scalar", ON_DEVICE(native::fill_sparse_csr_));
  m.impl("isinf", ON_DEVICE(native::isinf_sparse_csr));
  m.impl("isneginf", ON_DEVICE(native::isneginf_sparse_csr));
  m.impl("isneginf.out", ON_DEVICE(native::isneginf_sparse_csr_out));
  m.impl("isposinf", ON_DEVICE(native::isposinf_sparse_csr));
  m.impl("isposinf.out", ON_DEVICE(native::isposinf_sparse_csr_out));
  m.impl("isnan", ON_DEVICE(native::isnan_sparse_csr));
  m.impl("neg", ON_DEVICE(native::neg_sparse_csr));
  m.impl("neg_", ON_DEVICE(native::neg_sparse_csr_));
  m.impl("neg.out", ON_DEVICE(native::neg_sparse_csr_out));
  m.impl("normal_", ON_DEVICE(native::normal_sparse_csr_));
  m.impl("relu", ON_DEVICE(native::relu_sparse_csr));
  m.impl("relu_", ON_DEVICE(native::relu_sparse_csr_));
  m.impl("resize_", ON_DEVICE(native::resize_sparse_csr_));
  m.impl("resize_as_sparse_", ON_DEVICE(native::resize_as_sparse_compressed_));
  m.impl("row_indices", ON_DEVICE(native::row_indices_sparse_csr));
  m.impl("select.int", ON_DEVICE(native::select_sparse_csr));
  m.impl("select_copy.int", ON_DEVICE(native::select_copy_sparse_csr));
  m.impl("signbit", ON_DEVICE(native::signbit_sparse_csr));
  m.impl("signbit.out", ON_DEVICE(native::signbit_sparse_csr_out));
  m.impl("sparse_dim", ON_DEVICE(native::sparse_dim_sparse_csr));
  m.impl("sum", ON_DEVICE(native::sum_csr));
  m.impl("sum.dim_IntList", ON_DEVICE(native::sum_sparse_compressed));
  m.impl("threshold_backward", ON_DEVICE(native::threshold_backward_sparse_compressed));
  m.impl("values", ON_DEVICE(native::values_sparse_csr));
  m.impl("zero_", ON_DEVICE(native::zero_sparse_csr_));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse", ON_DEVICE(dense_to_layout));
  m.impl("_to_sparse.sparse_dim", ON_DEVICE(dense_to_coo));
  m.impl("_to_sparse_bsc", ON_DEVICE(native::dense_to_sparse_bsc));
  m.impl("_to_sparse_bsr", ON_DEVICE(native::dense_to_sparse_bsr));
  m.impl("_to_sparse_csc", ON_DEVICE(native::dense_to_sparse_csc));
  m.impl("_to_sparse_csr", ON_DEVICE(native::dense_to_sparse_csr));
}

// The place of each element in an array of these sizes, `(sparse dims, n)` -> `(n)`: what the
// construction of a tensor that is called coalesced compares.
Tensor flat_indices(const Tensor& indices, at::IntArrayRef sizes) {
  Tensor steps = at::empty({indices.size(0), 1}, at::kLong);
  int64_t step = 1;
  for (int64_t dim = indices.size(0) - 1; dim >= 0; --dim) {
    steps.data_ptr<int64_t>()[dim] = step;
    step *= sizes[dim];
  }
  return indices.mul(steps.to(indices.device())).sum(at::IntArrayRef{0});
}

}  // namespace
}  // namespace torchtpu

// Declared by a header that PyTorch does not install.
namespace at::native {
using flatten_indices_fn = Tensor (*)(const Tensor& indices, IntArrayRef size);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &torchtpu::flat_indices)
}  // namespace at::native
