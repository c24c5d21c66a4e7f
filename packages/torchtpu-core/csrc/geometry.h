// SPDX-License-Identifier: Apache-2.0
// How a device value lies in its storage, and how a tensor's view reads it.
//
// A value is kept as a JAX array whose shape is the sizes of the tensor that wrote
// it; Geometry remembers the strides that tensor had, so that other views of the
// same storage can be read (Plan) and written. Knows nothing of JAX or of tensors.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

namespace torchtpu {

using Dims = c10::SmallVector<int64_t, 6>;

// Interned: equal geometries are one object, compared by pointer or id.
struct Geometry {
  Dims sizes;
  Dims strides;
  c10::ScalarType dtype;
  int64_t id;
  int64_t numel;
  int64_t nbytes;
  bool row_major;  // strides are those of a contiguous tensor
};

const Geometry* intern_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

// A one-dimensional geometry of `numel` elements.
const Geometry* flat_geometry(int64_t numel, c10::ScalarType dtype);

// True if each storage element between the first and the last is used exactly once.
bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides);

enum class PlanKind : int8_t {
  kIdentity,  // the view is the value
  kUnset,     // nothing was ever written, or the view is empty: zeros
  kSlice,     // a box of the storage seen in mixed radix
  kGather,    // anything else: element by element
};

// How to read a view from a value, or write it. `starts` change from call to call
// and are run-time operands; everything else is part of the program's key.
//
// kSlice: pad the storage's elements to prod(radix), shape them as `radix`, take
// `extents` from `starts`. `order[i]` is the view's dim that radix dim i becomes, or
// -1 (extent 1, dropped). Dims of stride 0 or size 1 are broadcast afterwards.
struct Box {
  Dims radix;
  Dims extents;
  Dims order;
  Dims starts;

  // Whether the program may know that radix dim `i` starts at 0, which is part of its key then: of
  // all, and of nearly all, as of all tokens but the last (`lowering/cut_rows.py`).
  bool known_at_front(size_t i) const { return starts[i] == 0 && extents[i] * 4 >= radix[i] * 3; }
};
struct Plan {
  PlanKind kind = PlanKind::kIdentity;
  std::unique_ptr<Box> box;  // of a slice; a gather has one start and nothing else

  c10::IntArrayRef starts() const { return box ? c10::IntArrayRef(box->starts) : c10::IntArrayRef(); }
  // Of the view's first element in the storage.
  int64_t offset() const;
};

// The plan of a view (in elements of `dtype`) on a value; `base` may be null (unset).
Plan plan_view(const Geometry* base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
               int64_t offset, c10::ScalarType dtype);

}  // namespace torchtpu
