// SPDX-License-Identifier: Apache-2.0
// Making tensors without contents, and PyTorch's own view kernels over our storages.
#include "allocator.h"
#include "device.h"
#include "recorder.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

c10::DeviceIndex chosen_device(std::optional<c10::Device> device) {
  ensure_started();
  auto index = device.has_value() && device->has_index() ? device->index() : current_device();
  check_device(index);
  return index;
}

void check_options(std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned; device='tpu' was asked for.");
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided,
              "Only strided tensors can be made on device 'tpu' by empty(); layout ", *layout, " was asked for.");
  if (dtype.has_value() && (c10::isQIntType(*dtype) || *dtype == c10::kComplexHalf)) {
    TORCH_CHECK_TYPE(false, "dtype ", *dtype, " does not exist on device 'tpu'.");
  }
}

// With deterministic algorithms, PyTorch fills what nobody has written with NaN or the largest integer.
bool fills_the_unwritten() {
  return at::globalContext().deterministicAlgorithms() &&
         at::globalContext().deterministicFillUninitializedMemory();
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> memory_format) {
  check_options(dtype, layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (int dim = static_cast<int>(sizes.size()) - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  at::Tensor tensor = new_tensor(chosen_device(device), sizes, strides,
                                 dtype.value_or(c10::get_default_dtype_as_scalartype()));
  auto format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  if (format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  }
  return fills_the_unwritten() ? at::native::fill_empty_deterministic_(tensor) : tensor;
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(dtype, layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  at::Tensor tensor = new_tensor(chosen_device(device), sizes, strides,
                                 dtype.value_or(c10::get_default_dtype_as_scalartype()));
  return fills_the_unwritten() ? at::native::fill_empty_deterministic_(tensor) : tensor;
}

// Zeros that are known as such: PyTorch's kernels of the key ZeroTensor give 0 for a product with
// them, where zeros in memory would give 0 * NaN. Nothing is written; what is read is zeros.
at::Tensor efficient_zeros(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  check_options(dtype, layout, pin_memory);
  at::Tensor tensor = new_tensor(chosen_device(device), sizes, c10::contiguous_strides(sizes),
                                 dtype.value_or(c10::get_default_dtype_as_scalartype()));
  auto zeros = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set().add(c10::DispatchKey::ZeroTensor), tensor.dtype());
  zeros.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return zeros;
}

void grow_storage(const at::Tensor& self, size_t needed) {
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    resize_storage(self.storage().unsafeGetStorageImpl(), needed);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format) {
  auto* impl = self.unsafeGetTensorImpl();
  auto old_nbytes = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != size) {
    impl->set_sizes_contiguous(size);
    grow_storage(self, at::detail::computeStorageNbytesContiguous(
                           size, self.element_size(), self.storage_offset()));
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  if (fills_the_unwritten()) {
    at::native::fill_resize_deterministic_(self, old_nbytes);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride, /*check_offset_in_bounds=*/false);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
    grow_storage(self, at::detail::computeStorageNbytes(size, stride, self.element_size(), offset));
  } else {
    impl->set_sizes_contiguous(size);
    grow_storage(self, at::detail::computeStorageNbytesContiguous(size, self.element_size(), offset));
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  auto index = self.device().index();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, new_data_ptr(index, 0), device_allocator(), true);
  return set_storage(self, c10::Storage(std::move(storage)), 0, {0}, {});
}

// A value lives as long as a recorded op reads it, so there is nothing to remember.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

// Lets `parameter.data = tensor_on_tpu` keep the parameter, so that Module.to() keeps
// tied weights tied and optimizers their parameters, as between CPU and CUDA.
bool shallow_copy_is_possible(const at::Tensor& self, const at::Tensor& from) {
  auto is_plain = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided &&
           (tensor.device().is_cpu() || tensor.device().type() == kTpu);
  };
  return is_plain(self) && is_plain(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &shallow_copy_is_possible);
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &efficient_zeros);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_", &set_nothing);
  library.impl("record_stream", &record_stream);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

// Conjugate and negative bits are resolved by the copy kernel itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace torchtpu
