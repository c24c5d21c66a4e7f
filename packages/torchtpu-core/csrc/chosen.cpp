// SPDX-License-Identifier: Apache-2.0
#include "chosen.h"

#include "copies.h"
#include "recorder.h"
#include "recording.h"
#include "same_result.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/where.h>
#include <c10/core/ConstantSymNodeImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <string_view>

namespace torchtpu {
namespace {

// Those of a statement are gone after it; a script that keeps more keeps the whole tensors.
constexpr int64_t kMostUnsettled = 16;
std::atomic<int64_t> unsettled{0};  // such tensors whose sizes nobody asked for
thread_local bool settling = false;

// What a tensor holds now; later writes to the tensor do not change it.
at::Tensor as_of_now(const at::Tensor& tensor) {
  const Slot& slot = *slot_of(tensor);
  at::Tensor copy = new_tensor(slot.device(), {static_cast<int64_t>(slot.nbytes())}, {1}, c10::kByte);
  slot_of(copy)->exchange(slot_of(tensor)->get());
  auto held = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(copy.storage()), c10::DispatchKeySet(kTpuDispatchKey), tensor.dtype());
  held.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    offset_in_slot(tensor, slot));
  return held;
}

// Holds a mutex; never waits for it with the GIL held, which its owner may need.
class SettleLock {
 public:
  explicit SettleLock(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (mutex.try_lock()) {
      return;
    }
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) {
      release.emplace();
    }
    mutex.lock();
  }
  ~SettleLock() { mutex_.unlock(); }
  SettleLock(const SettleLock&) = delete;
  SettleLock& operator=(const SettleLock&) = delete;

 private:
  std::recursive_mutex& mutex_;
};

class Settling {
 public:
  Settling() : before_(std::exchange(settling, true)) {}
  ~Settling() { settling = before_; }
  Settling(const Settling&) = delete;
  Settling& operator=(const Settling&) = delete;

 private:
  bool before_;
};

class Chosen final : public c10::TensorImpl {
 public:
  Chosen(at::Tensor whole, at::Tensor mask, int64_t axis)
      : TensorImpl(c10::DispatchKeySet(kTpuDispatchKey), whole.dtype(), whole.device()),
        whole_(std::move(whole)),
        mask_(std::move(mask)),
        axis_(axis) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
    unsettled.fetch_add(1, std::memory_order_relaxed);
  }
  ~Chosen() override {
    if (!settled_) {
      unsettled.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  bool settled() const { return settled_; }
  const at::Tensor& whole() const { return whole_; }
  const at::Tensor& mask() const { return mask_; }
  int64_t axis() const { return axis_; }
  // Dimensions after those of the mask.
  int64_t rest() const { return whole_.dim() - axis_ - mask_.dim(); }

  bool same_choice(const Chosen& other) const { return axis_ == other.axis_ && masked_by(other.mask_); }
  bool masked_by(const at::Tensor& mask) const {
    const Slot& mine = *slot_of(mask_);
    const Slot& its = *slot_of(mask);
    return mask.scalar_type() == c10::kBool && mask.sizes() == mask_.sizes() &&
           mask.strides() == mask_.strides() &&
           offset_in_slot(mask, its) == offset_in_slot(mask_, mine) &&
           same_result(slot_of(mask)->get(), slot_of(mask_)->get());
  }

  // Counts, and becomes what `index` gives.
  void settle() const { const_cast<Chosen*>(this)->settle(); }

  // Whether whoever asked for the sizes can do without their numbers.
  bool unhinted = false;

  c10::IntArrayRef sizes_custom() const override { return settle(), sizes(); }
  c10::IntArrayRef strides_custom() const override { return settle(), strides(); }
  int64_t numel_custom() const override { return settle(), numel(); }
  int64_t storage_offset_custom() const override { return settle(), storage_offset(); }
  int64_t dim_custom() const override { return axis_ + 1 + rest(); }
  c10::SymIntArrayRef sym_strides_custom() const override { return settle(), sym_strides(); }
  c10::SymInt sym_numel_custom() const override { return settle(), sym_numel(); }
  c10::SymInt sym_storage_offset_custom() const override { return settle(), sym_storage_offset(); }
  bool is_strides_like_custom(at::MemoryFormat format) const override {
    return settle(), is_strides_like(format);
  }
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override {
    return settle(), sym_is_non_overlapping_and_dense();
  }
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override {
    return settle(), sym_is_contiguous(format);
  }
  bool has_storage() const override { return settle(), TensorImpl::has_storage(); }
  const c10::Storage& storage() const override { return settle(), TensorImpl::storage(); }
  c10::SymIntArrayRef sym_sizes_custom() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    return settle(), TensorImpl::shallow_copy_and_detach(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    return settle(), TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
  }

 private:
  void settle();

  at::Tensor whole_;  // undefined once settled
  at::Tensor mask_;
  int64_t axis_;
  std::recursive_mutex mutex_;
  std::atomic<bool> settled_{false};
  std::vector<c10::SymInt> sym_sizes_;
};

// A size: a number as soon as anybody needs one. PyTorch's `x[mask] = values` asks whether there is
// a hint of it, and does without where there is none.
class Size final : public c10::SymNodeImpl {
 public:
  Size(c10::weak_intrusive_ptr<c10::TensorImpl> tensor, int64_t dim)
      : tensor_(std::move(tensor)), dim_(dim) {}

  bool is_int() override { return true; }
  bool is_bool() override { return false; }
  bool is_float() override { return false; }
  bool has_hint() override {
    auto tensor = alive();
    if (tensor->settled()) {
      return true;
    }
    tensor->unhinted = true;
    return false;
  }
  std::optional<int64_t> constant_int() override {
    auto tensor = alive();
    return tensor->unhinted && !tensor->settled() ? std::nullopt : std::make_optional(number());
  }
  std::optional<int64_t> maybe_as_int() override { return constant_int(); }
  int64_t guard_int(const char* /*file*/, int64_t /*line*/) override { return number(); }
  int64_t int_() override { return number(); }
  std::string str() override { return std::to_string(number()); }
  c10::SymNode wrap_int(int64_t number) override {
    return c10::make_intrusive<c10::ConstantSymNodeImpl<int64_t>>(number);
  }
  c10::SymNode eq(const c10::SymNode& other) override { return of_bool(equals(other)); }
  c10::SymNode ne(const c10::SymNode& other) override { return of_bool(!equals(other)); }

 private:
  static c10::SymNode of_bool(bool value) {
    return c10::make_intrusive<c10::ConstantSymNodeImpl<bool>>(value);
  }
  bool equals(const c10::SymNode& other) {
    const auto* size = dynamic_cast<const Size*>(other.get());
    return (size != nullptr && size->dim_ == dim_ && size->alive() == alive()) ||
           number() == other->guard_int(__FILE__, __LINE__);
  }
  int64_t number() const { return alive()->size(dim_); }
  c10::intrusive_ptr<Chosen> alive() const {
    auto tensor = tensor_.lock();
    TORCH_CHECK(tensor, "the tensor of this size is gone: take int(size) while it is there");
    return c10::static_intrusive_pointer_cast<Chosen>(tensor);
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  int64_t dim_;
};

c10::SymIntArrayRef Chosen::sym_sizes_custom() const {
  auto* self = const_cast<Chosen*>(this);
  SettleLock lock(self->mutex_);
  self->unhinted = false;
  if (sym_sizes_.empty()) {
    for (int64_t dim = 0; dim < dim_custom(); ++dim) {
      auto weak = c10::weak_intrusive_ptr<c10::TensorImpl>(
          c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(self));
      self->sym_sizes_.emplace_back(c10::SymNode(c10::make_intrusive<Size>(std::move(weak), dim)));
    }
  }
  return sym_sizes_;
}

c10::List<std::optional<at::Tensor>> indices_of(int64_t axis, const at::Tensor& mask) {
  c10::List<std::optional<at::Tensor>> indices;
  for (int64_t dim = 0; dim < axis; ++dim) {
    indices.push_back(std::nullopt);
  }
  indices.push_back(mask);
  return indices;
}

void Chosen::settle() {
  SettleLock lock(mutex_);
  if (settled_) {
    return;
  }
  static const auto index = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index", "Tensor");
  torch::jit::Stack stack{whole_, indices_of(axis_, mask_)};
  {
    Settling now;
    c10::impl::ExcludeDispatchKeyGuard below(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    index.redispatchBoxed(c10::DispatchKeySet(kTpuDispatchKey), &stack);
  }
  at::Tensor found = stack.back().toTensor();
  set_custom_sizes_strides(SizesStridesPolicy::Default);
  settled_ = true;
  unsettled.fetch_sub(1, std::memory_order_relaxed);
  storage_ = found.storage();
  set_sizes_and_strides(found.sizes(), found.strides(), found.storage_offset());
  whole_ = mask_ = at::Tensor();
}

Chosen* chosen_in(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return nullptr;
  }
  auto* chosen = dynamic_cast<Chosen*>(value.toTensor().unsafeGetTensorImpl());
  return chosen != nullptr && !chosen->settled() ? chosen : nullptr;
}

// Calls `use` with each tensor among arguments that holds a choice.
template <class Use>
void for_each_chosen(c10::ArrayRef<c10::IValue> args, const Use& use) {
  for (const c10::IValue& value : args) {
    if (Chosen* chosen = chosen_in(value)) {
      use(*chosen);
    } else if (value.isList() && !value.isIntList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (Chosen* listed = chosen_in(item)) {
          use(*listed);
        }
      }
    }
  }
}

bool is_whole(const c10::IValue& value) {
  return !value.isTensor() || !value.toTensor().defined() ||
         c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/true);
}

// Whether the device checks the numbers of an op (whole ones are not divided by zero): it would see
// those that were not chosen.
bool is_checked(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const std::string_view name = op.name;
  bool checks = name.rfind("_mode") != name.npos || name.starts_with("aten::fmod") ||
                name.starts_with("aten::remainder") || name.starts_with("aten::pow");
  return checks && std::all_of(args.begin(), args.end(), is_whole);
}

// Whether an op gives each element from those of its place alone, as one new tensor or in its first
// argument.
bool is_by_element(const OpInfo& op) {
  const auto& returns = op.handle->schema().returns();
  bool in_place = op.written == std::vector<int>{0} && op.returns_arg == std::vector<int>{0};
  bool plain = op.written.empty() && op.returns_arg == std::vector<int>{-1};
  return (in_place || plain) && !op.random && op.handle->hasTag(at::Tag::pointwise) &&
         returns[0].type()->kind() == c10::TypeKind::TensorType;
}

// The choice that all arguments share, or null; other tensors lie along the dimensions after it.
const Chosen* shared_choice(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  const Chosen* first = nullptr;
  for_each_chosen(args, [&](const Chosen& chosen) { first = first == nullptr ? &chosen : first; });
  if (!op.written.empty() && chosen_in(args[0]) == nullptr) {
    return nullptr;
  }
  for (const c10::IValue& value : args) {
    if (value.isTensorList() || value.isOptionalTensorList()) {
      return nullptr;
    }
    const Chosen* chosen = chosen_in(value);
    bool fits = chosen != nullptr
                    ? chosen == first || (chosen->same_choice(*first) && chosen->rest() == first->rest())
                    : !value.isTensor() || !value.toTensor().defined() ||
                          value.toTensor().dim() <= first->rest();
    if (!fits) {
      return nullptr;
    }
  }
  return first;
}

at::Tensor made_of(const Chosen& like, at::Tensor whole) {
  return at::detail::make_tensor<Chosen>(std::move(whole), like.mask(), like.axis());
}

bool record_on_wholes(const OpInfo& op, torch::jit::Stack* stack) {
  auto args = torch::jit::last(*stack, op.args.size());
  const Chosen* choice = is_by_element(op) && !is_checked(op, args) ? shared_choice(op, args) : nullptr;
  if (choice == nullptr) {
    return false;
  }
  torch::jit::Stack on_whole;
  for (const c10::IValue& value : args) {
    const Chosen* chosen = chosen_in(value);
    on_whole.push_back(chosen == nullptr ? value : c10::IValue(chosen->whole()));
  }
  try {
    record_op(op, *op.handle, &on_whole);
  } catch (const std::exception&) {
    return false;  // the call on what was chosen says it in the words for its sizes
  }
  at::Tensor result = op.written.empty() ? made_of(*choice, on_whole.back().toTensor()) : args[0].toTensor();
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(std::move(result));
  return true;
}

// Whether `self[indices] = values` writes where the values were chosen.
bool writes_back(const at::Tensor& self, c10::ArrayRef<c10::IValue> indices, const Chosen& values) {
  if (self.device() != values.device() || self.is_conj() || self.is_neg() ||
      self.scalar_type() != c10::typeMetaToScalarType(values.dtype()) ||
      self.sizes() != values.whole().sizes() ||
      at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    return false;
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    bool given = indices[i].isTensor() && indices[i].toTensor().defined();
    bool wanted = static_cast<int64_t>(i) == values.axis();
    if (given != wanted || (given && (indices[i].toTensor().device() != self.device() ||
                                      !values.masked_by(indices[i].toTensor())))) {
      return false;
    }
  }
  return static_cast<int64_t>(indices.size()) > values.axis();
}

bool write_back(const OpInfo& op, torch::jit::Stack* stack) {
  if (op.name != "aten::index_put_" && op.name != "aten::_index_put_impl_") {
    return false;
  }
  auto args = torch::jit::last(*stack, op.args.size());
  const Chosen* values = chosen_in(args[2]);
  if (values == nullptr || args[3].toBool() || chosen_in(args[0]) != nullptr ||
      !writes_back(args[0].toTensor(), args[1].toListRef(), *values)) {
    return false;
  }
  at::Tensor self = args[0].toTensor();
  c10::DimVector sizes(values->mask().sizes().begin(), values->mask().sizes().end());
  sizes.resize(sizes.size() + static_cast<size_t>(values->rest()), 1);
  at::AutoDispatchBelowADInplaceOrView below;
  copy_within_device(at::where(values->mask().view(sizes), values->whole(), self), self);
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(std::move(self));
  return true;
}

}  // namespace

std::optional<at::Tensor> choose_later(const at::Tensor& x, const at::Tensor& mask, int64_t axis) {
  bool seen_now = settling || unsettled.load(std::memory_order_relaxed) >= kMostUnsettled ||
                  mode_policy().flush_each.load(std::memory_order_relaxed) ||
                  is_observed() || torch::jit::tracer::isTracing() ||
                  (c10::GradMode::is_enabled() && x.requires_grad());
  if (seen_now || mask.scalar_type() != c10::kBool || mask.dim() == 0 || mask.device() != x.device() ||
      x.numel() == 0 || x.is_conj() || x.is_neg() || !slot_of(x)->get() || !slot_of(mask)->get()) {
    return std::nullopt;
  }
  return at::detail::make_tensor<Chosen>(as_of_now(x), as_of_now(mask), axis);
}

bool has_chosen(c10::ArrayRef<c10::IValue> args) {
  bool any = false;
  if (unsettled.load(std::memory_order_relaxed) != 0) {
    for_each_chosen(args, [&](const Chosen&) { any = true; });
  }
  return any;
}

bool record_on_chosen(const OpInfo& op, torch::jit::Stack* stack) {
  if (!has_chosen(torch::jit::last(*stack, op.args.size()))) {
    return false;
  }
  if (!is_observed() && !torch::jit::tracer::isTracing() && (record_on_wholes(op, stack) || write_back(op, stack))) {
    return true;
  }
  for_each_chosen(torch::jit::last(*stack, op.args.size()), [](const Chosen& chosen) { chosen.settle(); });
  return false;
}

}  // namespace torchtpu
