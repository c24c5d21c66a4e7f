// SPDX-License-Identifier: Apache-2.0
// Sparse layouts: a sparse tensor on the device is made of dense ones on the device. PyTorch's own
// kernels that only arrange these (construction, components, conversions, functions of the values)
// are registered here for the backend's sparse keys; `runtime/sparse.py` adds the sums and products,
// and what is in neither place runs on the host (fallback.cpp).
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

namespace native = at::native;
using at::Tensor;

// Functions that keep zero: they act on the values alone.
#define TORCHTPU_SPARSE_UNARY(_) \
  _(abs) _(asin) _(asinh) _(atan) _(atanh) _(ceil) _(deg2rad) _(erf) _(erfinv) _(expm1) \
  _(floor) _(frac) _(log1p) _(rad2deg) _(round) _(sgn) _(sign) _(sin) _(sinh) _(sqrt) \
  _(tan) _(tanh) _(trunc)

#define TORCHTPU_COO_UNARY(name)                         \
  m.impl(#name, TORCH_FN(native::name##_sparse));        \
  m.impl(#name "_", TORCH_FN(native::name##_sparse_));   \
  m.impl(#name ".out", TORCH_FN(native::name##_sparse_out));

#define TORCHTPU_CSR_UNARY(name)                            \
  m.impl(#name, TORCH_FN(native::name##_sparse_csr));       \
  m.impl(#name "_", TORCH_FN(native::name##_sparse_csr_));  \
  m.impl(#name ".out", TORCH_FN(native::name##_sparse_csr_out));

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
  m.impl("_coalesced_", TORCH_FN(native::_coalesced_sparse_));
  m.impl("_dimI", TORCH_FN(native::sparse_dim_sparse));
  m.impl("_dimV", TORCH_FN(native::dense_dim_sparse));
  m.impl("_indices", TORCH_FN(native::_indices_sparse));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_sparse_broadcast_to", TORCH_FN(native::sparse_broadcast_to));
  m.impl("_to_sparse", TORCH_FN(coo_to_layout));
  m.impl("_to_sparse.sparse_dim", TORCH_FN(coo_to_coo));
  m.impl("_to_sparse_bsc", TORCH_FN(native::coo_to_sparse_bsc));
  m.impl("_to_sparse_bsr", TORCH_FN(native::coo_to_sparse_bsr));
  m.impl("_to_sparse_csc", TORCH_FN(native::coo_to_sparse_csc));
  m.impl("_to_sparse_csr", TORCH_FN(native::coo_to_sparse_csr));
  m.impl("_values", TORCH_FN(native::_values_sparse));
  m.impl("add.Tensor", TORCH_FN(native::add_sparse));
  m.impl("add_.Tensor", TORCH_FN(native::add_sparse_));
  m.impl("any", TORCH_FN(native::any_sparse));
  m.impl("cat", TORCH_FN(native::cat_sparse));
  m.impl("clone", TORCH_FN(native::clone_sparse));
  m.impl("copy_", TORCH_FN(native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(native::copy_sparse_));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse));
  m.impl("div.Tensor", TORCH_FN(coo_div));
  m.impl("div_.Tensor", TORCH_FN(coo_div_));
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse));
  m.impl("empty_like", TORCH_FN(native::empty_like_sparse_coo));
  m.impl("indices", TORCH_FN(native::indices_sparse));
  m.impl("is_coalesced", TORCH_FN(native::is_coalesced_sparse));
  m.impl("isinf", TORCH_FN(native::isinf_sparse));
  m.impl("isneginf", TORCH_FN(native::isneginf_sparse));
  m.impl("isneginf.out", TORCH_FN(native::isneginf_sparse_out));
  m.impl("isposinf", TORCH_FN(native::isposinf_sparse));
  m.impl("isposinf.out", TORCH_FN(native::isposinf_sparse_out));
  m.impl("isnan", TORCH_FN(native::isnan_sparse));
  m.impl("mm", TORCH_FN(coo_mm));
  m.impl("mul.Tensor", TORCH_FN(native::mul_sparse));
  m.impl("mul_.Tensor", TORCH_FN(native::mul_sparse_));
  m.impl("mv", TORCH_FN(native::mv_sparse));
  m.impl("nan_to_num", TORCH_FN(native::nan_to_num_sparse));
  m.impl("nan_to_num_", TORCH_FN(native::nan_to_num_sparse_));
  m.impl("nan_to_num.out", TORCH_FN(native::nan_to_num_sparse_out));
  m.impl("narrow_copy", TORCH_FN(native::narrow_copy_sparse));
  m.impl("neg", TORCH_FN(native::neg_sparse));
  m.impl("neg_", TORCH_FN(native::neg_sparse_));
  m.impl("neg.out", TORCH_FN(native::neg_out_sparse));
  m.impl("permute", TORCH_FN(native::permute_sparse_coo));
  m.impl("pow.Tensor_Scalar", TORCH_FN(native::pow_sparse_scalar));
  m.impl("pow.Tensor_Scalar_out", TORCH_FN(native::pow_out_sparse_scalar));
  m.impl("relu", TORCH_FN(native::relu_sparse));
  m.impl("relu_", TORCH_FN(native::relu_sparse_));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_));
  m.impl("signbit", TORCH_FN(native::signbit_sparse));
  m.impl("signbit.out", TORCH_FN(native::signbit_sparse_out));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse));
  m.impl("sparse_resize_", TORCH_FN(native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(native::sparse_resize_and_clear_));
  m.impl("sub.Tensor", TORCH_FN(native::sub_sparse));
  m.impl("sub_.Tensor", TORCH_FN(native::sub_sparse_));
  m.impl("sub.out", TORCH_FN(native::sub_out_sparse));
  m.impl("sum", TORCH_FN(native::sum_coo));
  m.impl("sum.dim_IntList", TORCH_FN(native::sum_sparse_coo));
  m.impl("threshold_backward", TORCH_FN(native::threshold_backward_sparse));
  m.impl("unsqueeze", TORCH_FN(native::unsqueeze_sparse));
  m.impl("values", TORCH_FN(native::values_sparse));
  m.impl("zero_", TORCH_FN(native::zero_sparse_));
  m.impl("zeros.out", TORCH_FN(native::zeros_sparse_out));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  TORCHTPU_SPARSE_UNARY(TORCHTPU_CSR_UNARY)
  m.impl("_conj_physical", TORCH_FN(native::conj_physical_sparse_csr));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse_csr));
  m.impl("angle", TORCH_FN(native::angle_sparse_csr));
  m.impl("_to_sparse", TORCH_FN(compressed_to_layout));
  m.impl("_to_sparse.sparse_dim", TORCH_FN(compressed_to_coo));
  m.impl("ccol_indices", TORCH_FN(native::ccol_indices_sparse_csr));
  m.impl("clone", TORCH_FN(native::clone_sparse_compressed));
  m.impl("col_indices", TORCH_FN(native::col_indices_sparse_csr));
  m.impl("copy_", TORCH_FN(native::copy_sparse_compressed_));
  m.impl("crow_indices", TORCH_FN(native::crow_indices_sparse_csr));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse_csr));
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse_compressed));
  m.impl("empty_like", TORCH_FN(native::empty_like_sparse_csr));
  m.impl("fill_.Scalar", TORCH_FN(native::fill_sparse_csr_));
  m.impl("isinf", TORCH_FN(native::isinf_sparse_csr));
  m.impl("isneginf", TORCH_FN(native::isneginf_sparse_csr));
  m.impl("isneginf.out", TORCH_FN(native::isneginf_sparse_csr_out));
  m.impl("isposinf", TORCH_FN(native::isposinf_sparse_csr));
  m.impl("isposinf.out", TORCH_FN(native::isposinf_sparse_csr_out));
  m.impl("isnan", TORCH_FN(native::isnan_sparse_csr));
  m.impl("neg", TORCH_FN(native::neg_sparse_csr));
  m.impl("neg_", TORCH_FN(native::neg_sparse_csr_));
  m.impl("neg.out", TORCH_FN(native::neg_sparse_csr_out));
  m.impl("normal_", TORCH_FN(native::normal_sparse_csr_));
  m.impl("relu", TORCH_FN(native::relu_sparse_csr));
  m.impl("relu_", TORCH_FN(native::relu_sparse_csr_));
  m.impl("resize_", TORCH_FN(native::resize_sparse_csr_));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_compressed_));
  m.impl("row_indices", TORCH_FN(native::row_indices_sparse_csr));
  m.impl("select.int", TORCH_FN(native::select_sparse_csr));
  m.impl("select_copy.int", TORCH_FN(native::select_copy_sparse_csr));
  m.impl("signbit", TORCH_FN(native::signbit_sparse_csr));
  m.impl("signbit.out", TORCH_FN(native::signbit_sparse_csr_out));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse_csr));
  m.impl("sum", TORCH_FN(native::sum_csr));
  m.impl("sum.dim_IntList", TORCH_FN(native::sum_sparse_compressed));
  m.impl("threshold_backward", TORCH_FN(native::threshold_backward_sparse_compressed));
  m.impl("values", TORCH_FN(native::values_sparse_csr));
  m.impl("zero_", TORCH_FN(native::zero_sparse_csr_));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse", TORCH_FN(dense_to_layout));
  m.impl("_to_sparse.sparse_dim", TORCH_FN(dense_to_coo));
  m.impl("_to_sparse_bsc", TORCH_FN(native::dense_to_sparse_bsc));
  m.impl("_to_sparse_bsr", TORCH_FN(native::dense_to_sparse_bsr));
  m.impl("_to_sparse_csc", TORCH_FN(native::dense_to_sparse_csc));
  m.impl("_to_sparse_csr", TORCH_FN(native::dense_to_sparse_csr));
}

}  // namespace
}  // namespace torchtpu
