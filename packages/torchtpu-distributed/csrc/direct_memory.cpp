// SPDX-License-Identifier: Apache-2.0
// The memory of a collective's tensors, for gloo to read and write.
#include "direct.h"

#include "device_api.h"

#include <algorithm>

namespace torchtpu::distributed {

Memory Direct::memory(const at::Tensor& tensor, bool write) const {
  if (!in_place_ || !is_quiet() || tensor.numel() == 0) {
    return {};
  }
  wait_for_users_of(tensor);
  device_api().flush(tensor.device().index());
  return device_api().memory(tensor, write, nullptr);
}

// Of all that is read and written; false if some is not to be had.
bool Direct::find_memory(const Request& request, Prepared& prepared) const {
  const Native& api = device_api();
  for (at::TensorList tensors : {request.operands, request.results}) {
    for (const at::Tensor& tensor : tensors) {
      wait_for_users_of(tensor);
    }
  }
  api.flush(static_cast<c10::DeviceIndex>(group_->device.load()));
  for (const at::Tensor& tensor : request.reads ? request.operands : at::TensorList()) {
    prepared.sources.push_back(api.memory(tensor, false, nullptr));
  }
  for (const at::Tensor& tensor : request.writes ? request.results : at::TensorList()) {
    prepared.targets.push_back(memory_to_write(tensor, prepared.written));
  }
  auto is_there = [](const Memory& memory) { return static_cast<bool>(memory.owner); };
  return std::all_of(prepared.sources.begin(), prepared.sources.end(), is_there) &&
         std::all_of(prepared.targets.begin(), prepared.targets.end(), is_there);
}

// Adds what is written to those of this collective. Of others that are under way on other parts of
// the tensor's storage, all share what they write.
Memory Direct::memory_to_write(const at::Tensor& tensor, std::vector<WrittenPtr>& written) const {
  const void* storage = Span(tensor).storage;
  WrittenPtr own = written_of(written, storage);
  WrittenPtr shared = own ? own : operations_->written(tensor);
  Memory memory = device_api().memory(tensor, true, shared ? shared->owner.get() : nullptr);
  if (memory.owner) {
    bool same = shared && shared->owner == memory.owner;
    WrittenPtr now = same ? std::move(shared) : c10::make_intrusive<Written>(storage, std::move(memory.owner));
    memory.owner = now;
    if (now != own) {
      written.push_back(std::move(now));
    }
  }
  return memory;
}

void Direct::wait_for_users_of(const at::Tensor& tensor) const {
  if (!operations_->idle()) {
    operations_->wait_for([span = Span(tensor)](const Operation& each) { return each.uses(span); }, *abort_);
  }
}

}  // namespace torchtpu::distributed
