// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include "device.h"

#include <ATen/Utils.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <vector>

namespace torchtpu {
namespace {

// DTensor requires offsets that are multiples of 4.
constexpr uint64_t kStep = 4;

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kTpu, device),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % kStep == 0, "offset must be a multiple of ", kStep, ", got ", offset, ".");
    state_.offset = offset;
  }
  uint64_t get_offset() const override { return state_.offset; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  // 16 bytes on the host: seed, then offset.
  void set_state(const c10::TensorImpl& new_state) override {
    at::detail::check_rng_state(new_state);
    TORCH_CHECK(new_state.numel() == static_cast<int64_t>(sizeof(RngState)),
                "RNG state of a tpu generator has ", sizeof(RngState), " bytes, got ",
                new_state.numel(), ".");
    RngState state;
    std::memcpy(&state, new_state.data_dtype_initialized<uint8_t>(), sizeof(state));
    state_.seed = state.seed;
    set_offset(state.offset);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor bytes = at::detail::empty_cpu({static_cast<int64_t>(sizeof(RngState))}, c10::kByte);
    std::memcpy(bytes.mutable_data_ptr<uint8_t>(), &state_, sizeof(state_));
    return bytes.getIntrusivePtr();
  }
  RngState advance(uint64_t draws) {
    RngState before = state_;
    state_.offset += kStep * draws;
    return before;
  }

 private:
  GeneratorImpl* clone_impl() const override {
    auto* copy = new GeneratorImpl(device().index());
    copy->state_ = state_;
    return copy;
  }
  RngState state_{c10::default_rng_seed_val, 0};
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  auto index = device < 0 ? current_device() : device;
  check_device(index);
  return at::make_generator<GeneratorImpl>(index);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  auto index = device < 0 ? current_device() : device;
  check_device(index);
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); ++i) {
      made->push_back(at::make_generator<GeneratorImpl>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return (*generators)[index];
}

RngState next_state(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                    uint64_t draws) {
  at::Generator chosen =
      generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(chosen.device().type() == kTpu, "Expected a 'tpu' device type for generator but found '",
              chosen.device().type(), "'");
  std::lock_guard<std::mutex> guard(chosen.mutex());
  return static_cast<GeneratorImpl*>(chosen.unsafeGetGeneratorImpl())->advance(draws);
}

}  // namespace torchtpu
