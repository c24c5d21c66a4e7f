// SPDX-License-Identifier: Apache-2.0
// Signature: everything about a call that a program depends on, interned.
//
// Two calls with the same op, operand metadata and constants share one Signature,
// hence one result of shape inference. Values of operands, run-time scalars, view
// offsets and the identity of the device are not part of it.
#pragma once

#include "geometry.h"
#include "op_info.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <cstring>
#include <forward_list>
#include <memory>
#include <string>

namespace torchtpu {

// A run-time scalar's words: low and high half of the int64 or float64 pattern,
// then the float32 pattern. Mirrors torchtpu_core.lowering.promotion.SCALAR_WORDS.
struct ScalarWords {
  uint32_t words[3];
};
constexpr int kScalarWords = 3;
ScalarWords pack_int(int64_t value);
ScalarWords pack_double(double value);
ScalarWords pack_bits(uint64_t bits);

struct TensorSpec {
  Dims sizes;
  Dims strides;
  c10::ScalarType dtype = c10::kFloat;
  const Geometry* geometry = nullptr;
};

struct OutSpec {
  enum Kind : int8_t { kTensor, kList, kUndefined, kConstant };
  Kind kind = kTensor;
  std::vector<TensorSpec> tensors;
  c10::IValue constant;
};

// How the lowering's argument is made; `index` counts tensors or scalars of the call.
struct ArgSpec {
  enum Kind : int8_t { kConstant, kTensor, kTensorList, kScalar, kScalarList, kAbsent };
  const OpArg* arg = nullptr;
  Kind kind = kConstant;
  c10::IValue constant;
  std::vector<int> index;          // -1: an undefined tensor in a list
  std::string scalar_kinds;        // b, i or f for each scalar
  int scalar_dtype = -1;           // ScalarType of a 0-d host tensor, -1: a plain number
};

struct Program;

// How a call of a signature ran the last time; see rerun.h. Guarded by the GIL.
struct LastRun {
  static constexpr size_t kMaxOperands = 8;  // beyond, the run costs more than finding it
  struct Operand {  // how a view of it lies
    const Geometry* geometry;
    int64_t offset;
    PlanKind plan;
  };
  c10::SmallVector<Operand, 4> operands;
  c10::SmallVector<ScalarWords, 4> starts;        // of the views
  c10::SmallVector<bool, 4> dies;                 // per operand; of those, some are donated
  c10::SmallVector<bool, 4> donated;
  c10::SmallVector<const Geometry*, 2> writes;    // each fills its storage
  std::weak_ptr<Program> program;  // until the table of programs forgets it
  c10::DeviceIndex device = -1;
};

struct Signature {
  int64_t id = 0;
  const OpInfo* op = nullptr;
  std::vector<ArgSpec> args;
  std::vector<TensorSpec> inputs;    // per tensor operand
  std::vector<OutSpec> outs;         // fresh results and constants, in return order
  std::vector<TensorSpec> written;   // per written tensor: its metadata afterwards
  uint64_t hash = 0;
  std::vector<int64_t> key;
  mutable LastRun last_run;
};

// The scratch state of one call: the key words and the operands in key order.
struct Call {
  c10::SmallVector<int64_t, 64> key;
  c10::SmallVector<const at::Tensor*, 8> tensors;
  c10::SmallVector<ScalarWords, 4> scalars;
  std::forward_list<at::Tensor> uploaded;  // keeps operands that came from the host
  c10::DeviceIndex device = -1;
  bool doubtful = false;  // PyTorch may refuse a number of it
};

// Reads the arguments into `call`. With `specs`, also says how each is passed.
// Throws on operands of other devices.
void canonicalise(const OpInfo& op, c10::ArrayRef<c10::IValue> args, Call& call,
                  std::vector<ArgSpec>* specs);

// The signature of a canonicalised call: cached, or inferred by running the op on
// meta tensors (or, where PyTorch has no meta kernel, from the lowering).
const Signature& find_signature(const OpInfo& op, c10::ArrayRef<c10::IValue> args,
                                const Call& call);

using WrittenTensors = c10::SmallVector<const at::Tensor*, 2>;

// The tensors a call writes: schema order, then those the row mutates (if it does),
// lists flattened, undefined ones left out.
WrittenTensors written_tensors(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

uint64_t hash_key(c10::ArrayRef<int64_t> key);

// A signature for a call of a Python function (compiled graphs, custom kernels).
Signature* find_or_add_signature(c10::ArrayRef<int64_t> key, bool* added);
int64_t signature_count();

}  // namespace torchtpu
