// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include "device.h"

#include <ATen/EmptyTensor.h>

namespace torchtpu {

at::Tensor new_tensor(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::ScalarType dtype) {
  size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, new_data_ptr(device, nbytes), device_allocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kTpuDispatchKey), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(tensor));
}

}  // namespace torchtpu
